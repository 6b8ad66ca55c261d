"""Components start and stop in order even if one fails, loops survive errors; backoff and helpers for Deferreds."""

from __future__ import annotations

import gc
from functools import partial
from weakref import ref

import psycopg2
from attrs import define
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.database.connection import DatabaseGone
from project_service.database.errors import outage_of
from project_service.lifecycle import (
    CHILD_PAUSES,
    Backoff,
    ClosedLast,
    Components,
    Every,
    ServiceComponent,
    SharedRun,
    all_of,
    background,
    in_thread_of,
    shield,
    start,
    to_its_end,
    with_timeout,
)
from project_service.storage.s3.errors import StoreUnreachable
from tests.captured_log import captured_logs
from tests.fakes.common import held


@define
class FakeComponent:
    """A part that records its calls, and fails if its name is in ``broken``."""

    name: str
    done: list[str]
    broken: tuple[str, ...] = ()

    async def start(self) -> None:
        self.done.append(f"start {self.name}")
        if f"start {self.name}" in self.broken:
            raise KeyError(self.name)

    async def stop(self) -> None:
        self.done.append(f"stop {self.name}")
        if f"stop {self.name}" in self.broken:
            raise ValueError(self.name)


class InOrder(TestCase):
    def setUp(self) -> None:
        self.done: list[str] = []

    def parts(self, *broken: str) -> Components:
        return Components([FakeComponent(name, self.done, broken) for name in "abc"])

    def test_parts_are_stopped_in_reverse_order_starting_with_adopted_ones(self) -> None:
        parts = self.parts()
        self.successResultOf(start(parts.start()))
        parts.adopt(FakeComponent("d", self.done))
        self.successResultOf(start(parts.stop()))
        self.assertEqual(" ".join(self.done), "start a start b start c stop d stop c stop b stop a")
        self.successResultOf(start(parts.stop()))
        self.assertEqual(len(self.done), 7, "once is enough")

    def test_a_part_that_fails_to_start_stops_those_before_it(self) -> None:
        self.failureResultOf(start(self.parts("start b").start()), KeyError)
        self.assertEqual(" ".join(self.done), "start a start b stop a")

    def test_a_part_that_fails_to_stop_is_logged_and_the_others_stop(self) -> None:
        parts = self.parts("stop b")
        self.successResultOf(start(parts.start()))
        self.successResultOf(start(parts.stop()))
        self.assertEqual(" ".join(self.done[3:]), "stop c stop b stop a")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)


class Slow(Service):
    """A part that has stopped only when a test says so."""

    def __init__(self) -> None:
        self.gone: Deferred[None] = Deferred()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return self.gone


class AsComponents(TestCase):
    """Twisted services, and things that only need closing, as components."""

    def test_stopping_a_service_waits_for_it(self) -> None:
        service = Slow()
        part = ServiceComponent(service)
        self.successResultOf(start(part.start()))
        self.assertTrue(service.running)
        stopping = start(part.stop())
        self.assertFalse(service.running)
        self.assertNoResult(stopping)
        service.gone.callback(None)
        self.successResultOf(stopping)

    def test_stopping_may_cancel_what_a_service_has_under_way(self) -> None:
        clock = Clock()
        cancelled: list[Deferred[None]] = []

        async def work() -> None:
            await Deferred[None](cancelled.append)

        part = ServiceComponent(Every(5.0, work, clock, "counting", outage_of), cancels=True)
        for seconds in (5, 1):
            self.successResultOf(start(part.start()))
            clock.advance(seconds)
            self.successResultOf(start(part.stop()))
        self.assertEqual(len(cancelled), 1, "there is nothing to cancel during a pause")
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_a_service_that_returns_nothing_has_stopped_at_once(self) -> None:
        self.successResultOf(start(ServiceComponent(Service()).stop()))

    def test_closing_is_waited_for(self) -> None:
        service = Slow()
        part = ClosedLast(service.stopService)
        self.successResultOf(start(part.start()))
        stopping = start(part.stop())
        self.assertNoResult(stopping)
        service.gone.callback(None)
        self.successResultOf(stopping)


class FullDisk(psycopg2.OperationalError):
    pgcode = "53100"


