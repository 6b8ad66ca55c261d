"""The schema cache in use: read at the start, read again when a change is announced, kept when that fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import psycopg2
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from project_service.backoff import Backoff
from project_service.deferreds import background, cancel
from project_service.tables import errors
from project_service.tables.model import SchemaCache

Load = Callable[[int], Awaitable[SchemaCache]]


FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


class CacheHolder(Service):
    """Reads the catalogue, once at a time. A change announced during a reading makes it read once more.

    A reading that failed is tried again after growing pauses, as long as the service runs.
    """

    log = Logger()

    def __init__(self, load: Load, clock: IReactorTime) -> None:
        self._load = load
        self._clock = clock
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._retry: IDelayedCall | None = None
        # The schema cache; None until the first reading has succeeded.
        self.cache: SchemaCache | None = None
        self._version = 0
        # A flag of its own, because a reading may end before ``background`` returns.
        self._running = False
        self._again = False
        # Callers of ``settled`` and the number of the reading whose end they wait for.
        self._waiting: dict[Deferred[None], int] = {}

    @property
    def current(self) -> SchemaCache:
        """The schema cache. Raises PGRST002 until the first reading has succeeded."""
        if self.cache is None:
            raise errors.schema_cache_missing()
        return self.cache

    @property
    def loaded(self) -> bool:
        return self.cache is not None

    def stopService(self) -> None:
        super().stopService()
        cancel(self._retry)

    def announce(self) -> None:
        """The catalogue has changed: read it in the background, or once more if it is being read."""
        if self._running:
            self._again = True
            return
        self._running = True
        background(self._run(), "reading the schema cache")

    async def reload(self) -> None:
        """Read the catalogue. Returns when a reading that began no earlier than now has ended, well or not."""
        self.announce()
        await self.settled()

    async def settled(self) -> None:
        """Returns when everything that has been announced until now has been read, well or not.

        Later announcements are not waited for; in a schema that changes all the time there would be no end to it.
        """
        if not self._running:
            return
        waiting: Deferred[None] = Deferred(self._leave)
        self._waiting[waiting] = self._version + self._again
        await waiting

    def _leave(self, waiting: Deferred[None]) -> None:
        del self._waiting[waiting]

    async def _run(self) -> None:
        try:
            while True:
                self._again = False
                await self._read()
                self._tell(self._version)
                if not self._again:
                    return
        finally:
            self._running = False
            self._tell(self._version + 1)

    def _tell(self, number: int) -> None:
        """Wake everybody who waits for the reading ``number`` or an earlier one."""
        for one in [waiting for waiting, needed in self._waiting.items() if needed <= number]:
            # A caller that is woken may cancel others.
            if self._waiting.pop(one, None) is not None:
                one.callback(None)

    async def _read(self) -> None:
        self._version += 1
        cancel(self._retry)
        try:
            before, self.cache = self.cache, await self._load(self._version)
            self._backoff.succeeded()
            self._warn_of(before, self.cache)
        except Exception as fault:
            if self.running:
                self._retry = self._clock.callLater(self._backoff.failed(), self.announce)
            kept = "the old one is kept" if self.cache is not None else "there is none yet"
            self.log.warn("the schema cache could not be read ({why}); {kept}", why=_why(fault), kept=kept)

    def _warn_of(self, before: SchemaCache | None, found: SchemaCache) -> None:
        if found.false_constants and (before is None or before.false_constants != found.false_constants):
            self.log.warn(
                "declared IMMUTABLE: {names}, which read settings or the current user and so are STABLE at most; "
                "until they are declared so, each request plans its statements anew",
                names=", ".join(found.false_constants),
            )


def _why(fault: Exception) -> str:
    """The failure with PostgreSQL's message, which names the object that cannot be read."""
    said = fault.diag.message_primary if isinstance(fault, psycopg2.Error) else None
    return f"{type(fault).__name__}: {said}" if said else type(fault).__name__
