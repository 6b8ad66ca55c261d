"""The schema cache in use, and how it is kept current.

``CacheHolder`` reads the catalog at the start and again after each change. Changes are announced by event triggers
where the database has them (docs/tables.rst). Where it has none, ``CatalogWatch`` looks through the whole catalog
again and again. For a request that names something unknown, ``Freshness`` finds out whether a newer cache knows it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import psycopg2
from attrs import define, evolve, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from project_service.database.acting import settings_text, warn_of_constants
from project_service.database.connection import DatabaseGone
from project_service.database.pool import Pool, Transaction
from project_service.database.trust import UNKNOWN, Trust
from project_service.lifecycle import Backoff, SharedRun, background, cancel, with_timeout
from project_service.tables import errors
from project_service.tables.run.transaction_settings import NO_JIT
from project_service.tables.schema_cache.build import build
from project_service.tables.schema_cache.queries import (
    FINGERPRINT,
    QUERIES,
    SIZES,
    STATE,
    VERSION,
    role_settings,
    sections,
)
from project_service.tables.values import SchemaCache, TablesConfig

Load = Callable[[int], Awaitable[SchemaCache]]
RunQuery = Callable[[str, Mapping[str, Any]], Awaitable[str]]
Query = Callable[[str, Sequence[object]], Awaitable[list[tuple[Any, ...]]]]

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0

# All queries have to see the same moment. If the fingerprint were younger than the relations, a table made in between
# would never be noticed.
_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; "
# Fixes how PostgreSQL writes types and defaults, whatever the database or role has set: types are compared as text.
_WRITTEN = (("quote_all_identifiers", "off"), ("datestyle", "ISO"))


def loader(reactor: Any, pool: Pool, config: TablesConfig) -> Load:
    """A function that reads the schema cache in one transaction of ``pool``, whose texts arrive as bytes."""
    # Set explicitly: behind a proxy others may have left another role, or a timeout too short for these queries.
    ours = (NO_JIT, ("role", "none"), ("search_path", ""), ("statement_timeout", config.statement_timeout))
    beginning = _SNAPSHOT + settings_text((*ours, *_WRITTEN))

    async def reading(transaction: Transaction) -> dict[str, str]:
        async def run(sql: str, params: Mapping[str, Any]) -> str:
            return bytes((await transaction.query(sql, params))[0][0]).decode()

        await transaction.query(beginning, ())
        return await read(run, config.schemas, config.extra_search_path)

    async def load(version: int) -> SchemaCache:
        answers = await pool.transaction(reading)

        def built() -> SchemaCache:
            cache = build(answers, config.schemas, version)
            return evolve(cache, mark=mark_of(answers)) if config.pooled else cache

        return await deferToThreadPool(reactor, reactor.getThreadPool(), built)

    return load


async def read(run: RunQuery, schemas: tuple[str, ...], search_path: tuple[str, ...]) -> dict[str, str]:
    """The answers of all catalog queries by name, as ``build`` takes them. ``run`` returns the one text that a query
    returns."""
    params = {"schemas": list(schemas), "search_path": [*schemas, *search_path]}
    queries = {**QUERIES, "roles": role_settings(int(await run(VERSION, params)))}
    return {name: await run(sql, params) for name, sql in queries.items()}


def mark_of(answers: Mapping[str, str]) -> str:
    """An SQL comment that is the same for the same catalog, whoever has read it."""
    digest = hashlib.sha256("\0".join(f"{name}={answers[name]}" for name in sorted(answers)).encode())
    return f" /* {digest.hexdigest()[:16]} */"


class CacheHolder(Service):
    """Holds the schema cache. Reads it once at a time; a change that is announced during a reading makes it read once
    more, and a reading that failed is tried again after growing pauses, as long as the service runs."""

    log = Logger()

    def __init__(self, load: Load, clock: IReactorTime) -> None:
        self._load = load
        self._clock = clock
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._retry: IDelayedCall | None = None
        # The trust in the database's SQL as it was read the last time.
        self._trusted: Trust | None = None
        # The schema cache; None until the first reading has succeeded.
        self.cache: SchemaCache | None = None
        self._version = 0
        # A flag of its own, because a reading may end before ``background`` returns.
        self._running = False
        self._again = False
        # Those who wait in ``up_to_date``, and the number of the reading whose end they wait for.
        self._waiting: dict[Deferred[None], int] = {}

    def trust(self) -> Trust:
        """How far the SQL of the database can be trusted."""
        return UNKNOWN if self.cache is None else self.cache.trust

    @property
    def current(self) -> SchemaCache:
        """The schema cache. Raises PGRST002 until the first reading has succeeded."""
        if self.cache is None:
            raise errors.schema_cache_missing()
        return self.cache

    def stopService(self) -> None:
        super().stopService()
        cancel(self._retry)

    def announce(self) -> None:
        """The catalog has changed: read it in the background, or once more if it is being read.

        What the SQL of the database may do by now is unknown until it has been read.
        """
        if self.cache is not None:
            self.cache = evolve(self.cache, trust=UNKNOWN)
        if self._running:
            self._again = True
            return
        self._running = True
        background(self._run(), "reading the schema cache")

    def notified(self, payload: str) -> None:
        """Act on a notification on PostgREST's channel.

        "reload config" reads the schema cache as well, because that is where settings of roles are held here. Other
        payloads are ignored, as PostgREST does.
        """
        if payload in ("", "reload schema", "reload config"):
            self.announce()

    async def reload(self) -> None:
        """Read the catalog. Returns when a reading that began no earlier than now has ended, well or not."""
        self.announce()
        await self.up_to_date()

    async def up_to_date(self) -> None:
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
                self._wake(self._version)
                if not self._again:
                    return
        finally:
            self._running = False
            self._wake(self._version + 1)

    def _wake(self, number: int) -> None:
        """Wake everybody who waits for the reading ``number`` or an earlier one."""
        for waiting in [waiting for waiting, needed in self._waiting.items() if needed <= number]:
            # A caller that is woken may cancel others.
            if self._waiting.pop(waiting, None) is not None:
                waiting.callback(None)

    async def _read(self) -> None:
        self._version += 1
        cancel(self._retry)
        try:
            cache = await self._load(self._version)
            self._backoff.succeeded()
            warn_of_constants(self._trusted, cache.trust)
            self._trusted = cache.trust
            # A change that was announced meanwhile may be missing, and is about to be read.
            self.cache = evolve(cache, trust=UNKNOWN) if self._again else cache
        except Exception as error:
            if self.running:
                self._retry = self._clock.callLater(self._backoff.failed(), self.announce)
            kept = "the old one is kept" if self.cache is not None else "there is none yet"
            # PostgreSQL's message names the object that cannot be read.
            message = error.diag.message_primary if isinstance(error, psycopg2.Error) else None
            why = f"{type(error).__name__}: {message}" if message else type(error).__name__
            self.log.warn("the schema cache could not be read ({why}); {kept}", why=why, kept=kept)


# Notifications arrive in the order of the commits that sent them. So we send one to ourselves: when it has come
# back, every change of the catalog that was committed before has been announced to us too.


CHANNEL = "pgrst_sync"
WAIT_SECONDS = 1.0
# With this many waiting for a notification to come back, further misses are answered without asking the database.
_MAX_WAITING = 20
_REMEMBERED = 200

# Begins each message here: only names of PostgreSQL's own are found without a schema.
_CLEAN = f"{settings_text((('search_path', ''),))}; "
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
        if len(self._waiting) >= _MAX_WAITING:
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

    The database is asked by one query at a time, and all callers that arrive in the meantime share the next one. So
    any number of misses takes no more than one connection.
    """

    holder: CacheHolder
    pool: Pool
    echo: Echo
    _checks: SharedRun[None] = field(init=False)

    log = Logger()

    def __attrs_post_init__(self) -> None:
        self._checks = SharedRun(self._check, "looking for changes of the schema")

    async def newer(self, than: SchemaCache) -> SchemaCache | None:
        """A cache read after ``than``, or None where nothing has changed since."""
        await self._checks.join()
        await self.holder.up_to_date()
        current = self.holder.current
        return current if current.version != than.version else None

    async def _check(self) -> None:
        try:
            await self.echo.come_back()
            # A reading that is under way may have begun before a change that nobody announced.
            await self.holder.up_to_date()
            # For databases without the event triggers that announce changes.
            rows = await self.pool.query(f"{_CLEAN}select {FINGERPRINT}", [])
            if bytes(rows[0][0]).decode() != self.holder.current.fingerprint:
                self.holder.announce()
        except Exception as error:
            # The database is away, or a standby, which cannot notify: the name stays unknown.
            self.log.debug("the schema cache was not checked ({why})", why=type(error).__name__)


