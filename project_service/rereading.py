"""Keeps something in memory current: it is read again whenever it may have changed, until a reading succeeds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from project_service.backoff import Backoff
from project_service.deferreds import start

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0


class Rereading:
    """``read`` reads the thing and puts it in place; ``what`` is its name in the log.

    Only one reading runs at a time, so that an older answer never replaces a newer one.
    """

    log = Logger()

    def __init__(self, read: Callable[[], Awaitable[None]], clock: IReactorTime, what: str) -> None:
        self._read = read
        self._clock: Any = clock
        self._what = what
        self._lock = DeferredLock()
        self._queued: Deferred[None] | None = None
        self._busy = False
        self._wanted = False

    @property
    def current(self) -> bool:
        """False from an announcement until a reading that began after it has succeeded."""
        return not self._wanted

    async def now(self) -> None:
        """Read once, starting no earlier than this call. Raises what ``read`` raises."""
        await self._lock.acquire()
        try:
            await self._read()
        finally:
            self._lock.release()

    def soon(self) -> None:
        """Read in the background, because the thing may have changed: with growing pauses until a reading
        succeeds."""
        self._wanted = True
        # A flag of its own, because the reading may end before ``start`` returns its Deferred.
        if not self._busy:
            self._busy = True
            self._queued = start(self._until_read())
            self._queued.addBoth(self._ended)

    async def close(self) -> None:
        if self._queued is not None:
            self._queued.cancel()

    async def _until_read(self) -> None:
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while self._wanted:
            # Reset before reading: a change that is announced while this reading runs needs another one.
            self._wanted = False
            try:
                await self.now()
                backoff.succeeded()
            except CancelledError:
                raise
            except Exception as fault:
                self._wanted = True
                self.log.warn("{what} could not be read: {why}", what=self._what, why=type(fault).__name__)
                await deferLater(self._clock, backoff.failed())

    def _ended(self, failure: Any) -> None:
        self._busy = False
        if failure is not None and not failure.check(CancelledError):
            self.log.failure("reading {what} again failed", failure, what=self._what)
