"""A queue of waiting callers: clients in turn, each caller for a limited time, with one timer."""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.wait_queue import WaitQueue


class TooLate(Exception):
    pass


class Closed(Exception):
    pass


class Full(Exception):
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

    def test_clients_take_turns(self) -> None:
        served: list[str] = []
        for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
            self.line.join(name[0]).addCallback(partial(lambda name, _: served.append(name), name))
        for _ in range(6):
            self.line.serve("x")
        self.assertEqual(served, ["a1", "b1", "c1", "a2", "b2", "a3"])

    def test_a_client_whose_only_caller_has_left_has_no_turn(self) -> None:
        self.line.join("a")
        left, last = self.line.join("b"), self.line.join("c")
        left.addErrback(lambda _: None).cancel()
        self.line.serve("x")
        self.line.serve("y")
        self.assertEqual(self.successResultOf(last), "y")
        self.assertEqual(len(self.line), 0)


class Sizes(SynchronousTestCase):
    """Once callers exceed ten together, the client that has the most in the queue makes room."""

    def setUp(self) -> None:
        self.line: WaitQueue[str] = WaitQueue(Clock(), 5.0, TooLate, Full, 10)

    def test_the_last_caller_of_that_client_leaves(self) -> None:
        many = [self.line.join("many", 2) for _ in range(5)]
        other = self.line.join("other", 1)
        self.failureResultOf(many[4], Full)
        for waiting in (*many[:4], other):
            self.assertNoResult(waiting)

    def test_that_client_gets_nothing_more_into_a_full_queue(self) -> None:
        many = [self.line.join("many", 2) for _ in range(6)]
        self.failureResultOf(many[5], Full)
        self.assertNoResult(many[4])

    def test_what_counts_is_the_size_and_not_the_number(self) -> None:
        small = [self.line.join("small", 1) for _ in range(4)]
        large = self.line.join("large", 6)
        small.append(self.line.join("small", 1))
        self.failureResultOf(large, Full)
        self.assertNoResult(small[4])

    def test_a_caller_that_is_served_or_leaves_makes_room(self) -> None:
        first = self.line.join("a", 5)
        self.line.join("a", 5).addErrback(lambda _: None).cancel()
        self.line.serve("x")
        self.assertEqual(self.successResultOf(first), "x")
        self.assertNoResult(self.line.join("a", 10))

    def test_one_that_is_larger_than_the_queue_leaves_the_others_in_it(self) -> None:
        small = self.line.join("small", 3)
        self.failureResultOf(self.line.join("large", 11), Full)
        self.assertNoResult(small)

    def test_a_caller_may_join_again_as_soon_as_it_has_made_room(self) -> None:
        again: list[Deferred[str]] = []
        self.line.join("a", 9).addErrback(lambda _: again.append(self.line.join("a", 9)))
        other = self.line.join("b", 8)
        self.failureResultOf(again[0], Full)
        self.assertNoResult(other)
