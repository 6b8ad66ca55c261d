"""Parts start and stop in order even if one fails, and loops survive errors."""

from __future__ import annotations

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
from project_service.lifecycle import ClosedLast, Components, Every, ServiceComponent, start
from project_service.storage.s3.errors import StoreUnreachable
from tests.captured_log import captured_logs


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
