"""Deferreds: work that goes on after its caller has left, work in the background, time limits, several at once."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.database.connection import DatabaseGone
from project_service.lifecycle import SharedRun, all_of, background, shield, start, with_timeout
from project_service.storage.s3.errors import StoreUnreachable
from tests.captured_log import captured_logs
from tests.fakes.common import held


class Shielded(TestCase):
    """Work that is not cancelled with its caller."""

    def left_alone(self, failure: Exception) -> int:
        """Runs work that fails after its caller has left, and returns how many errors were logged."""
        going: Deferred[None] = Deferred()

        async def work() -> None:
            await going

        waiting = shield(work())
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        going.errback(failure)
        return len(self.flushLoggedErrors())

    def test_an_error_after_the_caller_has_left_is_logged(self) -> None:
        self.assertEqual(self.left_alone(RuntimeError("ours")), 1)

    def test_a_refusal_after_the_caller_has_left_is_not_logged(self) -> None:
        self.assertEqual(self.left_alone(errors.request_timeout()), 0)

    def test_an_outage_after_the_caller_has_left_is_not_logged(self) -> None:
        for outage in (DatabaseGone("lost"), StoreUnreachable()):
            self.assertEqual(self.left_alone(outage), 0)


class Alone(TestCase):
    def left_to_itself(self, failure: Exception) -> list[str]:
        async def work() -> None:
            raise failure

        with captured_logs() as events:
            background(work(), "sweeping")
        return [formatEvent(event) for event in events]

    def test_an_error_of_background_work_is_logged(self) -> None:
        self.assertEqual(self.left_to_itself(KeyError("x")), ["sweeping failed"])
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)

    def test_cancelled_background_work_is_not_logged(self) -> None:
        self.assertEqual(self.left_to_itself(CancelledError()), [])


class InTime(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.going: Deferred[str] = Deferred()
        self.waiting = with_timeout(self.clock, 5.0, self.going, TimeoutError)

    def test_a_result_in_time_is_passed_on(self) -> None:
        self.going.callback("done")
        self.assertEqual(self.successResultOf(self.waiting), "done")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_late_result_is_cancelled_and_becomes_the_given_error(self) -> None:
        self.clock.advance(5)
        self.failureResultOf(self.waiting, TimeoutError)

    def test_cancelling_by_the_caller_is_not_reported_as_late(self) -> None:
        self.waiting.cancel()
        self.failureResultOf(self.waiting, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_work_that_fails_its_own_way_when_cancelled_keeps_its_error(self) -> None:
        stubborn: Deferred[None] = Deferred(lambda waiting: waiting.errback(KeyError("x")))
        waiting = with_timeout(self.clock, 5.0, stubborn, TimeoutError)
        self.clock.advance(5)
        self.failureResultOf(waiting, KeyError)
        self.failureResultOf(self.waiting, TimeoutError)


class Together(TestCase):
    def test_the_first_failure_of_several_is_raised_and_later_ones_are_ignored(self) -> None:
        going: list[Deferred[None]] = [Deferred(), Deferred(), Deferred()]

        async def work(one: Deferred[None]) -> None:
            await one

        waiting = start(all_of(work(one) for one in going))
        going[0].callback(None)
        self.assertNoResult(waiting)
        going[1].errback(KeyError("first"))
        self.failureResultOf(waiting, KeyError)
        going[2].errback(ValueError("second"))
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_several_end_with_the_last(self) -> None:
        last: Deferred[None] = Deferred()

        async def wait() -> None:
            await last

        waiting = start(all_of([wait(), wait()]))
        self.assertNoResult(waiting)
        last.callback(None)
        self.assertIsNone(self.successResultOf(waiting))


class Shared(TestCase):
    """Work that is done once for all who ask at the same time."""

    def setUp(self) -> None:
        self.runs: list[Deferred[None]] = []
        self.shared = SharedRun(self.work, "work")

    async def work(self) -> int:
        number = len(self.runs)
        await held(self.runs)
        return number

    def test_callers_during_a_run_share_the_next_one(self) -> None:
        first = self.shared.join()
        later = [self.shared.join() for _ in range(100)]
        self.runs[0].callback(None)
        self.assertEqual(self.successResultOf(first), 0)
        for one in later:
            self.assertNoResult(one)
        self.runs[1].callback(None)
        self.assertEqual([self.successResultOf(one) for one in later], [1] * 100)
        self.assertEqual(len(self.runs), 2)

    def test_a_failure_reaches_all_who_wait_and_does_not_stop_later_runs(self) -> None:
        first = self.shared.join()
        later = [self.shared.join() for _ in range(2)]
        self.runs[0].callback(None)
        self.successResultOf(first)
        self.runs[1].errback(ValueError())
        for one in later:
            self.failureResultOf(one, ValueError)
        again = self.shared.join()
        self.runs[2].callback(None)
        self.assertEqual(self.successResultOf(again), 2)

    def test_a_caller_that_leaves_stops_nothing_and_is_forgotten(self) -> None:
        leaver, other = self.shared.join(), self.shared.join()
        for one in (leaver, other):
            one.cancel()
            self.failureResultOf(one, CancelledError)
        self.runs[0].callback(None)
        self.assertEqual(len(self.runs), 1, "nobody is left for another run")
        stayer = self.shared.join()
        self.runs[1].callback(None)
        self.successResultOf(stayer)

    def test_work_that_is_done_at_once(self) -> None:
        async def at_once() -> int:
            return 7

        shared = SharedRun(at_once, "work")
        for _ in range(3):
            self.assertEqual(self.successResultOf(shared.join()), 7)
