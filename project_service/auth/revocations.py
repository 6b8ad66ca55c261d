"""The ended sessions whose access tokens may still be valid, in memory: one lookup a request, no database read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from twisted.logger import Logger

from project_service.errors import database_unavailable

CHANNEL = "auth_revocations"
# Other workers must hear of a logout within a second; an answer older than this is not trusted.
FRESH_SECONDS = 1.0
# While nobody listens the set is read this often instead.
REREAD_SECONDS = 0.4

Ended = list[tuple[str, float]]


class Currency(Protocol):
    """What this needs of ``database.listener.Listener``."""

    @property
    def current(self) -> bool: ...

    def subscribe(
        self, channel: str, on_payload: Callable[[str], None], on_gap: Callable[[], Awaitable[None]]
    ) -> None: ...


class RevokedSessions:
    """Kept current by notifications; read again after every gap, and by ``poll`` while there is no listening.

    Where neither works for a second the set is not trusted, and asking it raises ``database_unavailable``:
    somebody's logout may have been missed.
    """

    log = Logger()

    def __init__(
        self, read: Callable[[], Awaitable[Ended]], listener: Currency, now: Callable[[], float]
    ) -> None:
        self._read = read
        self._listener = listener
        self._now = now
        self._ended: dict[str, float] = {}
        self._known_at = float("-inf")
        self._failing = False
        listener.subscribe(CHANNEL, self._hear, self.reread)

    def __len__(self) -> int:
        return len(self._ended)

    def is_revoked(self, session_id: str) -> bool:
        if session_id in self._ended:
            return True
        if not self._listener.current and self._now() - self._known_at > FRESH_SECONDS:
            raise database_unavailable()
        return False

    def add(self, session_id: str, until: float) -> None:
        """A session that ended here, before the notification comes around."""
        self._ended[session_id] = max(until, self._ended.get(session_id, until))

    async def reread(self) -> None:
        """Add what the database knows; what was heard while reading stays."""
        started = self._now()
        for session_id, until in await self._read():
            self.add(session_id, until)
        self._known_at = started

    async def poll(self) -> None:
        """Called often: reads only while the notifications cannot be relied on, and forgets what has expired."""
        if self._listener.current:
            # Until this moment nothing was missed, should the connection be lost in the next.
            self._known_at = self._now()
        else:
            await self._reread_quietly()
        self._forget()

    async def _reread_quietly(self) -> None:
        """Says once that the database is away; whoever asks meanwhile gets ``database_unavailable``."""
        try:
            await self.reread()
        except Exception as fault:
            if not self._failing:
                self.log.warn("ended sessions cannot be read: {why}", why=type(fault).__name__)
            self._failing = True
        else:
            self._failing = False

    def _forget(self) -> None:
        now = self._now()
        expired = [session_id for session_id, until in self._ended.items() if until <= now]
        for session_id in expired:
            del self._ended[session_id]

    def _hear(self, payload: str) -> None:
        session_id, _, until = payload.partition(" ")
        self.add(session_id, float(until))
