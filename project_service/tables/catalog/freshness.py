"""Finds out whether the catalogue has changed since the schema cache was read.

Where event triggers announce changes, only names that the cache does not know have to be looked for (``Freshness``).
Where there are none, the whole catalogue is looked through again and again (``CatalogueWatch``).

Notifications arrive in the order of the commits that sent them. So we send one to ourselves: when it has come back,
every change of the catalogue that was committed before has been announced to us too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg2
from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.database.pool import Pool
from project_service.database.session import DatabaseGone
from project_service.deferreds import SharedRun, with_timeout
from project_service.tables.catalog.holder import CacheHolder
from project_service.tables.catalog.queries import FINGERPRINT, SIZES, STATE, sections
from project_service.tables.model import SchemaCache
from project_service.tables.settings import RESET, settings_text

CHANNEL = "pgrst_sync"
WAIT_SECONDS = 1.0
# The catalogue is looked through once in so many seconds, in short queries that are spread over them.
ROUND_SECONDS = 3.0
LOOK_SECONDS = 0.25
# How often it is asked in that time whether anything was written at all.
_IDLE_STEPS = 5
# With this many waiting for a notification to come back, further misses are answered without asking the database.
_MOST_WAITING = 20
_REMEMBERED = 200

# Begins each message here: takes away whatever an earlier request has set for the session.
_CLEAN = f"{RESET}{settings_text((('search_path', ''),))}; "
_SEND = f"{_CLEAN}with mark as (select gen_random_uuid()::text as id) select id, pg_notify(%s, id)::text from mark"


@define
class Echo:
    """Sends a notification to ourselves and waits until it has come back.

    After one that did not come back, nobody waits any more until one is heard: the listening connection is down, or a
    proxy that pools transactions lets no notification through.
    """

    pool: Pool
    clock: IReactorTime
    _deaf: bool = field(default=False, init=False)
    _waiting: dict[str, Deferred[None]] = field(factory=dict, init=False)
    _heard: deque[str] = field(factory=lambda: deque(maxlen=_REMEMBERED), init=False)

    def heard(self, payload: str) -> None:
        """To be called by the listener with each payload on ``CHANNEL``."""
        self._deaf = False
        self._heard.append(payload)
        waiting = self._waiting.pop(payload, None)
        if waiting is not None:
            waiting.callback(None)

    async def listening(self) -> None:
        """To be called by the listener when it has reconnected. Callers that still waited have given up by then."""
        self._deaf = False

    async def come_back(self) -> None:
        """Returns when everything committed before the call has been announced, or after ``WAIT_SECONDS``."""
        if len(self._waiting) >= _MOST_WAITING:
            return
        rows = await self.pool.query(_SEND, [CHANNEL])
        mark = bytes(rows[0][0]).decode()
        if mark in self._heard or self._deaf:
            return
        waiting = self._waiting[mark] = Deferred()
        try:
            await with_timeout(self.clock, WAIT_SECONDS, waiting, TimeoutError)
        except TimeoutError:
            self._deaf = True
        finally:
            self._waiting.pop(mark, None)


@define(eq=False)
class Freshness:
    """Gets a newer schema cache where there may be one.

    The database is asked by one query at a time, and all callers that arrive meanwhile share the next one. So any
    number of misses takes no more than one connection.
    """

    holder: CacheHolder
    pool: Pool
    echo: Echo
    _asked: SharedRun[None] = field(init=False)

    log = Logger()

    def __attrs_post_init__(self) -> None:
        self._asked = SharedRun(self._ask, "looking for changes of the schema")

    async def newer(self, than: SchemaCache) -> SchemaCache | None:
        """A cache read after ``than``, or None where nothing has changed since."""
        await self._asked.join()
        await self.holder.settled()
        current = self.holder.current
        return current if current.version != than.version else None

    async def _ask(self) -> None:
        try:
            await self.echo.come_back()
            # A reading that is under way may have begun before a change that nobody announced.
            await self.holder.settled()
            if await self._has_changed():
                self.holder.announce()
        except Exception as fault:
            # The database is away, or a standby, which cannot notify: the name stays unknown.
            self.log.debug("the schema cache was not checked ({why})", why=type(fault).__name__)

    async def _has_changed(self) -> bool:
        """Compare fingerprints, for databases without the event trigger that announces changes."""
        rows = await self.pool.query(f"{_CLEAN}select {FINGERPRINT}", [])
        return bytes(rows[0][0]).decode() != self.holder.current.fingerprint


Query = Callable[[str, Sequence[object]], Awaitable[list[tuple[Any, ...]]]]


@define(eq=False)
class CatalogueWatch:
    """Notices changes of the catalogue where no event triggers announce them, within a round.

    ``query`` runs a statement on a connection that requests do not wait for. A row that is changed between the
    reading of the schema cache and the first look at it would go unnoticed, so the cache is read again after the
    first round.
    """

    holder: CacheHolder
    query: Query
    _sections: list[str] = field(factory=list, init=False)
    _values: dict[str, str] = field(factory=dict, init=False)
    _steps: int = field(default=1, init=False)
    _due: float = field(default=1.0, init=False)
    _first_round: bool = field(default=True, init=False)
    _snapshot: str = field(default="", init=False)

    log = Logger()

    async def look(self) -> None:
        """Take the next steps of a round. To be called every ``LOOK_SECONDS``; a failure ends the steps of a call."""
        self._due += self._steps * LOOK_SECONDS / ROUND_SECONDS
        try:
            while self._due >= 1:
                self._due -= 1
                await self._step()
        except (DatabaseGone, psycopg2.Error) as fault:
            self._due = 0.0
            self.log.debug("the catalogue was not looked at ({why})", why=type(fault).__name__)

    async def _step(self) -> None:
        if not self._sections:
            await self._begin()
            return
        section = self._sections.pop()
        value = str((await self._asked(section))[0][0])
        before = self._values.get(section)
        self._values[section] = value
        if value != before and not self._first_round:
            self.holder.announce()
        elif self._first_round and not self._sections:
            self._first_round = False
            self.holder.announce()

    async def _begin(self) -> None:
        """Begin a round, unless changes are announced or nothing has been written since the last one began."""
        announced, snapshot = (await self._asked(STATE))[0]
        if announced:
            self._values, self._steps, self._first_round = {}, 1, True
            return
        if snapshot == self._snapshot and not self._first_round:
            self._steps = _IDLE_STEPS
            return
        self._snapshot = snapshot
        self._sections = sections([(str(name), int(blocks)) for name, blocks in await self._asked(SIZES)])
        self._values = {
            section: self._values[section] for section in self._sections if section in self._values
        }
        self._steps = len(self._sections) + 1

    async def _asked(self, sql: str) -> list[tuple[Any, ...]]:
        return await self.query(_CLEAN + sql, [])
