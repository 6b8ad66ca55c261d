"""The schema cache in use: read at the start, read again when a change is announced, kept when that fails."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson
import psycopg2
from attrs import define, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from project_service.database.connection import DatabaseGone
from project_service.database.pool import Pool, Transaction
from project_service.lifecycle import Backoff, SharedRun, background, cancel, with_timeout
from project_service.tables import errors
from project_service.tables.catalog import (
    ALL,
    FINGERPRINT,
    SIZES,
    STATE,
    VERSION,
    Keyed,
    Origin,
    Shown,
    base_columns,
    from_foreign_keys,
    role_settings,
    sections,
    through_junctions,
)
from project_service.tables.transaction_settings import NO_JIT, RESET, settings_text
from project_service.tables.values import (
    PLAIN,
    Argument,
    Column,
    Computed,
    Handler,
    Key,
    Relation,
    Relationship,
    Representation,
    Routine,
    SchemaCache,
    TablesConfig,
)

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


# Finds out whether the catalogue has changed since the schema cache was read.
#
# Where event triggers announce changes, only names that the cache does not know have to be looked for
# (``Freshness``). Where there are none, the whole catalogue is looked through again and again (``CatalogueWatch``).
#
# Notifications arrive in the order of the commits that sent them. So we send one to ourselves: when it has come
# back, every change of the catalogue that was committed before has been announced to us too.


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


# Reads the catalogue: a few queries in one read-only transaction, and then the schema cache, built in a thread.


Rows = Mapping[str, Any]
RunQuery = Callable[[str, Mapping[str, Any]], Awaitable[str]]

# Updatable by UPDATE, INSERT, DELETE: bits of pg_relation_is_updatable.
_UPDATE, _INSERT, _DELETE = 4, 8, 16

# All queries have to see the same moment. If the fingerprint were younger than the relations, a table made in between
# would never be noticed.
_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; "
# Fixes how PostgreSQL writes types and defaults, whatever the database or role has set: types are compared as text.
_WRITTEN = (("quote_all_identifiers", "off"), ("datestyle", "ISO"))


def loader(reactor: Any, pool: Pool, config: TablesConfig) -> Load:
    """A function that reads the schema cache with a connection of ``pool``, whose texts arrive as bytes."""
    # Set explicitly: an earlier request may have left another role, or a timeout too short for these queries.
    ours = (NO_JIT, ("role", "none"), ("search_path", ""), ("statement_timeout", config.statement_timeout))
    beginning = RESET + _SNAPSHOT + settings_text((*ours, *_WRITTEN))

    async def reading(transaction: Transaction) -> dict[str, str]:
        async def one(sql: str, params: Mapping[str, Any]) -> str:
            rows = await transaction.query(sql, params)
            return bytes(rows[0][0]).decode()

        await transaction.query(beginning, ())
        return await read(one, config.schemas, config.extra_search_path)

    async def load(version: int) -> SchemaCache:
        answers = await pool.transaction(reading)
        return await deferToThreadPool(
            reactor, reactor.getThreadPool(), build, answers, config.schemas, version
        )

    return load


async def read(run: RunQuery, schemas: tuple[str, ...], search_path: tuple[str, ...]) -> dict[str, str]:
    """The answers of all catalogue queries by name, still as JSON. ``run`` returns the one text that a query
    returns."""
    params = {"schemas": list(schemas), "search_path": [*schemas, *search_path]}
    queries = {**ALL, "roles": role_settings(int(await run(VERSION, params)))}
    return {name: await run(sql, params) for name, sql in queries.items()}


def build(answers: Mapping[str, str], schemas: tuple[str, ...], version: int) -> SchemaCache:
    """The schema cache made of these answers. Pure. Slow for thousands of tables, so it should run in a thread."""
    rows = {name: orjson.loads(text) for name, text in answers.items()}
    exposed = frozenset(schemas)
    bases = base_columns({row["oid"]: row["rule"] for row in rows["rules"]})
    keyed = _keyed(rows["keys"], bases)
    primary_keys = {relation.key: relation.primary_key for relation in keyed.values()}
    shown = Shown(keyed, bases)
    direct = from_foreign_keys(rows["foreign_keys"], shown, exposed)
    junctions = through_junctions(direct, {key: frozenset(names) for key, names in primary_keys.items()})
    computed = [_computed(row) for row in rows["computed"]]
    represented = _representations(rows["representations"])
    extras = rows["extras"]
    return SchemaCache(
        version=version,
        relations={
            (row["schema"], row["name"]): _relation(row, primary_keys, represented)
            for row in rows["relations"]
        },
        relationships=_grouped([*computed, *direct, *junctions], exposed),
        computed=_computed_columns(row for row in rows["computed_columns"] if row["relation"]),
        computed_of_any=_by_name(row for row in rows["computed_columns"] if not row["row"]),
        row_columns={
            (row["schema"], row["name"]): tuple(row["columns"] or ()) for row in rows["row_columns"]
        },
        row_functions=frozenset(extras["row_functions"]),
        routines=_routines(rows["routines"]),
        handlers=tuple(_handler(row) for row in rows["handlers"]),
        role_settings=_role_settings(rows["roles"]),
        schema_comments={name: text for name, text in extras["comments"].items() if text},
        has_postgis=extras["postgis"],
        fingerprint=extras["fingerprint"],
        leaves_things=extras["leaves_by_reading"] or extras["makes_temporary"],
        leaves_by_reading=extras["leaves_by_reading"],
        false_constants=tuple(extras["false_constants"]),
        sets_for_session=extras["sets_for_session"],
        changes_role=extras["changes_role"],
        guarded_within=extras["guarded_within"],
    )


def _keyed(rows: list[Rows], bases: Mapping[int, Mapping[Origin, list[int]]]) -> dict[int, Keyed]:
    found: dict[int, Keyed] = {}
    numbers: dict[int, list[int]] = {}
    for row in rows:
        columns = dict(row["columns"] or [])
        primary = [columns[number] for number in row["key"] or [] if number in columns]
        numbers[row["oid"]] = row["key"] or []
        key = (row["schema"], row["name"])
        found[row["oid"]] = Keyed(row["oid"], key, row["is_view"], columns, tuple(primary))
    for oid, origins in bases.items():
        if oid in found:
            view = found[oid]
            shown = _view_key(view, origins, numbers)
            found[oid] = Keyed(view.oid, view.key, view.is_view, view.columns, shown)
    return found


def _view_key(
    view: Keyed, origins: Mapping[Origin, list[int]], numbers: Mapping[int, list[int]]
) -> tuple[str, ...]:
    """The view's columns that show the primary keys of its base tables, for those keys that it shows completely."""
    shown: list[str] = []
    for table in dict.fromkeys(oid for oid, _ in origins):
        key = numbers.get(table) or []
        if key and all((table, number) in origins for number in key):
            names = (view.columns.get(origins[table, number][0]) for number in key)
            shown.extend(name for name in names if name is not None)
    return tuple(dict.fromkeys(shown))


