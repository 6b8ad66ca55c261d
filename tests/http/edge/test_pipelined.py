"""Pipelined requests: they cannot be used to evade the limits that hold for a single request."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.http.connection import CHUNKS_TURN, TURN
from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Router
from tests.fakes.common import App, Client, held, parse_response, raw_request
from tests.route_description import operation_at

BODY = 4_000_000
LARGE = 1_000_000


class _Client(TestCase):
    """A client of an application with a slow and a large response."""

    def setUp(self) -> None:
        self.answers: list[Deferred[None]] = []
        self.begun = 0
        router = Router()
        router.route("/slow", operation_at(), methods=("GET", "PUT"), key="optional")(self.slow)
        router.route("/large", operation_at(), methods=("GET",), key="optional")(self.large)
        self.client: Client = App(router).connect()

    async def slow(self, request: Request) -> Reply:
        await held(self.answers)
        return envelope({"taken": len(await request.body.read(BODY))})

    async def large(self, request: Request) -> Reply:
        self.begun += 1
        return Reply(200, (), b"x" * LARGE)

    def pushed(self) -> int:
        """How many bytes of a body are accepted at once."""
        taken = 0
        while self.client.transport.producerState == "producing" and taken < BODY:
            self.client.send(b"x" * 50_000)
            taken += 50_000
        return taken


class Pipelined(_Client):
    def test_a_body_that_nobody_reads_yet_is_not_accepted(self) -> None:
        head = raw_request("PUT", "/slow", {"Content-Length": str(BODY)}, None)
        self.client.send(raw_request("GET", "/slow", {}, None) + head)
        taken = self.pushed()
        self.answers[0].callback(None)
        taken += self.pushed()
        self.assertLess(taken, 500_000)
        parse_response(self.client.received())
        self.answers[1].callback(None)
        self.client.send(b"x" * (BODY - taken))
        self.assertIn(str(BODY).encode(), parse_response(self.client.received()).body)

    def test_reading_one_body_does_not_accept_the_next(self) -> None:
        first = raw_request("PUT", "/slow", {}, b"1" * 200_000)
        second = raw_request("PUT", "/slow", {"Content-Length": str(BODY)}, None)
        self.client.send(first + second + b"2" * 200_000)
        self.answers[0].callback(None)
        self.assertIn(b"200000", parse_response(self.client.received()).body)
        self.assertEqual(self.pushed(), 0)
        self.answers[1].callback(None)
        self.client.send(b"2" * (BODY - 200_000))
        self.assertIn(str(BODY).encode(), parse_response(self.client.received()).body)

    def test_requests_behind_a_slow_one_are_not_accepted_without_limit(self) -> None:
        one = raw_request("GET", "/slow", {}, None)
        sent = 1
        self.client.send(one)
        while self.client.transport.producerState == "producing" and sent < 10_000:
            self.client.send(one * 100)
            sent += 100
        self.assertLess(sent * len(one), 100_000)
        self.assertEqual(len(self.answers), 1)

    def test_nothing_after_a_malformed_request_is_parsed(self) -> None:
        self.client.send(raw_request("GET", "/slow", {}, None) + b"rubbish\r\n\r\n")
        for _ in range(3):
            self.client.send(raw_request("GET", "/large", {}, None))
        self.assertEqual(self.client.received(), b"", "each in its turn, the refusal too")
        self.answers[0].callback(None)
        raw = self.client.received()
        self.assertEqual((raw.count(b"HTTP/1.1 200"), raw.count(b"HTTP/1.1 400")), (1, 1))
        self.assertTrue(self.client.transport.ended)
        self.assertEqual(self.begun, 0)

    def test_a_client_that_does_not_read_gets_no_further_response(self) -> None:
        self.client.transport.full = True
        self.client.send(raw_request("GET", "/large", {}, None) * 10)
        self.assertEqual(self.begun, 1)
        for _ in range(9):
            self.client.connection.resumeProducing()
        self.assertEqual(self.begun, 10)
        self.assertEqual(self.client.received().count(b"HTTP/1.1 200"), 10)

    def test_nothing_after_connection_close_is_served(self) -> None:
        self.client.transport.full = True
        self.client.send(raw_request("GET", "/large", {"Connection": "close"}, None))
        self.assertTrue(self.client.transport.ended)
        self.client.send(raw_request("GET", "/large", {}, None))
        self.client.transport.drain()
        self.assertEqual(self.begun, 1)

    def test_a_body_is_not_awaited_forever_from_a_client_that_does_not_read(self) -> None:
        self.client.transport.full = True
        head = {"Content-Length": "10", "Expect": "100-continue"}
        self.client.send(raw_request("PUT", "/slow", head, None))
        self.answers[0].callback(None)
        for _ in range(4):
            self.client.clock.advance(61)
        self.assertIn(b" 408 ", self.client.received())
        self.assertTrue(self.client.transport.aborted)

    def test_a_client_that_does_not_read_is_aborted(self) -> None:
        self.client.transport.full = True
        self.client.send(raw_request("GET", "/large", {}, None) * 10)
        self.client.clock.advance(61)
        self.client.clock.advance(61)
        self.assertTrue(self.client.transport.aborted)
        self.assertEqual(self.begun, 1)


class Turns(_Client):
    """How much of many pipelined requests is served in one turn of the reactor."""

    def test_many_requests_at_once_leave_other_connections_their_turns(self) -> None:
        self.client.connection.dataReceived(raw_request("GET", "/large", {}, None) * 40)
        self.assertEqual(self.begun, TURN)
        self.client.clock.advance(0)
        self.assertEqual(self.begun, 40)
        self.assertEqual(self.client.clock.getDelayedCalls(), [self.client.connection._idle._call])

    def test_a_client_that_leaves_between_turns_is_not_served_further(self) -> None:
        self.client.connection.dataReceived(raw_request("GET", "/large", {}, None) * 40)
        self.client.hang_up()
        self.assertEqual(self.client.clock.getDelayedCalls(), [])
        self.assertEqual(self.begun, TURN)


class Chunks(TestCase):
    """Chunks of one byte cost as much as large ones, so the number that is parsed at once has to be limited."""

    def setUp(self) -> None:
        self.pieces: list[int] = []
        router = Router()
        router.route("/x", operation_at(), methods=("POST",), key="optional")(self.taken)
        self.client = App(router).connect()

    async def taken(self, request: Request) -> Reply:
        while chunk := await request.body.next_chunk():
            self.pieces.append(len(chunk))
        return envelope(sum(self.pieces))

    def test_chunks_that_arrive_together_are_read_together(self) -> None:
        self.client.send(raw_request("POST", "/x", {"Transfer-Encoding": "chunked"}, None))
        self.client.send(b"1\r\nx\r\n" * 100 + b"0\r\n\r\n")
        self.assertEqual(parse_response(self.client.received()).body, b'{"data":100,"error":null}')
        self.assertEqual(self.pieces, [100])

    def test_many_chunks_at_once_leave_other_connections_their_turns(self) -> None:
        self.client.send(raw_request("POST", "/x", {"Transfer-Encoding": "chunked"}, None))
        self.client.connection.dataReceived(b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
        self.assertLess(sum(self.pieces), 2 * CHUNKS_TURN)
        self.assertEqual(self.client.transport.producerState, "paused")
        self.client.clock.advance(0)
        self.assertEqual(parse_response(self.client.received()).body, b'{"data":20000,"error":null}')
        self.assertEqual(self.client.transport.producerState, "producing")
