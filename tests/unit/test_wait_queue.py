"""A queue of waiting requests: in order, each for a limited time, with one timer."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.wait_queue import WaitQueue


class TooLate(Exception):
    pass


class Closed(Exception):
    pass


class TestLine(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.line: WaitQueue[str] = WaitQueue(self.clock, 5.0, TooLate)

    def joined_after(self, seconds: float) -> Deferred[str]:
        self.clock.advance(seconds)
        return self.line.join()

    def test_waiters_are_served_in_order(self) -> None:
        first, second = self.line.join(), self.line.join()
        self.line.serve("a")
        self.assertEqual(self.successResultOf(first), "a")
        self.assertNoResult(second)
        self.assertEqual(len(self.line), 1)

    def test_each_waiter_has_its_own_timeout(self) -> None:
        first = self.line.join()
        second = self.joined_after(2.0)
        self.clock.advance(2.9)
        self.assertNoResult(first)
        self.clock.advance(0.1)
        self.failureResultOf(first, TooLate)
        self.clock.advance(1.9)
        self.assertNoResult(second)
        self.clock.advance(0.1)
        self.failureResultOf(second, TooLate)
        self.assertEqual(len(self.line), 0)

    def test_one_timer_serves_all_waiters_and_ends_with_the_last(self) -> None:
        for _ in range(50):
            self.line.join().addErrback(lambda _: None)
            self.clock.advance(0.01)
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        for _ in range(50):
            self.line.serve("a")
        self.clock.advance(5.0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_an_earlier_timer_does_not_shorten_later_waits(self) -> None:
        self.line.join()
        self.line.serve("a")
        late = self.joined_after(4.0)
        self.clock.pump([1.0, 3.9])
        self.assertNoResult(late)
        self.clock.advance(0.1)
        self.failureResultOf(late, TooLate)

    def test_a_cancelled_waiter_is_not_served(self) -> None:
        first, second = self.line.join(), self.line.join()
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.line.serve("a")
        self.assertEqual(self.successResultOf(second), "a")

    def test_a_waiter_may_join_again_from_its_timeout(self) -> None:
        again: list[Deferred[str]] = []
        self.line.join().addErrback(lambda _: again.append(self.line.join()))
        self.clock.advance(5.0)
        self.assertEqual((len(again), len(self.line), len(self.clock.getDelayedCalls())), (1, 1, 1))

    def test_closing_fails_all_waiters(self) -> None:
        waiting = [self.line.join(), self.line.join()]
        self.line.close(Closed)
        for one in waiting:
            self.failureResultOf(one, Closed)
        self.assertEqual(self.clock.getDelayedCalls(), [])
