"""Clients that send bodies very slowly: when connections run out, they are the ones to be closed."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.http.admission import Limits
from project_service.http.body import HIGH_WATER
from project_service.http.exchange import DRAIN_IDLE_SECONDS
from project_service.http.limits import GRACE_SECONDS, SEARCH_SECONDS
from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Router
from tests.fakes.common import App, Client, held, parse_response, raw_request
from tests.route_description import operation_at

LENGTH = 10_000_000
# This is less than a byte a second, but within the idle timeout.
PAUSE = 50


class _Crowded(TestCase):
    def setUp(self) -> None:
        self.answers: list[Deferred[None]] = []
        router = Router()
        router.route("/quick", operation_at(), methods=("GET",), key="optional")(self.quick)
        router.route("/wait", operation_at(), methods=("GET",), key="optional")(self.wait)
        router.route("/read", operation_at(), methods=("PUT",), key="optional")(self.read)
        router.route("/store", operation_at(), methods=("PUT",), key="optional")(self.store)
        router.route("/early", operation_at(), methods=("PUT",), key="optional")(self.quick)
        router.route(
            "/storage/wait", operation_at(), methods=("GET", "PUT"), key="optional", admission="storage"
        )(self.wait)
        self.app = App(router, connections=3, limits={"storage": Limits(1, 100.0)})

    async def quick(self, request: Request) -> Reply:
        return envelope({})

    async def wait(self, request: Request) -> Reply:
        await held(self.answers)
        return envelope({})

    async def read(self, request: Request) -> Reply:
        return envelope({"taken": len(await request.body.read(LENGTH))})

    async def store(self, request: Request) -> Reply:
        """A handler that takes time for each piece of the body, as a slow store does."""
        while True:
            await self.wait(request)
            if not await request.body.next_chunk():
                return envelope({})

    def send(self, path: str = "/read", length: int = LENGTH, **headers: str) -> Client:
        client = self.app.connect()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        client.send(raw_request("PUT", path, {"Content-Length": str(length), **named}, None))
        return client

    def busy(self) -> Client:
        client = self.app.connect()
        client.send(raw_request("GET", "/wait", {}, None))
        return client

    def trickle(self, *clients: Client, times: int = 4) -> None:
        for _ in range(times):
            self.app.clock.advance(PAUSE)
            for client in clients:
                client.send(b"x")

    def is_let_in(self) -> bool:
        self.app.clock.advance(SEARCH_SECONDS)
        answer = self.app.connect().request("GET", "/quick")
        self.assertIn(answer.status, (200, 503))
        return answer.status == 200

    def goes(self, client: Client) -> None:
        """Asserts that the client gets the reason, and is closed a little later."""
        answer = parse_response(client.received())
        self.assertEqual((answer.status, answer.header("connection")), (408, "close"))
        self.assertEqual(json.loads(answer.body)["error"]["code"], "request_timeout")
        client.send(b"xxx")
        self.app.clock.advance(2 * DRAIN_IDLE_SECONDS)
        self.assertTrue(client.transport.ended)

    def stays(self, client: Client) -> None:
        self.assertFalse(client.transport.ended)
        self.assertEqual(client.received(), b"")


class Slow(_Crowded):
    def test_the_slowest_is_closed(self) -> None:
        first, slowest, third = self.send(), self.send(), self.send()
        first.send(b"x" * 100)
        third.send(b"x" * 200)
        self.trickle(first, slowest, third)
        self.assertTrue(self.is_let_in())
        self.stays(first)
        self.stays(third)
        self.goes(slowest)

    def test_one_byte_chunks_count_as_slow(self) -> None:
        client = self.app.connect()
        client.send(raw_request("PUT", "/read", {"Transfer-Encoding": "chunked"}, None))
        others = [self.busy() for _ in range(2)]
        for _ in range(4):
            self.app.clock.advance(PAUSE)
            client.send(b"1\r\nx\r\n")
        self.assertTrue(self.is_let_in())
        self.goes(client)
        for other in others:
            self.stays(other)


class NotItsFault(_Crowded):
    """Bodies that are slow because the service does not read them."""

    def setUp(self) -> None:
        super().setUp()
        self.others = [self.busy() for _ in range(2)]
        self.waiting = len(self.answers)

    def go_on(self) -> None:
        self.answers[-1].callback(None)
        self.app.clock.advance(0)

    def held(self) -> Client:
        """A client that has sent as much as is accepted, while the handler takes its time."""
        client = self.send("/store")
        self.go_on()
        client.send(b"x" * 1000)
        client.send(b"x" * HIGH_WATER)
        self.assertEqual(client.transport.producerState, "paused")
        self.app.clock.advance(1000)
        return client

    def test_not_while_the_handler_does_not_read(self) -> None:
        client = self.held()
        self.assertFalse(self.is_let_in())
        self.stays(client)

    def test_not_right_after_reading_resumed(self) -> None:
        client = self.held()
        for _ in range(2):
            self.go_on()
        self.assertEqual(client.transport.producerState, "producing")
        self.assertFalse(self.is_let_in())
        self.stays(client)
        for _ in range(4):
            self.trickle(client, times=1)
            self.go_on()
        self.assertTrue(self.is_let_in(), "from then on it was")
        self.goes(client)

    def test_not_while_100_continue_has_not_been_sent(self) -> None:
        client = self.send("/store", Expect="100-continue")
        self.app.clock.advance(PAUSE)
        self.assertFalse(self.is_let_in())
        self.stays(client)
        self.go_on()
        self.assertIn(b"100 Continue", client.received())
        self.assertFalse(self.is_let_in(), "it is asked only now")
        self.app.clock.advance(GRACE_SECONDS)
        self.assertTrue(self.is_let_in())
        self.goes(client)

    def test_not_behind_a_request_that_is_being_served(self) -> None:
        client = self.busy()
        client.send(raw_request("PUT", "/read", {"Content-Length": "1000"}, None))
        self.trickle(client)
        self.assertFalse(self.is_let_in())
        self.go_on()
        self.assertEqual(parse_response(client.received()).status, 200)
        self.trickle(client)
        self.assertTrue(self.is_let_in())
        self.goes(client)


class Answered(_Crowded):
    """Bodies that are still sent after their response."""

    def test_a_slow_rest_of_a_body_is_closed_without_another_response(self) -> None:
        client = self.send("/early")
        answer = client.received()
        self.assertEqual(parse_response(answer).status, 200)
        others = [self.busy() for _ in range(2)]
        for _ in range(3):
            self.app.clock.advance(DRAIN_IDLE_SECONDS - 1)
            client.send(b"x")
        self.assertTrue(self.is_let_in())
        self.assertEqual(client.received(), b"")
        for _ in range(2):
            self.app.clock.advance(DRAIN_IDLE_SECONDS - 1)
            client.send(b"x")
        self.app.clock.advance(2)
        self.assertTrue(client.transport.ended)
        for other in others:
            self.stays(other)
