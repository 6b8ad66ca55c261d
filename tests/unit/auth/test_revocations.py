"""Ended sessions, kept in memory until their tokens expire."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.auth.sessions import CHANNEL, OVERLAP_SECONDS, RevokedSessions
from project_service.lifecycle import start
from tests.fakes.auth import FakeListener


class Revocations(TestCase):
    def setUp(self) -> None:
        self.clock, self.listener = Clock(), FakeListener()
        self.stored: list[tuple[str, float]] = []
        self.reads: list[float | None] = []
        self.failure: Exception | None = None
        self.revoked = RevokedSessions(self.read, self.listener, self.clock.seconds)

    async def read(self, since: float | None) -> list[tuple[str, float]]:
        self.reads.append(since)
        if self.failure is not None:
            raise self.failure
        return list(self.stored)

    def read_new(self) -> None:
        self.successResultOf(start(self.revoked.read_new()))

    def test_an_announced_session_is_revoked(self) -> None:
        self.listener.hear(CHANNEL, "session-1 100")
        assert self.revoked.is_revoked("session-1")
        assert not self.revoked.is_revoked("session-2")

    def test_what_is_announced_without_an_end_is_not_kept(self) -> None:
        for payload in ("session-1 inf", "session-1 nan", "session-1", ""):
            self.assertRaises(ValueError, self.listener.hear, CHANNEL, payload)
        self.assertEqual(len(self.revoked), 0)

    def test_what_was_not_announced_is_read(self) -> None:
        self.stored = [("session-1", 100.0)]
        self.read_new()
        assert self.revoked.is_revoked("session-1")

    def test_after_a_gap_in_the_announcements_everything_is_read(self) -> None:
        self.read_new()
        self.stored = [("session-1", 100.0)]
        self.successResultOf(start(self.listener.reconnect()))
        assert self.revoked.is_revoked("session-1")
        self.assertEqual(self.reads, [None, None])

    def test_at_first_everything_is_read_and_then_what_is_new(self) -> None:
        self.clock.advance(1000)
        self.read_new()
        self.clock.advance(1)
        self.read_new()
        self.assertEqual(self.reads, [None, 1000 - OVERLAP_SECONDS])

    def test_a_failed_reading_is_made_up_for_by_the_next(self) -> None:
        self.clock.advance(1000)
        self.read_new()
        self.clock.advance(500)
        self.failure = RuntimeError("database away")
        self.failureResultOf(start(self.revoked.read_new()), RuntimeError)
        self.failure = None
        self.read_new()
        self.assertEqual(self.reads[-1], 1000 - OVERLAP_SECONDS)

    def test_everything_is_read_after_the_clock_was_set_back(self) -> None:
        self.clock.advance(1000)
        self.read_new()
        self.clock.rightNow = 500.0
        self.read_new()
        self.assertEqual(self.reads, [None, None])

    def test_a_session_is_forgotten_when_its_tokens_have_expired(self) -> None:
        self.revoked.add("session-1", 100.0)
        # An earlier time that arrives later does not shorten it.
        self.revoked.add("session-1", 50.0)
        # A later one does lengthen it.
        self.revoked.add("session-2", 50.0)
        self.revoked.add("session-2", 100.0)
        self.clock.advance(99)
        self.read_new()
        assert len(self.revoked) == 2
        self.clock.advance(1)
        self.read_new()
        assert len(self.revoked) == 0
