"""How many connections there may be, and how those beyond are rejected."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.http.connection import RejectedConnection
from project_service.http.limits import FIRST_ACCEPTS, PAUSE_SECONDS, AcceptThrottle
from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Router
from tests.fakes.common import App, Client, held, parse_response, raw_request
from tests.http.edge.busy_app import SLOW, TIMEOUT, Busy
from tests.route_description import operation_at


class Crowded(TestCase):
    def setUp(self) -> None:
        self.answers: list[Deferred[None]] = []
        router = Router()
        router.route("/slow", operation_at(), methods=("GET",), key="optional")(self.slow)
        router.route("/quick", operation_at(), methods=("GET",), key="optional")(self.quick)
        self.app = App(router, connections=3)

    async def slow(self, request: Request) -> Reply:
        await held(self.answers)
        return envelope({})

    async def quick(self, request: Request) -> Reply:
        return envelope({})

    def connect(self) -> Client:
        self.app.clock.advance(1)
        return self.app.connect()

    def busy(self) -> Client:
        client = self.connect()
        client.send(raw_request("GET", "/slow", {}, None))
        return client

    def is_open(self, client: Client) -> bool:
        return not client.transport.ended

    def test_the_longest_idle_connection_makes_room(self) -> None:
        first, second, third = (self.connect() for _ in range(3))
        self.assertEqual(first.request("GET", "/quick").status, 200)
        new = self.connect()
        self.assertEqual(
            [self.is_open(one) for one in (first, second, third, new)], [True, False, True, True]
        )
        self.assertEqual(new.request("GET", "/quick").status, 200)

    def test_an_incomplete_head_counts_as_idle(self) -> None:
        half = self.connect()
        half.send(b"GET /quick HTTP/1.1\r\nHost:")
        others = [self.connect() for _ in range(2)]
        self.connect()
        self.assertFalse(self.is_open(half))
        self.assertTrue(all(self.is_open(one) for one in others))

    def test_a_connection_being_served_is_kept(self) -> None:
        busy, idle, other = self.busy(), self.connect(), self.busy()
        self.connect()
        self.assertEqual([self.is_open(one) for one in (busy, idle, other)], [True, False, True])
        self.answers[0].callback(None)
        self.assertEqual(parse_response(busy.received()).status, 200)

    def test_if_all_are_being_served_the_new_connection_gets_503(self) -> None:
        served = [self.busy() for _ in range(3)]
        refused = self.connect()
        answer = parse_response(refused.received())
        self.assertEqual((answer.status, answer.header("retry-after")), (503, "2"))
        self.assertEqual(json.loads(answer.body)["error"]["code"], "overloaded")
        self.assertFalse(self.is_open(refused))
        self.assertTrue(all(self.is_open(one) for one in served))
        shown = self.app.metrics.exposition().decode()
        self.assertIn('requests_refused_total{part="-",reason="connections"} 1.0', shown)

    def test_a_connection_that_leaves_makes_room(self) -> None:
        served = [self.busy() for _ in range(3)]
        served[0].hang_up()
        self.assertTrue(self.is_open(self.connect()))

    def test_being_told_to_close_twice_does_not_extend_the_time(self) -> None:
        client = self.connect()
        self.app.close_connections()
        self.app.clock.advance(40)
        self.app.close_connections()
        self.assertFalse(client.transport.aborted)
        self.app.clock.advance(20)
        self.assertTrue(client.transport.aborted)


class FakePort:
    """A port that records whether it accepts connections."""

    def __init__(self) -> None:
        self.connected = True
        self.numberAccepts = 1000
        self.accepts = True

    def stopReading(self) -> None:
        self.accepts = False

    def startReading(self) -> None:
        assert self.connected, "a closed port must not be read"
        self.accepts = True


class Closing(TestCase):
    """The throttle by itself."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.port = FakePort()
        self.throttle = AcceptThrottle(self.clock)
        self.throttle.ports = [self.port]

    def test_rejections_stop_accepting_for_a_moment(self) -> None:
        for _ in range(10_000):
            self.throttle.rejected()
        self.assertFalse(self.port.accepts)
        self.clock.advance(0.9 * PAUSE_SECONDS)
        self.assertFalse(self.port.accepts)
        self.clock.advance(0.2 * PAUSE_SECONDS)
        self.assertTrue(self.port.accepts)
        self.assertEqual(self.port.numberAccepts, FIRST_ACCEPTS)

    def test_a_port_closed_meanwhile_is_not_read_again(self) -> None:
        self.throttle.rejected()
        self.port.connected = False
        self.clock.advance(PAUSE_SECONDS)
        self.assertFalse(self.port.accepts)
        self.throttle.rejected()
        self.clock.advance(PAUSE_SECONDS)


class Guarded(TestCase):
    """Which rejections count."""

    def setUp(self) -> None:
        self.busy = Busy()
        self.port = FakePort()
        self.busy.app._factory.throttle.ports = [self.port]

    def test_a_request_that_has_waited_in_vain_does_not_throttle(self) -> None:
        self.busy.fill()
        late = self.busy.ask(SLOW, {"Connection": "close"})
        self.busy.app.clock.advance(TIMEOUT)
        self.assertIn(b" 503 ", late.received())
        self.assertTrue(self.port.accepts)

    def test_a_connection_rejected_for_lack_of_room_throttles(self) -> None:
        factory = self.busy.app._factory
        self.patch(factory._limit, "for_one_more", lambda: False)
        self.assertIsInstance(factory.buildProtocol(None), RejectedConnection)
        self.assertFalse(self.port.accepts)
