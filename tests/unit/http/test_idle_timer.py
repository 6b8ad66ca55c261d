"""What has not moved for a while is dropped, and when."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.lifecycle import LOOKS, IdleTimer

SECONDS = 10.0


class Dropping(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.moved = 0
        self.dropped: list[float] = []
        self.idle = IdleTimer(
            self.clock, SECONDS, lambda: self.dropped.append(self.clock.seconds()), lambda: self.moved
        )
        self.idle.start()

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)

    def test_what_does_not_move_is_dropped_in_time(self) -> None:
        self.passes(SECONDS - 0.2)
        self.assertEqual(self.dropped, [])
        self.passes(0.3)
        self.assertEqual((len(self.dropped), self.idle.expired, self.clock.getDelayedCalls()), (1, True, []))

    def test_what_moves_a_little_after_it_was_first_looked_at_is_not_given_a_second_period(self) -> None:
        """A kernel sends a little more after its buffer was full; a client that reads nothing has not moved."""
        self.passes(0.1)
        self.moved += 1
        self.passes(SECONDS * (1 + 2 / LOOKS))
        self.assertEqual(len(self.dropped), 1)

    def test_a_touch_gives_another_period(self) -> None:
        expired: list[float] = []
        idle = IdleTimer(self.clock, SECONDS, lambda: expired.append(self.clock.seconds()))
        idle.start()
        self.passes(SECONDS / 2)
        idle.touch()
        self.passes(SECONDS - 0.2)
        self.assertEqual(expired, [])
        self.passes(0.3)
        self.assertEqual(len(expired), 1)
        self.passes(2 * SECONDS)
        self.assertEqual(len(expired), 1, "once")

    def test_what_moves_now_and_then_is_kept(self) -> None:
        for _ in range(5):
            self.passes(SECONDS * 0.9)
            self.moved += 1
        self.assertEqual(self.dropped, [])
        self.idle.stop()
        self.passes(2 * SECONDS)
        self.assertEqual((self.dropped, self.clock.getDelayedCalls()), ([], []))
