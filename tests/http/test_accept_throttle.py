"""While many connections are being refused, new ones are left waiting in the kernel: the accept throttle."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.http.overload.accept_throttle import FIRST_ACCEPTS, LONGEST_SECONDS, AcceptThrottle
from project_service.http.overload.admission import REFUSALS_PER_SECOND
from tests.http.busy_app import SLOW, Busy


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
        self.clock.advance(0.9 / REFUSALS_PER_SECOND)
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
        self.busy.fill()

    def refuse(self, headers: dict[str, str]) -> None:
        for _ in range(3):
            self.assertIn(b" 503 ", self.busy.ask(SLOW, headers).received())

    def test_a_refused_client_on_a_new_connection_each_time_throttles(self) -> None:
        self.refuse({"Connection": "close"})
        self.assertFalse(self.port.accepts)

    def test_a_refused_client_on_a_kept_connection_is_paused_there_instead(self) -> None:
        self.refuse({})
        self.assertTrue(self.port.accepts)

    def test_a_connection_refused_for_lack_of_room_throttles(self) -> None:
        for _ in range(3):
            self.assertIn(b" 503 ", self.busy.app.edge.turned_away())
        self.assertFalse(self.port.accepts)
