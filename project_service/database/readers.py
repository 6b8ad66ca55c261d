"""Reads on hot standbys, no staler than promised (``Readers``).

Purpose: most requests read, and standbys can answer them; but a caller must never see what is older than
``max_staleness_seconds``, nor what is older than its own writes.

Plan: the promise follows from positions in the write-ahead log (``staleness``). This process asks the primary and
each standby where they are, several times within ``max_staleness_seconds`` and over connections that requests do not
wait for. ``Readers.read`` runs a read on a standby that is fresh enough for it, and on the primary where there is
none, or where the standby fails: nothing has been sent to the client by then, so a read may be run twice.

* A caller that has written through this process is served by the primary until a standby is fresh as of a later time.
* A client that hands back the ``token`` of its last write gets the same from all processes of all hosts.
* What was made with the schema cache runs where the schema is at least as new: on standbys that are fresh as of a
  time after it was read (``Ask.basis``).
* The connections of a pool all lead to one run of one server, the one that was asked for its position. A name may
  lead to several servers, or to another one after a failover: then the connection is refused, or the pool replaced.
  One through a pooler is refused too, since its session may become another caller's with the next transaction.
* A standby that was promoted, has another history than the primary, or is ahead of it, is not read from. Servers that
  swap roles are all named as readers: the one that is the primary now is left out, which is no fault.

While the primary is away no standby becomes any fresher, and after ``max_staleness_seconds`` none is used.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import psycopg2
from attrs import define, evolve, field, frozen
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from project_service.database.connecting import Connector
from project_service.database.connection import Connection, DatabaseGone, DatabaseSilent, Row
from project_service.database.errors import outage_of
from project_service.database.listener import Listener
from project_service.database.pool import Pool
from project_service.database.staleness import (
    NEVER,
    NOTHING_WANTED,
    PRIMARY,
    Position,
    Samples,
    Wanted,
    Writers,
)
from project_service.dsn import Candidate, Target, read_dsn
from project_service.errors import ApiError, Away
from project_service.lifecycle import Every, SharedRun, background, start, with_timeout
from project_service.settings.model import Secret

A = TypeVar("A")
R = TypeVar("R")
Connect = Callable[[], Awaitable[Connection]]
# What a part reads with, and its pools: the first is the one whose free connections count.
Make = Callable[[Connect], tuple[A, Sequence[Pool]]]
Query = Callable[[str], Awaitable[list[Row]]]
# Makes a connection that is not open yet.
NewConnection = Callable[[Any], Connection]

# How often positions are asked for, as a part of max_staleness_seconds, and within which bounds, in seconds.
SAMPLES = 8
SHORTEST_PERIOD_SECONDS = 0.05
LONGEST_PERIOD_SECONDS = 1.0
# How long a standby may take to say where it is. Then it is taken for hanging, and its connections are closed, so
# that those who wait for them are served by the primary.
ANSWER_SECONDS = 2.0
# How long a write waits for its token.
TOKEN_SECONDS = 0.5
# How long a read waits for a connection to a standby, before the primary serves it.
ACQUIRE_SECONDS = 1.0
# A standby whose state changes all the time is written about so often.
LOG_SECONDS = 60.0

# Together they are different for every run of a server, and the same over each of its addresses.
_SYSTEM = "(select system_identifier from pg_control_system())"
_STARTED = "(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint"
# The insert position, not the one up to which has been written: with synchronous_commit off a commit is acknowledged,
# and seen by others, before it is written.
_OF_PRIMARY = f"""
select {_SYSTEM}, {_STARTED},
('x' || substr(pg_walfile_name(at), 1, 8))::bit(32)::bigint,
(at - '0/0'::pg_lsn)::bigint,
pg_size_bytes(current_setting('wal_segment_size'))
from (select case when pg_is_in_recovery() then null else pg_current_wal_insert_lsn() end) as here (at)
"""  # noqa: S608  # text of ours
# The timeline of the log that is being received belongs to the history that is replayed. Only pg_read_all_stats sees
# it; the control file, which all may read, says the same some minutes later.
_TIMELINE = """
coalesce((select received_tli from pg_stat_wal_receiver), greatest(
(select timeline_id from pg_control_checkpoint()), (select min_recovery_end_timeline from pg_control_recovery())))
"""
# Whether the login role was granted pg_read_all_stats. If it does not inherit, as the documentation recommends, it
# only sees what that role sees while it acts as that role. (From PostgreSQL 16 on a grant may forbid that.)
_MAY_ACT = """
pg_has_role(session_user, 'pg_read_all_stats',
case when current_setting('server_version_num')::int < 160000 then 'member' else 'set' end)
"""
_RUN = f"{_SYSTEM}, {_STARTED}, inet_server_addr()::text, inet_server_port()"
# At the end of the message, which is one transaction, the role is the login role again.
BECOMING_READER_OF_STATS = f"select set_config('role', 'pg_read_all_stats', true) where {_MAY_ACT}"
_OF_STANDBY = f"""
{BECOMING_READER_OF_STATS};
select pg_is_in_recovery(), {_TIMELINE}::bigint, (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, {_RUN}
"""

_POOLED = "a pooler answers: name the server itself"

# The header of a reply to a write, and of the requests that are to see it.
CONSISTENCY = "Consistency-Token"
SHOWS_WRITE = "Where reads go to standbys: a read that is sent with this header shows what was written."
WANTS_WRITE = (
    "That of the reply to a write, or several with commas between: the answer shows what was written."
)

# Errors that another server would most likely give too, by how their SQLSTATE begins: about values and the rows
# found, a function's own, and a statement that took too long. And PostgREST's for what a reply may be.
_LAST_WORD = ("21", "22", "23", "57014", "P0", "PT", "PGRST1")
# But not this one, which PostgreSQL gives for a role that does not exist: a standby may not have it yet.
_NO_SUCH_ROLE = "22023"


def boot_seconds() -> float:
    """A clock that never goes back, and goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@frozen
class Ask:
    """What a read needs. ``caller`` is who reads: the same value as in ``Readers.wrote``. ``wanted`` are the tokens
    that the request carries; ``strong`` asks for the primary. ``basis`` is something that is different after each
    change of the schema, or of anything else that this process knows of the database: the read goes to standbys that
    know it too. So it is with what was known anew at ``since``, a time of ``Readers.now``, and concerns this read."""

    caller: Hashable
    wanted: Wanted = NOTHING_WANTED
    strong: bool = False
    basis: Hashable = None
    since: float = NEVER


class Probe(Protocol):
    """A connection for short queries that is made anew when it is lost (``listener.Listener``)."""

    async def query(self, sql: str) -> list[Row]:
        """Raises ``DatabaseGone`` while there is no connection, and ``DatabaseSilent`` if it does not answer."""

    def startService(self) -> None: ...

    def stopService(self) -> Deferred[None] | None: ...


@define(eq=False)
class Reader(Generic[A]):
    """One standby, to which ``connect`` connects, and which ``probe`` asks where it is. ``access`` is what the part
    reads with, made for ``server``, one run of it. ``fresh_as_of``: all that was acknowledged before is shown there.
    ``why_not`` is why it is not read from, or "" if it is."""

    name: str
    connect: Connect
    probe: Probe
    samples: Samples
    make: Make[A]
    now: Callable[[], float]
    server: tuple[Any, ...] | None = field(default=None, init=False)
    replayed: Position | None = field(default=None, init=False)
    fresh_as_of: float = field(default=NEVER, init=False)
    access: A | None = field(default=None, init=False)
    pools: Sequence[Pool] = field(default=(), init=False)
    why_not: str = field(default="it has not answered yet", init=False)
    _seen: float = field(default=NEVER, init=False)
    _writable: bool = field(default=False, init=False)
    _parted: bool = field(default=False, init=False)
    _logged: str = field(default="", init=False)
    _logged_at: float = field(default=NEVER, init=False)

    log = Logger()

    async def look(self) -> None:
        """Ask where the standby is. Does not raise."""
        try:
            (row,) = await self.probe.query(_OF_STANDBY)
        except DatabaseSilent:
            self._leave("it does not answer")
            self._replace(None)
            return
        except (DatabaseGone, psycopg2.Error) as fault:
            refused = f" ({fault.pgcode})" if isinstance(fault, psycopg2.Error) else ""
            self._leave(f"it cannot be asked where it is{refused}")
            if self.now() > self._seen + ANSWER_SECONDS:
                self._replace(None)
            return
        standby, timeline, lsn, *server = row
        if tuple(server) != self.server:
            self._replace(tuple(server))
        if standby and (timeline is None or lsn is None):
            self._leave("it does not say how far it has replayed")
            return
        self.replayed = Position(_unsigned(server[0]), timeline, lsn) if standby else None
        self._writable, self._seen = not standby, self.now()
        self.judge()

    @property
    def is_primary(self) -> bool:
        """Whether it is the primary now, which the samples are of: servers may swap roles."""
        return self._writable and self.server is not None and self.server[:2] == self.samples.server

    def judge(self, asked: float = NEVER) -> None:
        """Work out as of when it is fresh, after a new answer of its own, or of the primary to what was ``asked``."""
        replayed, latest = self.replayed, self.samples.latest
        if self._writable and latest is not None:
            self._say("it is the primary now" if self.is_primary else "it is no standby any more")
        if replayed is None or latest is None:
            self.fresh_as_of = NEVER
            return
        if self._seen <= asked and self.samples.contradicts(replayed):
            self._parted = True
        if latest.system != replayed.system:
            self._leave("it belongs to another database server than the primary")
        elif latest.timeline != replayed.timeline:
            self._leave("it has another timeline than the primary, or does not know the new one yet")
        elif self._parted:
            self._leave("it is ahead of the primary, so it has parted from it and has to be made anew")
        else:
            self.fresh_as_of = self.samples.fresh_as_of(replayed)
            self._say("")

    def _leave(self, why: str) -> None:
        self.replayed, self.fresh_as_of, self._writable = None, NEVER, False
        self._say(why)

    def _say(self, why_not: str) -> None:
        self.why_not = why_not
        now = self.now()
        if why_not == self._logged or now < self._logged_at + LOG_SECONDS:
            return
        self._logged, self._logged_at = why_not, now
        if self.is_primary:
            self.log.info("the reader {name} is the primary now", name=self.name)
        elif why_not:
            self.log.warn("no reads go to the reader {name}: {why}", name=self.name, why=why_not)
        else:
            self.log.info("reads go to the reader {name} again", name=self.name)

    def _replace(self, server: tuple[Any, ...] | None) -> None:
        """What was known is about another run of the server, and connections to that one are not used any more."""
        before, self.pools, self.access = self.pools, (), None
        self.server, self._parted, self.fresh_as_of, self.replayed = server, False, NEVER, None
        if server is not None:
            self.access, self.pools = self.make(partial(self._connect, server))
        for pool in before:
            background(pool.close(0), "closing the connections to a reader")

    async def _connect(self, server: tuple[Any, ...]) -> Connection:
        connection = await self.connect()
        try:
            (row,) = await connection.query(f"select {_RUN}")
            if row != server:
                raise DatabaseGone("another server answers")
        except psycopg2.Error as fault:
            connection.close()
            raise DatabaseGone("it does not say which server it is") from fault
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_free(self) -> bool:
        """Whether connections to it can be made, as far as is known."""
        return self.access is not None and not self.pools[0].pauses

    def start(self) -> None:
        self.probe.startService()

    async def stop(self) -> None:
        stopping = self.probe.stopService()
        if stopping is not None:
            await stopping


@define(eq=False)
class Readers(Service, Generic[A]):
    """The standbys of one database, ``of`` being its name in the log. ``primary`` is what reads use otherwise.

    ``query`` runs a statement on the primary, on a connection that requests do not wait for.
    """

    of: str
    primary: A
    query: Query
    readers: Sequence[Reader[A]]
    samples: Samples
    max_staleness_seconds: float
    clock: Any
    now: Callable[[], float] = boot_seconds
    # How many reads were sent to a "reader", or to the "primary" and why.
    served: dict[tuple[str, str], int] = field(factory=dict, init=False)
    _writers: Writers = field(init=False)
    _turn: int = field(default=0, init=False)
    _basis: Hashable = field(default=None, init=False)
    _basis_since: float = field(default=NEVER, init=False)
    _sampling: SharedRun[Position] = field(init=False)
    _loops: Sequence[Every] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._writers = Writers(self.max_staleness_seconds)
        self._sampling = SharedRun(self._sample, "asking the primary for its position")
        period = max(self.max_staleness_seconds / SAMPLES, SHORTEST_PERIOD_SECONDS)
        period = min(period, LONGEST_PERIOD_SECONDS)
        jobs = {f"the position of {self.of}": self._look, **{one.name: one.look for one in self.readers}}
        self._loops = [Every(period, job, self.clock, name, outage_of) for name, job in jobs.items()]

    # For reads

    async def read(self, ask: Ask, function: Callable[[A], Awaitable[R]]) -> R:
        """The result of ``function``, called with a reader's ``access``, or with ``primary`` where no reader is
        fresh enough for ``ask``, or where the reader has failed. So it may be called twice: it must only read, and
        must not have sent anything to a client when it raises."""
        access = self.choose(ask)
        if access is not None:
            try:
                return await function(access)
            except (ApiError, Away, psycopg2.Error) as fault:
                if not self.repeats(fault):
                    raise
        return await function(self.primary)

    def choose(self, ask: Ask) -> A | None:
        """The ``access`` of a reader that may serve ``ask``; None for the primary. Either is counted."""
        now = self.now()
        if ask.basis != self._basis:
            self._basis, self._basis_since = ask.basis, now
        fresh, why = self._fresh_for(ask, now)
        if why:
            self._count("primary", why)
            return None
        self._count("reader", "")
        self._turn += 1
        return fresh[self._turn % len(fresh)].access

    def repeats(self, fault: BaseException) -> bool:
        """Whether a read that failed so on a reader is to be run once more, on the primary, which is counted."""
        code = getattr(fault, "pgcode", None) or getattr(fault, "code", None)
        if isinstance(code, str) and code.startswith(_LAST_WORD) and code != _NO_SUCH_ROLE:
            return False
        self._count("primary", "failed")
        return True

    def _fresh_for(self, ask: Ask, now: float) -> tuple[Sequence[Reader[A]], str]:
        """The readers that may serve ``ask``, and if there is none, why."""
        if ask.strong:
            return (), "strong"
        oldest = now - self.max_staleness_seconds
        fresh = [one for one in self.readers if one.fresh_as_of >= oldest and one.is_free]
        if not fresh:
            return (), "stale"
        known = max(self._basis_since, ask.since)
        fresh = [one for one in fresh if one.fresh_as_of > known]
        if not fresh:
            return (), "schema"
        written = self._writers.last(ask.caller)
        fresh = [one for one in fresh if one.fresh_as_of > written]
        if not fresh:
            return (), "written"
        if ask.wanted is not NOTHING_WANTED:
            fresh = [one for one in fresh if one.replayed is not None and ask.wanted.shown_by(one.replayed)]
        return fresh, "" if fresh else "token"

    def _count(self, server: str, why: str) -> None:
        self.served[server, why] = self.served.get((server, why), 0) + 1

    @property
    def staleness(self) -> dict[str, float]:
        """By the name of each reader, how many seconds old what it shows may be: infinite where it is not used, and 0
        where it is the primary now, which needs no reader."""
        now = self.now()
        return {one.name: 0.0 if one.is_primary else now - one.fresh_as_of for one in self.readers}

    # For writes

    def wrote(self, caller: Hashable) -> None:
        """``caller`` has written, or may have: to be called before it is told so."""
        self._writers.wrote(caller, self.now())

    async def token(self) -> str:
        """A token of all that has been committed up to now: a read that ``wants`` it is served by who shows all of
        that. Where it is not known how far that is, the token asks for the primary."""
        try:
            position = await with_timeout(self.clock, TOKEN_SECONDS, self._sampling.join(), TimeoutError)
        except (TimeoutError, Away, psycopg2.Error):
            return PRIMARY
        return position.token

    # Sampling

    async def _look(self) -> None:
        try:
            await self._sampling.join()
        except (Away, psycopg2.Error):
            # The primary is away, which is logged elsewhere. What is known grows old.
            return

    async def _sample(self) -> Position:
        asked = self.now()
        ((system, started, timeline, lsn, segment),) = await self.query(_OF_PRIMARY)
        if lsn is None:
            raise DatabaseGone("the server is read-only")
        position = Position.of_primary(_unsigned(system), timeline, lsn, segment)
        self.samples.add(asked, position)
        self.samples.server = (system, started)
        for reader in self.readers:
            reader.judge(asked)
        return position

    def startService(self) -> None:
        super().startService()
        for reader in self.readers:
            reader.start()
        for loop in self._loops:
            loop.startService()

    async def _stop(self) -> None:
        for loop in self._loops:
            stopping = loop.stopService()
            if stopping is not None:
                stopping.cancel()
                await stopping
        for reader in self.readers:
            await reader.stop()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return start(self._stop())

    async def close(self, grace_seconds: float | None = None) -> None:
        """Close all pools, as ``Pool.close``."""
        for reader in self.readers:
            for pool in reader.pools:
                await pool.close(grace_seconds)


def readers_of(
    reactor: Any,
    of: str,
    dsns: Iterable[Secret],
    max_staleness_seconds: float,
    statement_timeout_seconds: float,
    primary: A,
    query: Query,
    make: Make[A],
    now: Callable[[], float] = boot_seconds,
    timezone: str | None = None,
    new_connection: NewConnection = Connection,
) -> Readers[A] | None:
    """The readers that ``dsns`` name, each host being one; None if there is none. ``make`` returns what reads use,
    with its pools (which wait for ``ACQUIRE_SECONDS`` at most), by a function that connects."""
    candidates = candidates_of(dsns)
    if not candidates:
        return None
    samples = Samples(max_staleness_seconds)
    readers = []
    for name, candidate in candidates:
        target = Target((candidate,), writable=False)
        connector = Connector(
            reactor,
            target,
            statement_timeout_seconds,
            timezone,
            renews=False,
            new_connection=new_connection,
        )
        quick = evolve(connector, statement_timeout_seconds=ANSWER_SECONDS)
        probe = Listener(partial(directly, quick), reactor, f"the reader {name}", ANSWER_SECONDS)
        readers.append(Reader(name, partial(directly, connector), probe, samples, make, now))
    return Readers(of, primary, query, readers, samples, max_staleness_seconds, reactor, now)


async def directly(connect: Connect) -> Connection:
    """A connection to a server itself. Raises ``DatabaseGone`` if it leads to a pooler, and as ``connect``."""
    connection = await connect()
    try:
        if await is_pooled(connection):
            raise DatabaseGone(_POOLED)
    except psycopg2.Error as fault:
        connection.close()
        raise DatabaseGone("it does not say which session it is") from fault
    except BaseException:
        connection.close()
        raise
    return connection


async def is_pooled(connection: Connection) -> bool:
    """Whether a pooler, of whatever mode, stands between us and the server: it gives out keys of its own for
    cancelling statements, while a server's begins with the id of the session's process (PostgreSQL's manual, "Message
    Formats", BackendKeyData)."""
    ((process,),) = await connection.query("select pg_backend_pid()")
    return bool(process != connection.raw.get_backend_pid())


class NotAReader(Exception):
    """A standby cannot be read from, or not within the promise. The message says why."""


async def measured(
    primary: Connection, standby: Connection, seconds: float, pause: Callable[[], Awaitable[None]]
) -> str:
    """How far ``standby`` is behind ``primary``, for people to read, or that it is the primary, as after servers have
    swapped roles. Raises ``NotAReader`` where it is no standby of it, or takes longer than ``seconds`` to show what
    the primary had written. ``pause`` is called between questions.
    """
    if await is_pooled(standby):
        raise NotAReader(_POOLED)
    began = boot_seconds()
    ((*server, timeline, lsn, segment),) = await primary.query(_OF_PRIMARY)
    if lsn is None:
        raise NotAReader("the primary is read-only itself")
    position = Position.of_primary(_unsigned(server[0]), timeline, lsn, segment)
    while True:
        ((is_standby, timeline, lsn, system, started, *_),) = await standby.query(_OF_STANDBY)
        if not is_standby and [system, started] == server:
            return "is the primary now"
        if not is_standby:
            raise NotAReader("it is no standby")
        if _unsigned(system) != position.system:
            raise NotAReader("it is a standby of another database server")
        if timeline is None or lsn is None:
            raise NotAReader("it does not say how far it has replayed")
        if timeline != position.timeline:
            raise NotAReader("it is on another timeline than the primary, or does not know the new one yet")
        behind = boot_seconds() - began
        if lsn >= position.lsn:
            break
        if behind > seconds:
            missing = position.lsn - lsn
            raise NotAReader(f"it is more than {seconds:g} s ({missing} bytes) behind")
        await pause()
    ((sees,),) = await standby.query(f"select pg_has_role('pg_read_all_stats', 'usage') or {_MAY_ACT}")
    later = "" if sees else "; without the role pg_read_all_stats it is not used for minutes after a failover"
    return f"at most {max(behind, 0.01):.2f} s behind{later}"


def count(dsns: Iterable[Secret]) -> int:
    """How many readers ``dsns`` name."""
    return len(candidates_of(dsns))


def candidates_of(dsns: Iterable[Secret]) -> list[tuple[str, Candidate]]:
    """The servers in ``dsns`` with a name for each, once."""
    found: dict[str, Candidate] = {}
    for dsn in dsns:
        for candidate in read_dsn(dsn.reveal(), standbys=True).candidates:
            found.setdefault(candidate.server, candidate)
    return list(found.items())


def _unsigned(system: int) -> int:
    return system % 2**64
