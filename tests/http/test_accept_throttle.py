"""While many connections are being refused, new ones are left waiting in the kernel: the accept throttle."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.http.overload.accept_throttle import (
    FIRST_ACCEPTS,
    LONGEST_SECONDS,
    REFUSALS_PER_SECOND,
    AcceptThrottle,
)
from tests.http.busy_app import PATIENCE, SLOW, Busy


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
        self.throttle = AcceptThrottle([self.port], self.clock)

    def test_each_refusal_stops_accepting_for_its_share_of_a_second(self) -> None:
        self.throttle.refused()
        self.throttle.refused()
        self.assertFalse(self.port.accepts)
        self.clock.advance(1.9 / REFUSALS_PER_SECOND)
        self.assertFalse(self.port.accepts)
        self.clock.advance(0.2 / REFUSALS_PER_SECOND)
        self.assertTrue(self.port.accepts)
        self.assertEqual(self.port.numberAccepts, FIRST_ACCEPTS)

    def test_accepting_is_never_stopped_for_long(self) -> None:
        for _ in range(10_000):
            self.throttle.refused()
        self.clock.advance(LONGEST_SECONDS)
        self.assertTrue(self.port.accepts)

    def test_a_port_closed_meanwhile_is_not_read_again(self) -> None:
        for _ in range(3):
            self.throttle.refused()
        self.port.connected = False
        self.clock.advance(LONGEST_SECONDS)
        self.assertFalse(self.port.accepts)
        self.throttle.refused()
        self.clock.advance(LONGEST_SECONDS)


class Guarded(TestCase):
    """Which refusals of the edge count."""

    def setUp(self) -> None:
        self.busy = Busy()
        self.port = FakePort()
        self.busy.app.edge.throttle(AcceptThrottle([self.port], self.busy.app.clock))

    def test_a_request_that_has_waited_in_vain_does_not_throttle(self) -> None:
        self.busy.fill()
        late = self.busy.ask(SLOW, {"Connection": "close"})
        self.busy.app.clock.advance(PATIENCE)
        self.assertIn(b" 503 ", late.received())
        self.assertTrue(self.port.accepts)

    def test_a_connection_refused_for_lack_of_room_throttles(self) -> None:
        for _ in range(3):
            self.assertIn(b" 503 ", self.busy.app.edge.turned_away())
        self.assertFalse(self.port.accepts)
