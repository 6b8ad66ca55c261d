"""One client that sends a few logins a second does not keep others from logging in."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.http.admission import Limits
from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Router
from tests.fakes.common import App, held, raw_request
from tests.route_description import operation_at

PROXY = "198.51.100.1"


class Logins(TestCase):
    def setUp(self) -> None:
        self.seen: list[str] = []
        self.hashed: list[Deferred[None]] = []
        router = Router()
        router.route("/login", operation_at(), methods=("POST",), key="optional", admission="passwords")(
            self.login
        )
        limits = {"passwords": Limits(2, 5.0)}
        self.app = App(router, limits=limits, trusted_proxies=(PROXY,))

    async def login(self, request: Request) -> Reply:
        self.seen.append(request.client_address)
        await held(self.hashed)
        return envelope({})

    def ask(self, client: str, via: str | None = None) -> None:
        headers = {} if via is None else {"X-Forwarded-For": client}
        self.app.connect(via or client).send(raw_request("POST", "/login", headers, b""))

    def answer(self, count: int) -> None:
        for _ in range(count):
            self.hashed.pop(0).callback(None)

    def test_another_client_is_served_in_its_turn(self) -> None:
        for _ in range(20):
            self.ask("192.0.2.1")
        self.ask("192.0.2.2")
        self.answer(2)
        self.assertEqual(self.seen[2:], ["192.0.2.1", "192.0.2.2"])

    def test_clients_behind_a_proxy_are_told_apart_only_if_it_is_trusted(self) -> None:
        for number in range(5):
            self.ask(f"192.0.2.{number}", via="203.0.113.9")  # which nobody trusts
        for number in (7, 8):
            self.ask(f"192.0.2.{number}", via=PROXY)
        self.answer(4)
        self.assertEqual(self.seen[2:], ["203.0.113.9", "192.0.2.7", "192.0.2.8", "203.0.113.9"])

    def test_an_ipv6_network_of_64_bits_is_one_client(self) -> None:
        for number in range(5):
            self.ask(f"2001:db8::{number:x}")
        self.ask("2001:db8:0:1::1")
        self.answer(2)
        self.assertEqual(self.seen[2:], ["2001:db8::2", "2001:db8:0:1::1"])
