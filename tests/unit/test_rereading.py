"""Rereading: what is kept in memory is read again, one reading at a time, and until it succeeds."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.deferreds import start
from project_service.rereading import Rereading
from tests.fakes import held
from tests.said import captured_logs


class Case(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.pending: list[Deferred[None]] = []
        self.reading = Rereading(self.read, self.clock, "it")

    async def read(self) -> None:
        await held(self.pending)

    def test_readings_asked_for_during_one_become_one_more(self) -> None:
        for _ in range(5):
            self.reading.soon()
        self.assertEqual(len(self.pending), 1)
        self.reading.soon()
        self.assertFalse(self.reading.current)
        self.pending[0].callback(None)
        self.assertEqual(len(self.pending), 2)
        self.pending[1].callback(None)
        self.assertEqual(len(self.pending), 2)
        self.assertTrue(self.reading.current)

    def test_a_failed_reading_is_repeated(self) -> None:
        self.reading.soon()
        with captured_logs() as said:
            self.pending[0].errback(RuntimeError("the pool is empty"))
        self.assertEqual([formatEvent(event) for event in said], ["it could not be read: RuntimeError"])
        self.assertFalse(self.reading.current)
        self.clock.advance(0.1)
        self.pending[1].errback(RuntimeError("still"))
        self.clock.advance(0.1)
        self.assertEqual(len(self.pending), 2)
        self.clock.advance(0.1)
        self.pending[2].callback(None)
        self.assertTrue(self.reading.current)
        self.reading.soon()
        self.assertEqual(len(self.pending), 4)

    def test_now_waits_for_the_running_reading_and_raises_the_failure_of_its_own(self) -> None:
        self.reading.soon()
        asked = start(self.reading.now())
        self.assertEqual(len(self.pending), 1)
        self.pending[0].callback(None)
        self.assertNoResult(asked)
        self.pending[1].errback(RuntimeError("no"))
        self.failureResultOf(asked, RuntimeError)

    def test_a_reading_that_ends_at_once_does_not_stop_later_ones(self) -> None:
        """A fast database answers before the caller has got its Deferred."""
        read: list[None] = []

        async def at_once() -> None:
            read.append(None)

        reading = Rereading(at_once, self.clock, "it")
        for _ in range(3):
            reading.soon()
            self.assertTrue(reading.current)
        self.assertEqual(len(read), 3)

    def test_closing_cancels_a_running_reading(self) -> None:
        polled = start(self.reading.now())
        self.reading.soon()
        self.reading.soon()
        with captured_logs() as said:
            polled.cancel()
            self.failureResultOf(polled, CancelledError)
            self.assertEqual(len(self.pending), 2, "the next had its turn")
            self.successResultOf(start(self.reading.close()))
        self.assertEqual((said, self.clock.getDelayedCalls(), len(self.pending)), ([], [], 2))

    def test_the_pause_grows_to_two_seconds_at_most(self) -> None:
        self.reading.soon()
        for number in range(8):
            self.pending[number].errback(RuntimeError("away"))
            self.assertEqual(len(self.pending), number + 1)
            self.clock.advance(2)
            self.assertEqual(len(self.pending), number + 2)
        self.pending[8].callback(None)

    def test_closing_ends_the_repetition(self) -> None:
        self.reading.soon()
        self.pending[0].errback(RuntimeError("no"))
        self.successResultOf(start(self.reading.close()))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_closing_without_a_reading_does_nothing(self) -> None:
        self.successResultOf(start(self.reading.close()))
