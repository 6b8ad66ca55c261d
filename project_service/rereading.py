"""Something in memory that is read again whenever it may have changed: one reading at a time, until one succeeds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from project_service.deferreds import start

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0


class Rereading:
    """``read`` reads and takes over. An older answer never lands on a newer one, and a failed reading is repeated."""

    log = Logger()

    def __init__(self, read: Callable[[], Awaitable[None]], clock: IReactorTime, what: str) -> None:
        self._read = read
        self._clock: Any = clock
        self._what = what
        self._lock = DeferredLock()
        self._queued: Deferred[None] | None = None
        self._busy = False
        self._wanted = False
        self._failing = False

    @property
    def current(self) -> bool:
        """False from an announcement until a reading that began after it has succeeded."""
        return not self._wanted

    async def now(self) -> None:
        """A reading that begins no earlier than this call; raises what it raises."""
        await self._lock.acquire()
        try:
            await self._read()
        finally:
            self._lock.release()

    async def poll(self) -> None:
        """A reading for what nobody announced. One that fails is left to the next poll; the first one is logged."""
        try:
            await self.now()
        except CancelledError:
            raise
        except Exception as fault:
            if not self._failing:
                self.log.warn("{what} cannot be read: {why}", what=self._what, why=type(fault).__name__)
            self._failing = True
        else:
            self._failing = False

    def soon(self) -> None:
        """It may have changed: read it, again and again with growing pauses, until that succeeds."""
        self._wanted = True
        # Not told by the Deferred: an answer may be there at once, before there is anything to remember.
        if not self._busy:
            self._busy = True
            self._queued = start(self._until_read())
            self._queued.addBoth(self._ended)

    async def close(self) -> None:
        if self._queued is not None:
            self._queued.cancel()

    async def _until_read(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while self._wanted:
            # What is announced while this reading runs asks for another.
            self._wanted = False
            try:
                await self.now()
                pause = FIRST_PAUSE_SECONDS
            except CancelledError:
                raise
            except Exception as fault:
                self._wanted = True
                self.log.warn("{what} could not be read: {why}", what=self._what, why=type(fault).__name__)
                await deferLater(self._clock, pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _ended(self, failure: Any) -> None:
        self._busy = False
        if failure is not None and not failure.check(CancelledError):
            self.log.failure("reading {what} again failed", failure, what=self._what)
