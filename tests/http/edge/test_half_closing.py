"""Clients that close their own direction after a request, and read: they get their answers (RFC 9112 section 9.6)."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.http import connection, exchange
from project_service.http.admission import Limits
from project_service.http.exchange import RESET_SECONDS
from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Policy, Router
from tests.fakes.common import App, Client, held, parse_response, raw_request
from tests.route_description import operation_at

WAIT = raw_request("GET", "/storage/wait", {}, None)
READ = "/storage/read"


class HalfClosed(TestCase):
    def setUp(self) -> None:
        self.begun: list[Deferred[None]] = []
        self.stored: list[bytes] = []
        router = Router().of_part(Policy(admission="storage"))
        router.route("/storage/wait", operation_at(), methods=("GET",), key="optional")(self.wait)
        router.route(READ, operation_at(), methods=("PUT",), key="optional")(self.read)
        self.app = App(router, limits={"storage": Limits(2, 5.0)})

    async def wait(self, request: Request) -> Reply:
        await held(self.begun)
        return envelope({})

    async def read(self, request: Request) -> Reply:
        body = await request.read(1000)
        await held(self.begun)
        self.stored.append(body)
        return envelope({})

    def half_closed(self, raw: bytes) -> Client:
        client = self.app.connect()
        client.send(raw)
        client.half_close()
        return client

    def answer(self) -> None:
        while self.begun:
            self.begun.pop(0).callback(None)
        self.app.clock.advance(0)

    def test_a_whole_request_is_answered_and_the_connection_closes_then(self) -> None:
        client = self.half_closed(WAIT)
        self.assertFalse(client.transport.ended)
        self.answer()
        self.assertEqual(parse_response(client.received()).status, 200)
        self.assertTrue(client.transport.closed)

    def test_an_upload_that_has_arrived_whole_is_stored(self) -> None:
        chunks = raw_request("PUT", READ, {"Transfer-Encoding": "chunked"}, None) + b"2\r\nab\r\n0\r\n\r\n"
        for raw in (raw_request("PUT", READ, {}, b"ab"), chunks):
            client = self.half_closed(raw)
            self.answer()
            self.assertEqual((parse_response(client.received()).status, self.stored.pop()), (200, b"ab"))
            self.assertTrue(client.transport.closed)

    def test_pipelined_requests_are_all_answered(self) -> None:
        client = self.half_closed(WAIT * 3)
        for _ in range(3):
            self.assertFalse(client.transport.ended)
            self.begun.pop(0).callback(None)
            self.assertEqual(parse_response(client.received()).status, 200)
            self.app.clock.advance(0)
        self.assertTrue(client.transport.closed)

    def test_a_request_that_is_not_whole_ends_the_connection(self) -> None:
        for raw in (
            b"",
            b"GET / HT",
            WAIT[:-2],
            raw_request("PUT", READ, {"Content-Length": "3"}, None) + b"ab",
        ):
            client = self.half_closed(raw)
            self.assertTrue(client.transport.closed, raw)
            client.hang_up()
            self.answer()
            self.assertEqual((client.received(), self.stored), (b"", []))

    def test_it_ends_it_only_after_the_answers_to_those_before_it(self) -> None:
        client = self.half_closed(WAIT + WAIT[:-2])
        self.answer()
        self.assertEqual(parse_response(client.received()).status, 200)
        self.assertTrue(client.transport.closed)

    def test_an_idle_connection_closes(self) -> None:
        client = self.app.connect()
        client.send(WAIT)
        self.answer()
        client.half_close()
        self.assertTrue(client.transport.closed)

    def test_what_is_no_request_is_refused_all_the_same(self) -> None:
        client = self.half_closed(b"rubbish\r\n\r\n")
        self.assertEqual(parse_response(client.received()).status, 400)
        self.assertTrue(client.transport.closed)

    def test_the_rest_of_a_body_is_not_waited_for_after_an_early_answer(self) -> None:
        broken = raw_request("PUT", "/nowhere", {"Transfer-Encoding": "chunked"}, None) + b"3\r\nabcd"
        part = raw_request("PUT", "/nowhere", {"Content-Length": "9"}, None) + b"abc"
        for raw in (broken, part, WAIT + broken):
            client = self.half_closed(raw)
            self.answer()
            self.assertIn(b" 404 ", client.received())
            self.assertTrue(client.transport.closed, raw)

    def test_a_client_that_has_left_loses_its_turn(self) -> None:
        """Its half-closing and its leaving look alike, until it refuses what it is sent."""
        for gone in (True, False):
            self.patch(connection, "is_reset", lambda transport, gone=gone: gone)
            for _ in range(2):
                self.app.connect().send(WAIT)
            client = self.half_closed(WAIT)
            self.assertEqual(client.received(), exchange.CONTINUE)
            self.app.clock.advance(RESET_SECONDS)
            self.assertEqual(client.transport.aborted, gone)
            if gone:
                client.hang_up()
            self.answer()
            self.assertEqual(not gone, b" 200 " in client.received())
            self.assertEqual(self.app.edge.classes["storage"].served, 0)
