"""Host names to addresses, by the reactor's resolver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.connecting import addresses_of


class FakeResolver:
    """A resolver that knows one name. It also is the reactor, of which only the resolver is used."""

    def __init__(self, found: Sequence[str] = ()) -> None:
        self.nameResolver = self
        self._found = found
        self.receiver: Any = None

    def resolveHostName(self, receiver: Any, name: str, port: int) -> None:
        name.encode("idna")
        self.receiver = receiver
        receiver.resolutionBegan(None)
        for host in self._found:
            kind: Any = IPv6Address if ":" in host else IPv4Address
            receiver.addressResolved(kind("TCP", host, port))


class Resolving(SynchronousTestCase):
    def test_each_address_is_returned_once_in_the_resolvers_order(self) -> None:
        resolver = FakeResolver(["::1", "127.0.0.1", "::1"])
        found = addresses_of(resolver, "db.example.test")
        self.assertNoResult(found)
        resolver.receiver.resolutionComplete()
        self.assertEqual(self.successResultOf(found), ["::1", "127.0.0.1"])

    def test_an_address_resolves_to_itself(self) -> None:
        for host in ("127.0.0.1", "::1"):
            self.assertEqual(self.successResultOf(addresses_of(FakeResolver(), host)), [host])

    def test_an_invalid_name_has_no_addresses(self) -> None:
        self.assertEqual(self.successResultOf(addresses_of(FakeResolver(), "a" * 64 + ".test")), [])

    def test_a_result_after_cancelling_is_ignored(self) -> None:
        resolver = FakeResolver(["127.0.0.1"])
        found = addresses_of(resolver, "db.example.test")
        found.cancel()
        self.failureResultOf(found, CancelledError)
        resolver.receiver.resolutionComplete()
