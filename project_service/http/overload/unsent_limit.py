"""Limits the memory of responses that have been written and that their clients do not take.

A streamed response waits for its client. One that is written whole stays in memory until the client has taken it, and
one of the table API may be as large as PostgreSQL can make it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from attrs import define

from project_service.http.overload.connection_limit import GRACE_SECONDS

# In one process.
MOST_BYTES = 256 * 1024 * 1024
# Less than this is not counted: streamed responses hold as much.
LARGE_BYTES = 512 * 1024


class Reader(Protocol):
    """What ``UnsentLimit`` needs of a connection."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes that were written and that the kernel has not been given yet."""

    def abort(self) -> None: ...


@define
class _Left:
    """``bytes`` were left at ``since``; there may be fewer now."""

    bytes: int
    since: float


class UnsentLimit:
    """Once more than ``most`` bytes are waiting for their clients, whoever takes them most slowly is cut off.

    Those who have had ``GRACE_SECONDS`` for it go first, and those who have had less than a second go last.
    """

    def __init__(self, now: Callable[[], float], most: int = MOST_BYTES) -> None:
        self._now = now
        self._most = most
        self._left: dict[Reader, _Left] = {}
        # Never less than there is.
        self._total = 0

    def wrote(self, reader: Reader) -> None:
        """Much has been written to ``reader``, which is never cut off for it: others have had more time."""
        self.leave(reader)
        left = reader.unsent_bytes
        if left < LARGE_BYTES:
            return
        self._left[reader] = _Left(left, self._now())
        self._total += left
        if self._total > self._most:
            self._make_room(reader)

    def leave(self, reader: Reader) -> None:
        left = self._left.pop(reader, None)
        if left is not None:
            self._total -= left.bytes

    def _make_room(self, last: Reader) -> None:
        still = {reader: reader.unsent_bytes for reader in self._left}
        for reader in [reader for reader, left in still.items() if left < LARGE_BYTES]:
            self.leave(reader)
            del still[reader]
        total, now = sum(still.values()), self._now()

        def pace(reader: Reader) -> tuple[bool, bool, float]:
            left = self._left[reader]
            seconds = now - left.since
            return seconds < GRACE_SECONDS, seconds < 1.0, (left.bytes - still[reader]) / max(seconds, 1.0)

        for reader in sorted(still.keys() - {last}, key=pace):
            if total <= self._most:
                return
            total -= still[reader]
            self.leave(reader)
            reader.abort()
