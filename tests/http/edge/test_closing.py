"""How connections end: lingering after the last response, and clients that close their own direction."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import ISSLTransport
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase
from zope.interface import alsoProvides

from project_service.http import connection, exchange
from project_service.http.admission import Limits
from project_service.http.connection import LINGER_SECONDS
from project_service.http.exchange import DRAIN_IDLE_SECONDS, RESET_SECONDS
from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Policy, Router
from tests.captured_log import captured_logs
from tests.fakes.common import App, Client, MemoryTransport, held, parse_response, raw_request
from tests.route_description import operation_at

LAST = raw_request("GET", "/quick", {"Connection": "close"}, None)
NO_REQUEST = b"GET /quick HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70_000


class SecureTransport(MemoryTransport):
    """The transport of TLS on top of a socket, which is closed with it."""

    def __init__(self) -> None:
        super().__init__()
        alsoProvides(self, ISSLTransport)
        self.transport = MemoryTransport()


class _Ending(TestCase):
    def setUp(self) -> None:
        router = Router()
        router.route("/quick", operation_at(), methods=("GET", "PUT"), key="optional")(self.quick)
        router.route("/wait", operation_at(), methods=("GET",), key="optional")(self.wait)
        self.app = App(router, connections=2)

    async def quick(self, request: Request) -> Reply:
        return envelope({})

    async def wait(self, request: Request) -> Reply:
        await Deferred()
        return envelope({})

    def sent(self, raw: bytes) -> Client:
        client = self.app.connect()
        client.send(raw)
        return client

    def state(self, client: Client) -> tuple[bool, bool]:
        """Whether the client has been sent the end, and whether nothing more is read from it."""
        return client.transport.ended, client.transport.closed


class Ending(_Ending):
    """A connection that the service closes: it lingers, that is, it is still read for a while."""

    def test_a_refused_client_is_read_for_a_while(self) -> None:
        client = self.sent(NO_REQUEST)
        self.assertEqual(parse_response(client.received()).status, 431)
        self.assertEqual(self.state(client), (True, False))
        self.assertEqual(client.transport.producerState, "producing")
        client.send(b"y" * 70_000 + b"\r\n\r\n" + LAST)
        self.app.clock.advance(LINGER_SECONDS - 0.1)
        self.assertEqual((client.received(), self.state(client)), (b"", (True, False)))
        self.app.clock.advance(0.1)
        self.assertEqual(self.state(client), (True, True))

    def test_also_if_it_does_not_read_the_response(self) -> None:
        client = self.app.connect()
        client.transport.full = True
        client.send(NO_REQUEST)
        self.assertEqual((client.transport.producerState, self.state(client)), ("producing", (True, False)))

    def test_also_if_it_sends_more_after_its_last_request(self) -> None:
        self.assertEqual(self.state(self.sent(LAST * 2_000)), (True, False))

    def test_also_if_its_body_was_not_waited_for(self) -> None:
        """It was refused early, and is still sending when the service stops, or for longer than it is read."""
        for end in (self.app.close_connections, lambda: self.app.clock.advance(DRAIN_IDLE_SECONDS)):
            client = self.sent(raw_request("PUT", "/quick", {"Content-Length": "3000000"}, None))
            self.assertEqual(parse_response(client.received()).status, 200)
            end()
            self.assertEqual(self.state(client), (True, False))
            client.send(b"more")
            self.app.clock.advance(LINGER_SECONDS)
            self.assertEqual(self.state(client), (True, True))

    def test_a_client_that_has_sent_everything_does_not_linger(self) -> None:
        self.assertEqual(self.state(self.sent(LAST)), (True, True))
        idle = self.sent(b"")
        self.app.clock.advance(61)
        self.assertEqual(self.state(idle), (True, True))

    def test_with_tls_the_socket_is_closed_after_that_time_too(self) -> None:
        refused, idle = SecureTransport(), SecureTransport()
        self.app.connect(transport=refused).send(NO_REQUEST)
        self.assertEqual((refused.ended, refused.transport.closed), (True, False))
        self.app.clock.advance(LINGER_SECONDS - 0.1)
        self.assertFalse(refused.transport.closed)
        self.app.clock.advance(0.1)
        self.assertTrue(refused.transport.closed)
        self.app.connect(transport=idle)
        self.app.clock.advance(61)
        self.assertTrue(idle.transport.closed)

    def test_a_client_that_leaves_leaves_no_timer(self) -> None:
        self.sent(NO_REQUEST).hang_up()
        self.assertEqual(self.app.clock.getDelayedCalls(), [])

    def test_a_lingering_connection_does_not_keep_others_out(self) -> None:
        waiting, refused = self.sent(raw_request("GET", "/wait", {}, None)), self.sent(NO_REQUEST)
        self.assertEqual(self.app.connect().request("GET", "/quick").status, 200)
        self.assertEqual((self.state(waiting), self.state(refused)), ((False, False), (True, True)))


class TooMany(_Ending):
    """Connections that are refused because there are too many do not count as connections."""

    def setUp(self) -> None:
        super().setUp()
        for _ in range(2):
            self.sent(raw_request("GET", "/wait", {}, None))

    def test_a_connection_refused_as_too_many_lingers_too(self) -> None:
        client = self.sent(LAST)
        self.assertEqual(parse_response(client.received()).status, 503)
        self.assertEqual(self.state(client), (True, False))
        self.app.clock.advance(LINGER_SECONDS)
        self.assertEqual(self.state(client), (True, True))
        client.hang_up()

    def test_a_refused_connection_without_a_tls_handshake_is_aborted(self) -> None:
        client = self.app.connect(transport=SecureTransport())
        self.app.clock.advance(LINGER_SECONDS)
        self.assertTrue(client.transport.aborted)

    def test_web_pages_of_any_origin_may_read_the_refusal(self) -> None:
        for client in (self.sent(LAST), self.sent(b"rubbish\r\n\r\n")):
            self.assertEqual(parse_response(client.received()).header("access-control-allow-origin"), "*")

    def test_many_refusals_are_one_line_in_the_log(self) -> None:
        with captured_logs() as events:
            for _ in range(10):
                self.sent(LAST)
        self.assertEqual([formatEvent(event) for event in events], ["overloaded: 1 refused"])


WAIT = raw_request("GET", "/storage/wait", {}, None)
READ = "/storage/read"


class HalfClosed(TestCase):
    def setUp(self) -> None:
        self.begun: list[Deferred[None]] = []
        self.stored: list[bytes] = []
        router = Router().of_part(Policy(admission="storage"))
        router.route("/storage/wait", operation_at(), methods=("GET",), key="optional")(self.wait)
        router.route(READ, operation_at(), methods=("PUT",), key="optional")(self.read)
        router.route("/storage/watch", operation_at(), methods=("PUT",), key="optional")(self.watch)
        self.app = App(router, limits={"storage": Limits(2, 5.0)})

    async def wait(self, request: Request) -> Reply:
        await held(self.begun)
        return envelope({})

    async def read(self, request: Request) -> Reply:
        body = await request.read(1000)
        await held(self.begun)
        self.stored.append(body)
        return envelope({})

    async def watch(self, request: Request) -> Reply:
        request.end_with_client()
        return await self.read(request)

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

    def test_one_that_only_sends_no_more_gets_its_answer_from_a_handler_that_ends_with_its_client(
        self,
    ) -> None:
        self.patch(connection, "is_reset", lambda transport: False)
        client = self.half_closed(raw_request("PUT", "/storage/watch", {}, b"ab"))
        self.app.clock.advance(3 * RESET_SECONDS)
        self.answer()
        received = client.received()
        self.assertTrue(received.startswith(exchange.CONTINUE))
        self.assertEqual(parse_response(received.removeprefix(exchange.CONTINUE)).status, 200)
        self.assertEqual((self.stored, client.transport.closed), ([b"ab"], True))
        self.app.clock.advance(RESET_SECONDS)
        self.assertFalse(client.transport.aborted)

    def test_one_that_has_left_ends_it_however_late_its_reset_comes(self) -> None:
        gone: list[bool] = []
        self.patch(connection, "is_reset", lambda transport: bool(gone))
        for part, rest in ((b"", b""), (b"a", b"b")):
            whole = raw_request("PUT", "/storage/watch", {}, b"ab")
            client = self.app.connect()
            client.send(whole.removesuffix(part + rest) if part else whole)
            client.send(part)
            client.send(rest)
            client.half_close()
            for _ in range(3):
                self.app.clock.advance(RESET_SECONDS)
                self.assertFalse(client.transport.aborted)
            gone.append(True)
            self.app.clock.advance(RESET_SECONDS)
            self.assertTrue(client.transport.aborted)
            client.hang_up()
            gone.clear()
            self.answer()
            self.assertEqual(self.stored, [])

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