def _representations(rows: list[Rows]) -> dict[str, Representation]:
    """By type, for those that have any."""
    casts = {(row["source"], row["target"]): (row["schema"], row["name"]) for row in rows}
    types = {type_ for cast in casts for type_ in cast} - {"json", "text"}
    return {
        type_: Representation(
            casts.get((type_, "json")), casts.get(("text", type_)), casts.get(("json", type_))
        )
        for type_ in types
    }


def _relation(
    row: Rows, primary_keys: Mapping[Key, tuple[str, ...]], represented: Mapping[str, Representation]
) -> Relation:
    key = (row["schema"], row["name"])
    columns = {found[0]: _column(found, represented) for found in row["columns"] or []}
    events = row["events"]
    return Relation(
        schema=row["schema"],
        name=row["name"],
        columns=columns,
        primary_key=tuple(name for name in primary_keys.get(key, ()) if name in columns),
        is_view=row["kind"] in ("v", "m"),
        insertable=bool(events & _INSERT),
        updatable=bool(events & _UPDATE),
        deletable=bool(events & _DELETE),
        description=row["description"],
        row_bytes=row["row_bytes"] or 0,
        inherited=row["inherited"],
        expands=row["expands"],
        has_system_columns=row["kind"] != "v",
    )


def _column(row: list[Any], represented: Mapping[str, Representation]) -> Column:
    name, type_, base, nullable, default, enum, description, length = row
    shown = represented.get(type_, PLAIN)
    return Column(name, type_, base, nullable, default, tuple(enum or ()), description, length, shown)