class Loops(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.runs: list[Deferred[None]] = []
        self.loop = Every(5.0, self.work, self.clock, "counting", outage_of)

    async def work(self) -> None:
        self.runs.append(Deferred())
        await self.runs[-1]

    def test_the_interval_counts_from_the_end_of_a_run(self) -> None:
        self.loop.startService()
        self.clock.advance(4.9)
        self.assertEqual(len(self.runs), 0)
        self.clock.advance(20)
        self.clock.advance(20)
        self.assertEqual(len(self.runs), 1)
        self.runs[0].callback(None)
        self.clock.advance(4.9)
        self.assertEqual(len(self.runs), 1)
        self.clock.advance(0.1)
        self.assertEqual(len(self.runs), 2)

    def test_a_failure_is_logged_and_the_loop_goes_on(self) -> None:
        self.loop.startService()
        self.clock.advance(5)
        with captured_logs() as events:
            self.runs[0].errback(KeyError("x"))
        self.assertEqual(
            [formatEvent(event) for event in events], ["counting failed; it will be tried again"]
        )
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)
        self.clock.advance(5)
        self.assertEqual(len(self.runs), 2)

    def test_an_outage_is_logged_without_a_traceback(self) -> None:
        self.loop.startService()
        with captured_logs() as events:
            for number, outage in enumerate(
                (errors.database_unavailable(), DatabaseGone("timed out"), StoreUnreachable(), FullDisk())
            ):
                self.clock.advance(5)
                self.runs[number].errback(outage)
        self.assertEqual(
            [formatEvent(event).partition(": ")[2] for event in events],
            [
                "database_unavailable",
                "database_unavailable, timed out",
                "StoreUnreachable",
                "database_unavailable, no reason given (53100)",
            ],
        )
        self.assertEqual({event["log_level"] for event in events}, {LogLevel.warn})

    def test_stopping_waits_for_a_run_but_not_for_a_pause(self) -> None:
        self.loop.startService()
        self.clock.advance(5)
        stopping = self.loop.stopService()
        assert stopping is not None
        self.assertNoResult(stopping)
        self.runs[0].callback(None)
        self.successResultOf(stopping)
        self.loop.startService()
        stopping = self.loop.stopService()
        assert stopping is not None
        self.successResultOf(stopping)
        self.assertEqual((len(self.runs), self.clock.getDelayedCalls()), (1, []))

    def test_a_cancelled_run_ends_the_loop_silently(self) -> None:
        self.loop.startService()
        self.clock.advance(5)
        with captured_logs() as events:
            self.runs[0].errback(CancelledError())
        self.clock.advance(20)
        self.assertEqual((events, len(self.runs)), ([], 1))
        stopping = self.loop.stopService()
        assert stopping is not None
        self.successResultOf(stopping)


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

    def test_work_that_goes_to_its_end_is_answered_as_it_ends(self) -> None:
        """However often its caller is cancelled meanwhile; what refuses it, or cancels it itself, is raised."""
        for end in (None, RuntimeError("ours"), CancelledError()):
            going: Deferred[None] = Deferred()
            heard: list[str] = []

            async def work(going: Deferred[None] = going) -> str:
                await going
                return "done"

            waiting = start(to_its_end(work(), partial(heard.append, "cancelled")))
            waiting.cancel()
            waiting.cancel()
            self.assertNoResult(waiting)
            self.assertIn("cancelled", heard)
            if end is None:
                going.callback(None)
                self.assertEqual(self.successResultOf(waiting), "done")
            else:
                going.errback(end)
                self.failureResultOf(waiting, type(end))

    def test_work_may_end_as_soon_as_its_caller_is_cancelled(self) -> None:
        going: Deferred[None] = Deferred()

        async def work() -> str:
            await going
            return "stopped"

        waiting = start(to_its_end(work(), partial(going.callback, None)))
        waiting.cancel()
        self.assertEqual(self.successResultOf(waiting), "stopped")

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


class Pauses(TestCase):
    def test_it_doubles_to_the_longest(self) -> None:
        backoff = Backoff(*CHILD_PAUSES)
        self.assertEqual(backoff.pause, 0)
        self.assertEqual([backoff.failed() for _ in range(7)], [1, 2, 4, 8, 16, 30, 30])

    def test_after_a_success_it_begins_with_the_first(self) -> None:
        backoff = Backoff(0.1, 2.0)
        backoff.failed(), backoff.failed()
        self.assertEqual(backoff.pause, 0.2)
        backoff.succeeded()
        self.assertEqual((backoff.pause, backoff.failed()), (0.0, 0.1))


class Texts(list[str]):
    """What a body was read into. (There are no weak references to lists.)"""


class InThreads(TestCase):
    def setUp(self) -> None:
        from twisted.internet import reactor

        self.in_thread = in_thread_of(reactor)

    async def test_what_is_returned_or_raised_comes_back(self) -> None:
        self.assertEqual(await self.in_thread(partial(divmod, 7, 2)), (3, 1))
        with self.assertRaises(ZeroDivisionError):
            await self.in_thread(partial(divmod, 7, 0))

    async def test_a_refusal_leaves_nothing_for_the_garbage_collector(self) -> None:
        """The reactor would have to free it."""
        read = []

        def refusing() -> None:
            texts = Texts()
            read.append(ref(texts))
            try:
                int("x")
            except ValueError:
                raise errors.not_found() from None

        gc.disable()
        self.addCleanup(gc.enable)
        with self.assertRaises(errors.ApiError) as refused:
            await self.in_thread(refusing)
        self.assertEqual(refused.exception.status, 404)
        self.assertIsNone(read[0]())
