"""While connections are being rejected, new ones are left waiting in the kernel: the accept throttle."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.http.connection import RejectedConnection
from project_service.http.limits import FIRST_ACCEPTS, PAUSE_SECONDS, AcceptThrottle
from tests.http.edge.busy_app import PATIENCE, SLOW, Busy


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
        self.busy.app.clock.advance(PATIENCE)
        self.assertIn(b" 503 ", late.received())
        self.assertTrue(self.port.accepts)

    def test_a_connection_rejected_for_lack_of_room_throttles(self) -> None:
        factory = self.busy.app._factory
        self.patch(factory._limit, "for_one_more", lambda: False)
        self.assertIsInstance(factory.buildProtocol(None), RejectedConnection)
        self.assertFalse(self.port.accepts)
