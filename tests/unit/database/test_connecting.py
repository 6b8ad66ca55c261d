"""Host names to addresses."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.connecting import addresses_of
from project_service.lifecycle import start


class ThreadReactor:
    """A reactor that also is its own thread pool, whose only thread works when a test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def getThreadPool(self) -> ThreadReactor:
        return self

    def callInThreadWithCallback(self, done: Any, function: Any, *args: Any, **named: Any) -> None:
        def call() -> None:
            try:
                result = (True, function(*args, **named))
            except Exception:
                result = (False, Failure())
            done(*result)

        self.calls.append(call)

    def callFromThread(self, function: Any, *args: Any) -> None:
        function(*args)


class Resolving(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = ThreadReactor()

    def addresses(self, host: str) -> list[str]:
        waiting = start(addresses_of(self.reactor, host))
        self.assertNoResult(waiting)
        self.reactor.calls.pop()()
        return self.successResultOf(waiting)

    def test_each_address_is_returned_once_in_the_systems_order(self) -> None:
        def resolved(host: str, port: None, type: int) -> list[Any]:
            return [(0, type, 6, "", (address, 0)) for address in ("::1", "127.0.0.1", "::1")]

        self.patch(socket, "getaddrinfo", resolved)
        self.assertEqual(self.addresses("db.example.test"), ["::1", "127.0.0.1"])

    def test_an_address_resolves_to_itself(self) -> None:
        for host in ("127.0.0.1", "::1"):
            self.assertEqual(self.addresses(host), [host])

    def test_an_invalid_name_has_no_addresses(self) -> None:
        self.assertEqual(self.addresses("a" * 64 + ".test"), [])

    def test_a_result_after_cancelling_is_ignored(self) -> None:
        waiting = start(addresses_of(self.reactor, "127.0.0.1"))
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.reactor.calls.pop()()