class Announced(Protocol):
    """What is told of changes of the catalog."""

    def announce(self) -> None: ...


# The catalog is looked through once in so many seconds, in short queries that are spread over them.
ROUND_SECONDS = 3.0
LOOK_SECONDS = 0.25
# How often it is asked in that time whether anything was written at all.
_IDLE_STEPS = 5


@define(eq=False)
class CatalogWatch:
    """Notices changes of the catalog within a round, where no event triggers announce them, or their announcements
    may not arrive (``hears`` is false).

    ``query`` runs a statement on a connection that requests do not wait for. A row that is changed between the
    reading of the schema cache and the first look at it would go unnoticed, so the cache is read again after the
    first round.
    """

    holder: Announced
    query: Query
    hears: bool = True
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
        except (DatabaseGone, psycopg2.Error) as error:
            self._due = 0.0
            self.log.debug("the catalog was not looked through ({why})", why=type(error).__name__)

    async def _step(self) -> None:
        if not self._sections:
            await self._begin()
            return
        section = self._sections.pop()
        value = str((await self.query(_CLEAN + section, []))[0][0])
        before = self._values.get(section)
        self._values[section] = value
        if value != before and not self._first_round:
            self.holder.announce()
        elif self._first_round and not self._sections:
            self._first_round = False
            self.holder.announce()

    async def _begin(self) -> None:
        """Begin a round, unless changes are announced or nothing has been written since the last one began."""
        announced, snapshot = (await self.query(_CLEAN + STATE, []))[0]
        if announced and self.hears:
            self._values, self._steps, self._first_round = {}, 1, True
            return
        if snapshot == self._snapshot and not self._first_round:
            self._steps = _IDLE_STEPS
            return
        self._snapshot = snapshot
        sizes = await self.query(_CLEAN + SIZES, [])
        self._sections = sections([(str(name), int(blocks)) for name, blocks in sizes])
        self._values = {
            section: self._values[section] for section in self._sections if section in self._values
        }
        self._steps = len(self._sections) + 1
