"""The ended sessions whose access tokens may still be valid, in memory: one lookup a request, no database read."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol

from twisted.logger import Logger

from project_service.errors import database_unavailable

CHANNEL = "auth_revocations"
# Other workers must hear of a logout within a second; an answer older than this is not trusted.
FRESH_SECONDS = 1.0
# How often ``poll`` is to be called. While notifications arrive it reads every other time: a listening connection
# can be dead for long before anybody notices.
POLL_SECONDS = 0.4
# What is new is asked for with so much overlap: clocks differ, and a transaction may have been under way.
OVERLAP_SECONDS = 60.0

Ended = list[tuple[str, float]]


class Currency(Protocol):
    """What this needs of ``database.listener.Listener``."""

    @property
    def current(self) -> bool: ...

    def subscribe(
        self, channel: str, on_payload: Callable[[str], None], on_gap: Callable[[], Awaitable[None]]
    ) -> None: ...


class RevokedSessions:
    """Kept current by notifications; read whole after every gap, and by ``poll`` what is new.

    Where neither works for a second the set is not trusted, and asking it raises ``database_unavailable``:
    somebody's logout may have been missed. ``read`` is given the time from which on it is to tell, or None.
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
        """A session that ended here, before the notification comes around."""
        self._ended[session_id] = max(until, self._ended.get(session_id, until))

    async def reread(self) -> None:
        """Add all the database knows; what was heard while reading stays."""
        await self._add_read(None)

    async def poll(self) -> None:
        """Read what is new, and forget what has expired."""
        if not self._listener.current or not self._known_within(FRESH_SECONDS - POLL_SECONDS):
            await self._read_quietly()
        self._forget()

    def _known_within(self, seconds: float) -> bool:
        """No answer is younger than now: then the clock was set back, and how old it is nobody can say."""
        return 0.0 <= self._now() - self._known_at <= seconds

    async def _read_quietly(self) -> None:
        """Says once that the database is away; whoever asks meanwhile gets ``database_unavailable``."""
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