def _computed(row: Rows) -> Relationship:
    return Relationship(
        (row["origin"][0], row["origin"][1]),
        (row["target"][0], row["target"][1]),
        "m2o" if row["to_one"] else "o2m",
        is_self=row["origin"] == row["target"],
        routine=(row["schema"], row["name"]),
    )


def _computed_columns(rows: Iterable[Rows]) -> dict[Key, dict[str, tuple[Computed, ...]]]:
    groups: dict[Key, list[Rows]] = defaultdict(list)
    for row in rows:
        groups[row["relation"][0], row["relation"][1]].append(row)
    return {key: _by_name(group) for key, group in groups.items()}


def _by_name(rows: Iterable[Rows]) -> dict[str, tuple[Computed, ...]]:
    groups: dict[str, list[Computed]] = defaultdict(list)
    for row in rows:
        taken = (row["row"][0], row["row"][1]) if row["row"] else None
        groups[row["name"]].append(Computed((row["schema"], row["name"]), taken, row["is_record"]))
    return {name: tuple(group) for name, group in groups.items()}


def _grouped(found: list[Relationship], exposed: frozenset[str]) -> dict[Key, tuple[Relationship, ...]]:
    """Relationships by origin, in the order in which error messages list choices.

    Those through junctions that are not exposed are left out, but leave an (empty) group behind.
    """
    groups: dict[Key, list[Relationship]] = defaultdict(list)
    for relationship in found:
        group = groups[relationship.origin]
        if relationship.junction is None or relationship.junction.key[0] in exposed:
            group.append(relationship)
    return {key: tuple(sorted(group, key=_place)) for key, group in groups.items()}


_CARDINALITIES = ("o2m", "m2o", "o2o", "m2m")


def _place(way: Relationship) -> tuple[Any, ...]:
    kind = (way.routine is None, way.target, way.is_self, _CARDINALITIES.index(way.cardinality))
    through = way.junction
    if through is None:
        return (*kind, way.constraint, way.pairs)
    return (
        *kind,
        through.key,
        through.to_origin,
        through.to_target,
        through.origin_pairs,
        through.target_pairs,
    )


def _routines(rows: list[Rows]) -> dict[Key, tuple[Routine, ...]]:
    groups: dict[Key, list[Routine]] = defaultdict(list)
    for row in rows:
        groups[row["schema"], row["name"]].append(_routine(row))
    return {key: tuple(group) for key, group in groups.items()}


def _routine(row: Rows) -> Routine:
    returns = row["returns"]
    settings = (setting.partition("=") for setting in row["settings"])
    return Routine(
        schema=row["schema"],
        name=row["name"],
        arguments=tuple(_argument(found) for found in row["arguments"] or []),
        returns=(returns[0], returns[1]) if returns else None,
        is_composite=row["is_composite"],
        is_set=row["is_set"],
        is_void=row["is_void"],
        shows_records=row["shows_records"],
        volatility=row["volatility"],
        settings=tuple((name, value) for name, _, value in settings),
        description=row["description"],
        return_media=row["return_media"],
        is_bytes=row["is_bytes"],
        is_sql=row["is_sql"],
        columns=tuple(row["columns"] or ()),
    )


def _argument(found: list[Any]) -> Argument:
    name, type_, cast, required, variadic = found
    return Argument(name, type_, cast, required, bool(variadic))


def _handler(row: Rows) -> Handler:
    relation = row["relation"]
    return Handler((row["schema"], row["name"]), row["media"], tuple(relation) if relation else None)


def _role_settings(rows: list[Rows]) -> dict[str, tuple[tuple[str, str], ...]]:
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["role"]].append((row["name"], row["value"]))
    return {role: tuple(found) for role, found in groups.items()}
