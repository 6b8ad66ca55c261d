"""Ended sessions, which each process remembers until their access tokens have expired."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.auth.revocations import CHANNEL, RevokedSessions
from project_service.deferreds import start
from project_service.errors import ApiError
from tests.auth_fakes import FakeListener
from tests.said import captured_logs


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

    def poll(self) -> None:
        self.successResultOf(start(self.revoked.poll()))

    def test_an_announced_session_is_revoked(self) -> None:
        self.listener.heard[CHANNEL]("session-1 100")
        assert self.revoked.is_revoked("session-1")
        assert not self.revoked.is_revoked("session-2")

    def test_a_dead_listening_connection_is_compensated_by_polling_within_a_second(self) -> None:
        self.poll()
        for tenth in range(100):
            if tenth == 55:
                self.stored = [("session-1", 100.0)]
            self.clock.advance(0.1)
            if tenth % 4 == 3:
                self.poll()
            assert self.revoked.is_revoked("session-1") or tenth < 55 + 9
        # The first poll reads all, later ones about once a second what is new.
        assert self.reads[0] is None
        assert len(self.reads) == 13
        assert all(since is not None and since < 0 for since in self.reads[1:])

    def test_the_set_is_read_again_after_the_listener_reconnects(self) -> None:
        self.stored = [("session-1", 100.0)]
        for gap in self.listener.gaps:
            self.successResultOf(start(gap()))  # type: ignore[arg-type]  # they are coroutines
        assert self.revoked.is_revoked("session-1")

    def test_while_not_listening_the_set_is_polled_and_trusted_for_a_second(self) -> None:
        self.poll()
        self.listener.current = False
        self.clock.advance(0.9)
        assert not self.revoked.is_revoked("session-1")
        self.stored = [("session-1", 100.0)]
        self.poll()
        assert self.revoked.is_revoked("session-1")
        self.clock.advance(0.9)
        assert not self.revoked.is_revoked("session-2")

    def test_a_set_that_cannot_be_polled_makes_verification_503(self) -> None:
        self.poll()
        self.listener.current = False
        self.failure = RuntimeError("database away")
        with captured_logs() as events:
            for _ in range(3):
                self.poll()
        assert [formatEvent(event) for event in events] == ["ended sessions cannot be read: RuntimeError"]
        self.clock.advance(1.01)
        fault = self.assertRaises(ApiError, self.revoked.is_revoked, "session-2")
        assert (fault.status, fault.code) == (503, "database_unavailable")
        self.failure = None
        self.poll()
        assert not self.revoked.is_revoked("session-2")

    def test_before_the_first_poll_verification_fails(self) -> None:
        self.listener.current = False
        self.failure = RuntimeError("database away")
        with captured_logs() as events:
            self.poll()
        self.assertEqual(len(events), 1)
        self.clock.advance(5)
        self.assertRaises(ApiError, self.revoked.is_revoked, "session-1")

    def test_a_session_is_forgotten_when_its_tokens_have_expired(self) -> None:
        self.revoked.add("session-1", 100.0)
        # An earlier expiry that is announced later does not shorten the time.
        self.revoked.add("session-1", 50.0)
        # A later expiry does lengthen it.
        self.revoked.add("session-2", 50.0)
        self.revoked.add("session-2", 100.0)
        self.clock.advance(99)
        self.poll()
        assert len(self.revoked) == 2
        self.clock.advance(1)
        self.poll()
        assert len(self.revoked) == 0
