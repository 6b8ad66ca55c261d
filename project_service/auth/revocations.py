"""The ended sessions whose access tokens may still be valid. They are kept in memory, so that a request costs one
lookup and no query."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol

from twisted.logger import Logger

from project_service.errors import database_unavailable

CHANNEL = "auth_revocations"
# In seconds. A logout must take effect in all workers within this time, so what was read longer ago is not trusted.
FRESH_SECONDS = 1.0
# How often ``poll`` has to be called. Even while notifications arrive it reads every other time, because a listening
# connection may be dead for a long time before that is noticed.
POLL_SECONDS = 0.4
# Each reading for what is new goes back this much further: clocks differ, and transactions may take time to commit.
OVERLAP_SECONDS = 60.0

Ended = list[tuple[str, float]]


class Currency(Protocol):
    """What is needed of ``database.listener.Listener``."""

    @property
    def current(self) -> bool: ...

    def subscribe(
        self, channel: str, on_payload: Callable[[str], None], on_gap: Callable[[], Awaitable[None]]
    ) -> None: ...


class RevokedSessions:
    """The set of ended sessions. Notifications keep it current; it is read completely after a gap in them, and
    ``poll`` reads what is new.

    If neither has worked for a second, a logout may have been missed; then ``is_revoked`` raises
    ``database_unavailable``. ``read`` returns the sessions that ended since the given Unix time, or all for None.
    """

    log = Logger()

    def __init__(
        self, read: Callable[[float | None], Awaitable[Ended]], listener: Currency, now: Callable[[], float]
    ) -> None:
        self._read = read
        self._listener = listener
        self._now = now
        self._ended: dict[str, float] = {}
        self._known_at = -math.inf
        self._failing = False
        listener.subscribe(CHANNEL, self._hear, self.reread)

    def __len__(self) -> int:
        return len(self._ended)

    def is_revoked(self, session_id: str) -> bool:
        if session_id in self._ended:
            return True
        if not self._listener.current and not self._known_within(FRESH_SECONDS):
            raise database_unavailable()
        return False

    def add(self, session_id: str, until: float) -> None:
        """Add a session that this worker has ended, without waiting for the notification. Access tokens of it may be
        valid until ``until``, in Unix time."""
        self._ended[session_id] = max(until, self._ended.get(session_id, until))

    async def reread(self) -> None:
        """Read all ended sessions and add them."""
        await self._add_read(None)

    async def poll(self) -> None:
        """Read what is new, if necessary, and drop what has expired. It does not raise."""
        if not self._listener.current or not self._known_within(FRESH_SECONDS - POLL_SECONDS):
            await self._read_quietly()
        self._forget()

    def _known_within(self, seconds: float) -> bool:
        """Whether the last reading is at most this old. If it seems to be in the future, the clock was set back and
        its age is unknown."""
        return 0.0 <= self._now() - self._known_at <= seconds

    async def _read_quietly(self) -> None:
        """Read what is new. A failure is logged once until it succeeds again; ``is_revoked`` notices by itself."""
        try:
            told_apart = -math.inf < self._known_at <= self._now()
            await self._add_read(self._known_at - OVERLAP_SECONDS if told_apart else None)
        except Exception as fault:
            if not self._failing:
                self.log.warn("ended sessions cannot be read: {why}", why=type(fault).__name__)
            self._failing = True
        else:
            self._failing = False

    async def _add_read(self, since: float | None) -> None:
        started = self._now()
        for session_id, until in await self._read(since):
            self.add(session_id, until)
        self._known_at = started

    def _forget(self) -> None:
        now = self._now()
        expired = [session_id for session_id, until in self._ended.items() if until <= now]
        for session_id in expired:
            del self._ended[session_id]

    def _hear(self, payload: str) -> None:
        session_id, _, until = payload.partition(" ")
        self.add(session_id, float(until))
