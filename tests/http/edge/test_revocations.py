"""A request waits for a read of revocations if those in memory may be incomplete (decisions, sections 2 and 3)."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from tests.fakes.common import Client, FakeKeys, FakeRevocations, raw_request
from tests.http.toy_app import ANON, app_of, hello

USER = {"Authorization": "Bearer user:7"}


class Revoked(TestCase):
    def app(self, handler: Any = hello, **access: Any) -> None:
        self.served = app_of(handler, methods=("GET", "PUT"), **access)
        self.revocations: FakeRevocations = self.served.revocations
        self.keys: FakeKeys = self.served.keys

    def ask(self, headers: dict[str, str], method: str = "GET") -> Client:
        client = self.served.connect()
        client.send(raw_request(method, "/x", headers, None))
        return client

    def test_requests_do_not_wait_while_revocations_are_current(self) -> None:
        self.app(key="required")
        self.assertIn(b"200 OK", self.ask({**ANON, **USER}).received())
        self.assertEqual(self.revocations.waiting, [])

    def test_requests_with_a_key_or_token_wait_for_a_read(self) -> None:
        for access, headers in (({"key": "required"}, ANON), ({"bearer": "required"}, USER)):
            self.app(**access)
            self.revocations.current = False
            client = self.ask(headers)
            self.assertEqual(client.received(), b"")
            self.revocations.waiting[0].callback(None)
            self.assertIn(b"200 OK", client.received())

    def test_a_key_revoked_according_to_that_read_is_refused(self) -> None:
        self.app(key="required")
        self.revocations.current = False
        client = self.ask(ANON)
        self.keys.kinds.clear()
        self.revocations.waiting[0].callback(None)
        self.assertIn(b"project_key_invalid", client.received())

    def test_it_is_503_if_revocations_cannot_be_read(self) -> None:
        self.app(key="required")
        self.revocations.current = False
        client = self.ask(ANON)
        self.revocations.waiting[0].errback(errors.database_unavailable())
        answer = client.received()
        self.assertIn(b"503 ", answer)
        self.assertIn(b"database_unavailable", answer)
        self.assertIn(b"Retry-After", answer)

    def test_requests_without_credentials_do_not_wait(self) -> None:
        self.app(key="required")
        self.revocations.current = False
        self.assertIn(b"project_key_required", self.ask({}).received())

    def test_routes_with_optional_credentials_do_not_wait(self) -> None:
        """A probe of ``/live`` may send a key, and must be answered while the database is away."""
        self.app(key="optional", bearer="own")
        self.revocations.current = False
        self.assertIn(b"200 OK", self.ask({**ANON, **USER}).received())
        # In a process that has just started no key has been read yet.
        self.keys.kinds.clear()
        self.assertIn(b"200 OK", self.ask({**ANON, **USER}).received())

    def test_a_key_is_checked_again_after_a_slow_body(self) -> None:
        async def store(request: Request) -> Reply:
            return envelope({"size": len(await request.read(100))})

        self.app(store, key="required")
        client = self.ask({**ANON, "Content-Length": "4"}, "PUT")
        self.revocations.current = False
        client.send(b"body")
        self.assertEqual(client.received(), b"")
        self.keys.kinds.clear()
        self.revocations.waiting[0].callback(None)
        self.assertIn(b"project_key_invalid", client.received())
