"""Revocations are at most a second old, or requests wait for a read (decisions, sections 2 and 3)."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.application import FRESH_SECONDS, POLL_SECONDS, Revocations
from project_service.errors import ApiError
from project_service.lifecycle import start
from tests.captured_log import captured_logs
from tests.fakes.common import held


class Case(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.readings: list[Deferred[None]] = []
        self.revocations = Revocations(self.read, self.clock, patience_seconds=5.0)

    async def read(self) -> None:
        await held(self.readings)

    def catch_up(self) -> Deferred[None]:
        return start(self.revocations.catch_up())

    def test_before_the_first_read_requests_wait(self) -> None:
        self.assertFalse(self.revocations.current)
        waiting = self.catch_up()
        self.assertNoResult(waiting)
        self.readings[0].callback(None)
        self.successResultOf(waiting)
        self.assertTrue(self.revocations.current)

    def test_revocations_are_current_for_a_second_from_the_beginning_of_their_read(self) -> None:
        self.catch_up()
        self.clock.advance(FRESH_SECONDS / 2)
        self.readings[0].callback(None)
        self.clock.advance(FRESH_SECONDS / 2)
        self.assertTrue(self.revocations.current)
        self.clock.advance(0.01)
        self.assertFalse(self.revocations.current)

    def test_two_polls_may_fail_before_requests_have_to_wait(self) -> None:
        self.catch_up()
        self.readings[0].callback(None)
        self.clock.advance(2 * POLL_SECONDS)
        self.assertTrue(self.revocations.current)

    def test_all_waiting_requests_share_the_next_read(self) -> None:
        first = self.catch_up()
        later = [self.catch_up() for _ in range(100)]
        self.assertEqual(len(self.readings), 1)
        self.readings[0].callback(None)
        self.successResultOf(first)
        # They asked after it had begun, when something may have been revoked already.
        for one in later:
            self.assertNoResult(one)
        self.assertEqual(len(self.readings), 2)
        self.readings[1].callback(None)
        for one in later:
            self.successResultOf(one)
        self.assertEqual(len(self.readings), 2)

    def test_a_failed_read_fails_the_waiting_requests_and_no_later_ones(self) -> None:
        first = self.catch_up()
        self.readings[0].errback(RuntimeError("the database is away"))
        self.failureResultOf(first, RuntimeError)
        self.assertFalse(self.revocations.current)
        again = self.catch_up()
        self.readings[1].callback(None)
        self.successResultOf(again)

    def test_a_request_waits_no_longer_than_configured(self) -> None:
        waiting = self.catch_up()
        self.clock.advance(5.0)
        self.assertEqual(self.failureResultOf(waiting, ApiError).value.code, "database_unavailable")
        self.readings[0].callback(None)

    def test_nothing_is_kept_of_who_gave_up_while_a_reading_hangs(self) -> None:
        self.catch_up().addErrback(lambda _: None)
        waiting = [self.catch_up() for _ in range(100)]
        self.clock.advance(5.0)
        for one in waiting:
            self.failureResultOf(one, ApiError)
        self.readings[0].callback(None)
        self.assertEqual(len(self.readings), 1, "nobody waits for another one")

    def test_a_cancelled_wait_does_not_stop_the_read_for_others(self) -> None:
        leaver, stayer = self.catch_up(), self.catch_up()
        leaver.cancel()
        leaver.addErrback(lambda _: None)
        self.readings[0].callback(None)
        self.readings[1].callback(None)
        self.successResultOf(stayer)

    def test_only_the_first_of_failed_polls_in_a_row_is_logged(self) -> None:
        with captured_logs() as events:
            for number in range(3):
                polling = start(self.revocations.poll())
                self.readings[number].errback(RuntimeError("away"))
                self.successResultOf(polling)
        self.assertEqual(
            [formatEvent(event) for event in events],
            ["revoked keys and sessions cannot be read: RuntimeError"],
        )
        polling = start(self.revocations.poll())
        self.readings[3].callback(None)
        self.successResultOf(polling)
        with captured_logs() as events:
            start(self.revocations.poll())
            self.readings[4].errback(RuntimeError("away again"))
        self.assertEqual(len(events), 1)
