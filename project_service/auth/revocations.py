"""The ended sessions whose access tokens may still be valid. They are kept in memory, so that a request costs one
lookup and no query."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol

CHANNEL = "auth_revocations"
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
    """The set of ended sessions. Notifications add to it; it is read completely after a gap in them.

    Notifications can be lost, so ``read_new`` has to be called regularly. ``read`` returns the sessions that ended
    since the given Unix time, or all for None.
    """

    def __init__(
        self, read: Callable[[float | None], Awaitable[Ended]], listener: Currency, now: Callable[[], float]
    ) -> None:
        self._read = read
        self._now = now
        self._ended: dict[str, float] = {}
        self._known_at = -math.inf
        listener.subscribe(CHANNEL, self._hear, self.read_all)

    def __len__(self) -> int:
        return len(self._ended)

    def is_revoked(self, session_id: str) -> bool:
        return session_id in self._ended

    def add(self, session_id: str, until: float) -> None:
        """Add a session that this worker has ended, without waiting for the notification. Access tokens of it may be
        valid until ``until``, in Unix time."""
        self._ended[session_id] = max(until, self._ended.get(session_id, until))

    async def read_all(self) -> None:
        """Read all ended sessions and add them. Raises what ``read`` raises."""
        await self._add_read(None)

    async def read_new(self) -> None:
        """Read what is new, and drop what has expired. Raises what ``read`` raises."""
        # After the clock was set back, nobody knows how old the last reading is.
        known = -math.inf < self._known_at <= self._now()
        await self._add_read(self._known_at - OVERLAP_SECONDS if known else None)
        self._forget()

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
        session_id, _, end = payload.partition(" ")
        until = float(end)
        # Any database role may notify. What has no end would stay in memory until this process ends.
        if not math.isfinite(until):
            raise ValueError("an announced session without an end")
        self.add(session_id, until)
