"""Closing a connection while its client is still sending: a reset could destroy the response before it is read."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import ISSLTransport
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase
from zope.interface import alsoProvides

from project_service.http.exchange import DRAIN_IDLE_SECONDS
from project_service.http.inbound import Inbound
from project_service.http.outbound import Reply, envelope
from project_service.http.protocol.base_channel import LINGER_SECONDS
from project_service.http.router import Router
from tests.fakes import App, Client, MemoryTransport, parse_response, raw_request
from tests.said import captured_logs
from tests.told import told

LAST = raw_request("GET", "/quick", {"Connection": "close"}, None)
NO_REQUEST = b"GET /quick HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70_000


class SecureTransport(MemoryTransport):
    """The transport of TLS on top of a socket, which is closed with it."""

    def __init__(self) -> None:
        super().__init__()
        alsoProvides(self, ISSLTransport)
        self.transport = MemoryTransport()


class _Ending(TestCase):
    parser = "httptools"

    def setUp(self) -> None:
        self.patch(App, "parser", self.parser)
        router = Router()
        router.route("/quick", told(), methods=("GET", "PUT"), key="optional")(self.quick)
        router.route("/wait", told(), methods=("GET",), key="optional")(self.wait)
        self.app = App(router, connections=2)

    async def quick(self, inbound: Inbound) -> Reply:
        return envelope({})

    async def wait(self, inbound: Inbound) -> Reply:
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
    def test_who_was_refused_is_read_for_a_while(self) -> None:
        client = self.sent(NO_REQUEST)
        self.assertEqual(parse_response(client.received()).status, 431)
        self.assertEqual(self.state(client), (True, False))
        self.assertEqual(client.transport.producerState, "producing")
        client.send(b"y" * 70_000 + b"\r\n\r\n" + LAST)
        self.app.clock.advance(LINGER_SECONDS - 0.1)
        self.assertEqual((client.received(), self.state(client)), (b"", (True, False)))
        self.app.clock.advance(0.1)
        self.assertEqual(self.state(client), (True, True))

    def test_also_where_it_takes_nothing_of_what_it_is_told(self) -> None:
        client = self.app.connect()
        client.transport.full = True
        client.send(NO_REQUEST)
        self.assertEqual((client.transport.producerState, self.state(client)), ("producing", (True, False)))

    def test_also_who_sends_more_behind_its_last_request(self) -> None:
        self.assertEqual(self.state(self.sent(LAST * 2_000)), (True, False))

    def test_also_whose_body_was_not_waited_for(self) -> None:
        """Refused early, and still sending when the service stops, or for longer than it is listened to."""
        for end in (self.app.close_connections, lambda: self.app.clock.advance(DRAIN_IDLE_SECONDS)):
            client = self.sent(raw_request("PUT", "/quick", {"Content-Length": "3000000"}, None))
            self.assertEqual(parse_response(client.received()).status, 200)
            end()
            self.assertEqual(self.state(client), (True, False))
            client.send(b"more")
            self.app.clock.advance(LINGER_SECONDS)
            self.assertEqual(self.state(client), (True, True))

    def test_who_has_sent_all_is_not(self) -> None:
        self.assertEqual(self.state(self.sent(LAST)), (True, True))
        idle = self.sent(b"")
        self.app.clock.advance(61)
        self.assertEqual(self.state(idle), (True, True))

    def test_over_tls_nobody_is_waited_for_longer(self) -> None:
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

    def test_who_leaves_leaves_nothing_behind(self) -> None:
        self.sent(NO_REQUEST).hang_up()
        self.assertEqual(self.app.clock.getDelayedCalls(), [])

    def test_it_keeps_nobody_out(self) -> None:
        waiting, refused = self.sent(raw_request("GET", "/wait", {}, None)), self.sent(NO_REQUEST)
        self.assertEqual(self.app.connect().request("GET", "/quick").status, 200)
        self.assertEqual((self.state(waiting), self.state(refused)), ((False, False), (True, True)))


class EndingOnTwisted(Ending):
    parser = "twisted"


class TooMany(_Ending):
    """Connections that are refused because there are too many do not count as connections."""

    def setUp(self) -> None:
        super().setUp()
        for _ in range(2):
            self.sent(raw_request("GET", "/wait", {}, None))

    def test_is_read_for_a_while_too(self) -> None:
        client = self.sent(LAST)
        self.assertEqual(parse_response(client.received()).status, 503)
        self.assertEqual(self.state(client), (True, False))
        self.app.clock.advance(LINGER_SECONDS)
        self.assertEqual(self.state(client), (True, True))
        client.hang_up()

    def test_who_does_not_shake_hands_is_cut_off(self) -> None:
        client = self.app.connect(transport=SecureTransport())
        self.app.clock.advance(LINGER_SECONDS)
        self.assertTrue(client.transport.aborted)

    def test_pages_may_read_it(self) -> None:
        for client in (self.sent(LAST), self.sent(b"rubbish\r\n\r\n")):
            self.assertEqual(parse_response(client.received()).header("access-control-allow-origin"), "*")

    def test_many_are_one_line_in_the_log(self) -> None:
        with captured_logs() as events:
            for _ in range(10):
                self.sent(LAST)
        self.assertEqual([formatEvent(event) for event in events], ["overloaded: 1 refused"])
