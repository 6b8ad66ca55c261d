"""Running SQL as somebody, on connections that serve one caller after another: the one place for role, claims, plans,
resets and sharing.

A transaction begins with what is set for it alone (``Preamble``): the role, the claims, the request itself. All of
that ends with it. What an application's SQL may leave behind, and what PostgreSQL's cached plans may hold, is judged
by ``trust``:

* Quick reads share connections only where nothing can stay behind (``Preamble.alone``).
* A connection is made as new before it goes to the next caller, where something may have stayed: ``Recycler``, which
  every pool has on whose connections an application's SQL can run.
* A plan is used only for those for whom it was made, where it may hold what is only theirs (``Preamble.plans``).

The parts run what they run as somebody through an ``Actor``, and by nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import orjson
import psycopg2
from attrs import define, field, frozen
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from project_service.database.connection import Connection, DatabaseGone, Row
from project_service.database.pipeline import Run, Step
from project_service.database.pool import Pool
from project_service.database.quickness import Quickness
from project_service.database.quoting import ident, literal
from project_service.database.sharing import LIMIT_SECONDS, limit
from project_service.database.sql_facts import FORM_SETTINGS
from project_service.database.trust import QUERY, UNKNOWN, Trust, trust_of
from project_service.lifecycle import Backoff, InThread, SharedRun, cancel

_log = Logger()
T = TypeVar("T")
Query = Callable[[str, Mapping[str, Any]], Awaitable[list[Row]]]
Pairs = Iterable[tuple[str, str]]

# Removes what SQL has set for the session, in a few microseconds. DISCARD ALL would remove prepared statements too.
RESET = "RESET ALL; "
# Drops all cached plans, including those of the queries inside functions.
FORGET_PLANS = "DISCARD PLANS"
_BEGIN = Step("BEGIN", once=True)
_PATH = "request.path"
TIMEOUT = "statement_timeout"
_LEVELS = ("SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED", "READ UNCOMMITTED")
# Whose plans a connection has: those of a role, and of callers for whom values are written in another way.
Plans = tuple[str, tuple[tuple[str, str], ...]]


@frozen(slots=False)
class Preamble:
    """What is set for a transaction: ``pairs`` and, unless it ``has_no_path``, the request's path; then the
    pre-request function is called.

    Statements are prepared for its ``role`` alone. ``authenticated`` is for whoever maps errors: missing rights are
    403 then, and 401 if not. The transaction may take ``extra_seconds`` longer than the service allows otherwise;
    None means any time. ``trust`` is that in the database's SQL. ``prepares`` is false where a proxy may give every
    transaction another connection, so that nobody knows whose plans it has.
    """

    pairs: tuple[tuple[str, str], ...]
    role: str
    authenticated: bool = True
    extra_seconds: float | None = 0.0
    trust: Trust = Trust()
    prepares: bool = True
    # With what the statements end that are prepared where a pooler takes those of one text for one statement.
    mark: str = ""
    pre_request: str | None = None
    has_no_path: bool = False
    # Its statement_timeout is shorter than that of the connections that reads share.
    is_short: bool = False
    # What the settings already are on the connections that reads share.
    shared: frozenset[tuple[str, str]] = field(default=frozenset(), repr=False)

    def text(self, own: str = "") -> str:
        """The whole preamble as SQL for psycopg2, with one parameter if there is a path. It resets the session in any
        case, and makes its ``own`` settings again: behind a proxy the connection may be one that others have used."""
        return f"{self._reset}{_SELECT}{own}{', ' if own else ''}{self._sets}"

    @cached_property
    def _reset(self) -> str:
        # The isolation level can only be set before the transaction's first query.
        return f"{RESET}{self._isolation}{FORGET_PLANS + '; ' if self.forgets_plans else ''}"

    @cached_property
    def _sets(self) -> str:
        sets = [f"set_config({literal(name)}, {_quoted(value)}, true)" for name, value in self.pairs]
        path = [] if self.has_no_path else [f"set_config({literal(_PATH)}, %s, true)"]
        called = "" if self.pre_request is None else f"; {_call(self.pre_request)}".replace("%", "%%")
        return f"{', '.join([*sets, *path])}{_END}{called}"

    @cached_property
    def plans(self) -> Plans:
        """Whose plans the transaction may use: of its role, if they may hold what it alone may call, and of those for
        whom values are written in the same way, if they may hold such values."""
        return (
            self.role if self.trust.guarded else "",
            tuple(pair for pair in self.pairs if pair[0].lower() in FORM_SETTINGS)
            if self.trust.has_constants
            else (),
        )

    @cached_property
    def forgets_plans(self) -> bool:
        """Whether the transaction may use nobody's plans.

        They may hold a value from another caller's claims; or what another role's rights allowed, where the role is
        changed within the transaction, or where it is not known whose connection it was before.
        """
        trust = self.trust
        unknown = not self.prepares and self.plans != _ANYBODYS
        return bool(trust.false_constants) or unknown or (trust.sets_role and self.pre_request is not None)

    @cached_property
    def alone(self) -> bool:
        """Whether the transaction needs a connection of its own, however quick its statement is."""
        kept_apart = self.forgets_plans or self.plans != _ANYBODYS or not self.trust.clean
        has_limit = self.extra_seconds != 0 or self.is_short
        return has_limit or kept_apart or self.sets_isolation or self.pre_request is not None

    @cached_property
    def sets_isolation(self) -> bool:
        """Whether the transaction has an isolation level of its own, which prepared statements cannot set."""
        return bool(self._isolation)

    def steps(self, path: str, shared: bool = False) -> list[Step]:
        """The whole preamble as steps of a pipeline: with ``shared`` for the connections that reads share."""
        text, values, after = self._shared_steps if shared else self._own_steps
        return [Step(text, values if self.has_no_path else (*values, path.encode())), *after]

    @cached_property
    def _own_steps(self) -> tuple[str, Sequence[bytes], tuple[Step, ...]]:
        return self._steps(self.pairs)

    @cached_property
    def _shared_steps(self) -> tuple[str, Sequence[bytes], tuple[Step, ...]]:
        # A read that takes as long as that is run again on a connection of its own, with the limit that it has there.
        pairs = [(name, limit() if name == TIMEOUT else value) for name, value in self.pairs]
        return self._steps([pair for pair in pairs if pair not in self.shared])

    def _steps(self, pairs: Pairs) -> tuple[str, Sequence[bytes], tuple[Step, ...]]:
        names, values = zip(*pairs, strict=True)
        after = () if self.pre_request is None else (Step(_call(self.pre_request), once=True),)
        named = names if self.has_no_path else (*names, _PATH)
        return _settings_statement(named), [value.encode() for value in values], after

    @cached_property
    def _isolation(self) -> str:
        """SQL that sets the isolation level that a role's or function's own settings ask for, if any; else
        "". The setting may be written in any case."""
        level = dict(self.pairs).get("default_transaction_isolation", "").upper()
        return f"SET TRANSACTION ISOLATION LEVEL {level}; " if level in _LEVELS else ""


_ANYBODYS: Plans = ("", ())


@define(eq=False)
class Session:
    """A connection of the caller's own, on which transactions begin with its ``preamble`` and ``path``.

    Its methods raise ``psycopg2.Error`` for what the server refuses, and ``DatabaseGone``.
    """

    connection: Connection
    preamble: Preamble
    path: str = ""

    async def run(self, step: Step, version: int = 0, begins: bool = False, timed: bool = False) -> Run:
        """Run a prepared statement as a transaction; with ``begins`` it stays open afterwards. ``version`` is that of
        the schema cache that the statement was made with."""
        await self._take_plans()
        mark = self.preamble.mark
        if mark and not step.once:
            step = Step(step.text + mark, step.values, step.role)
        steps = [*self.preamble.steps(self.path), step]
        return await self.connection.run([_BEGIN, *steps] if begins else steps, version, timed=timed)

    async def own(self, sql: str, params: Sequence[Any]) -> list[Row]:
        """The rows of a statement of the service's own, which acts as the preamble's role by itself where it has to.
        ``sql`` is as in ``Step.of``."""
        await self._take_plans()
        if self.prepares:
            return await self.connection.query_prepared(sql, params)
        forgets = f"{FORGET_PLANS}; " if self.preamble.forgets_plans else ""
        return await self.connection.query(forgets + sql, params)

    async def text(self, sql: str, values: Sequence[Any] = (), begins: str = "") -> list[Row]:
        """The rows of the last statement of ``sql``, for psycopg2, as a transaction; after ``begins``, such as
        ``BEGIN``, it stays open."""
        await self._take_plans()
        path = () if self.preamble.has_no_path else (self.path,)
        opening = f"{begins}; " if begins else ""
        preamble = self.preamble.text(self.connection.own)
        message = f"{opening}{preamble}; {sql}"
        if self.connection.pooled:
            return await self.connection.query_whole(message, [*path, *values])
        return await self.connection.query(message, [*path, *values])

    async def query(self, sql: str, values: Sequence[Any] | None = None) -> list[Row]:
        """The rows of ``sql`` in the transaction that is open."""
        return await self.connection.query(sql, values)

    async def execute(self, sql: str) -> None:
        """Run ``sql`` in the transaction that is open."""
        await self.connection.execute(sql)

    async def end(self, commits: bool) -> None:
        """End the open transaction: commit it, or undo it, with the errors that a commit would have raised."""
        if commits:
            await self.connection.execute("COMMIT")
            return
        # A violated deferred constraint raises its error now.
        await self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        await self.rollback()

    async def rollback(self) -> None:
        """Undo what has not been committed, if anything."""
        if self.connection.in_transaction:
            await self.connection.execute("ROLLBACK")

    @property
    def prepares(self) -> bool:
        """Whether statements may be prepared. On a session that a pooler chose, only those whose plans may be
        anybody's, and where nothing of others can have stayed."""
        connection, preamble = self.connection, self.preamble
        if not connection.pooled:
            return True
        apart = preamble.forgets_plans or preamble.plans != _ANYBODYS or not preamble.trust.clean
        return connection.prepares and not apart

    def is_prepared_for(self, version: int) -> bool:
        """Whether statements of this version of the schema cache are prepared on the connection. If not, those of
        other versions are forgotten: the same text may mean something else by now."""
        statements = self.connection.statements
        if statements.version == version:
            return True
        statements.use_version(version)
        return False

    def discard(self) -> None:
        """Never use the connection again."""
        self.connection.discard()

    async def _take_plans(self) -> None:
        """Make sure that no plan is used that may hold what is only somebody else's."""
        connection, plans = self.connection, self.preamble.plans
        if connection.pooled:
            return  # nobody knows whose plans the session has: ``Preamble.forgets_plans``
        if connection.plans_of not in (None, plans):
            await connection.execute(FORGET_PLANS)
        connection.plans_of = plans


def _unknown() -> Trust:
    return UNKNOWN


@define(eq=False)
class Actor:
    """Runs SQL as somebody on the connections of ``pool``, which it gives a ``Recycler``.

    ``trust`` returns the present trust in the database's SQL. With ``changes_role`` requests may run SQL before their
    statement that changes their role.
    """

    pool: Pool
    trust: Callable[[], Trust] = _unknown
    changes_role: bool = False

    def __attrs_post_init__(self) -> None:
        self.pool.recycler = Recycler(self.trust, self.changes_role)

    def share(
        self, preamble: Preamble, path: str, step: Step, version: int, quickness: Quickness
    ) -> Run | None:
        """Run a statement that only reads, of the kind of ``quickness``, on a connection that quick reads share.
        Await ``answered``. None where that cannot be done now, or not for this ``preamble`` or kind: ``use`` a
        connection.
        """
        if preamble.alone or not self.pool.may_share(quickness):
            return None
        return self.pool.pipelines.submit(version, [*preamble.steps(path, shared=True), step], quickness)

    def use(self, preamble: Preamble, path: str, function: Callable[[Session], Awaitable[T]]) -> Awaitable[T]:
        """Call ``function`` with a session and return its result. It is shielded from cancellation.

        Raises what ``Pool.acquire`` raises.
        """
        return self.pool.use(lambda connection: function(_session(connection, preamble, path)))

    def use_again(
        self,
        preamble: Preamble,
        path: str,
        function: Callable[[Session], Awaitable[T]],
        quickness: Quickness,
    ) -> Awaitable[T]:
        """As ``use``, for what a connection that reads share has not answered."""
        return self.pool.use_again(
            lambda connection: function(_session(connection, preamble, path)), quickness
        )

    async def acquire(self, preamble: Preamble, path: str) -> Session:
        """A session that the caller must pass to ``release``: for replies that are streamed and imports. May be
        cancelled while it waits. Raises what ``Pool.acquire`` raises."""
        return _session(await self.pool.acquire(), preamble, path)

    def query_unknown(self, sql: str, values: Sequence[Any], seconds: float) -> Awaitable[list[Row]]:
        """The rows of ``sql`` as the service's own role, within ``seconds``. It calls functions of the project that
        ``trust`` does not judge, so the connection is made as new afterwards. Shielded from cancellation; raises what
        ``Pool.query`` raises."""
        limited = settings_text([(TIMEOUT, str(int(seconds * 1000)))])

        async def run(connection: Connection) -> list[Row]:
            try:
                return await connection.query(f"{limited}; {sql}", values)
            finally:
                if self.pool.recycler is not None:
                    await self.pool.recycler.recycle(connection)

        return self.pool.use(run)

    def release(self, session: Session) -> None:
        """Give back what ``acquire`` returned. What has not been committed is undone."""
        self.pool.release(session.connection)


def _session(connection: Connection, preamble: Preamble, path: str) -> Session:
    connection.extra_seconds, connection.role = preamble.extra_seconds, preamble.role
    return Session(connection, preamble, path)


# Clears away all but prepared statements, which are ours. With a search path that SQL has left, a function of the
# application might be called in place of PostgreSQL's. The result says whether SQL has prepared statements itself.
_RECYCLE = f"""
{{clears}}RESET ROLE; {RESET}CLOSE ALL; UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES; {FORGET_PLANS};
SELECT {{own}}, pg_catalog.pg_advisory_unlock_all(),
pg_catalog.setseed(pg_catalog.hashtext(pg_catalog.gen_random_uuid()::text) / 2147483648.0),
EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE from_sql)
"""


@frozen
class Recycler:
    """Makes connections as new between two callers, where SQL of the application may have left something.

    A connection is also made as new when the trust has changed, because what was made possible meanwhile may have
    been done before it was known. The members are those of ``Actor``, the methods those of ``pool.Recycles``.
    """

    trust: Callable[[], Trust]
    changes_role: bool = False

    def made(self, connection: Connection) -> None:
        connection.recycled = self.trust().version

    def due(self, connection: Connection) -> bool:
        if connection.pooled:
            return False  # the next transaction has another session
        trust = self.trust()
        changed = connection.recycled != trust.version
        return changed or not trust.clean or (trust.sets_role and self.changes_role)

    def outdated(self, connection: Connection) -> bool:
        return not connection.pooled and connection.recycled != self.trust().version

    async def recycle(self, connection: Connection) -> None:
        """Make ``connection`` as new. Does not raise: a connection for which that fails is never used again."""
        trust = self.trust()
        if connection.pooled:
            return
        if trust.closes:
            connection.discard()
            return
        try:
            rows = await connection.query(_RECYCLE.format(own=connection.own or "true", clears=trust.clears))
        except (psycopg2.Error, DatabaseGone):
            connection.discard()
            return
        if rows[0][-1]:
            connection.discard()
        connection.plans_of = None
        connection.recycled = trust.version


# How many functions a line of the log names.
MAX_NAMED = 10


def warn_of_constants(before: Trust | None, trust: Trust) -> None:
    """Name in the log the functions for which plans are forgotten, unless they were named ``before``."""
    named, more = trust.false_constants[:MAX_NAMED], trust.false_constants[MAX_NAMED:]
    if named and (before is None or before.false_constants != trust.false_constants):
        _log.warn(
            "declared IMMUTABLE: {names}, whose texts do not show that they depend on their arguments alone; until "
            "they are declared STABLE, each request plans its statements anew",
            names=", ".join(named) + (f" and {len(more)} more" if more else ""),
        )


FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
# Names are qualified where a function's text is printed.
READ_TRUST = f"SELECT pg_catalog.set_config('search_path', '', true); {QUERY}"


class TrustReader(Service):
    """Reads how far the SQL of a database can be trusted, again after each change that is announced.

    Until it has been read again it is unknown. ``query`` runs a statement on a connection that requests do not wait
    for, and ``in_thread`` what takes long in a thread.
    """

    def __init__(self, query: Query, in_thread: InThread, clock: IReactorTime) -> None:
        self._query = query
        self._in_thread = in_thread
        self._clock = clock
        self._readings = SharedRun(self._read, "reading functions and policies")
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._retry: IDelayedCall | None = None
        self._version = 0
        self._known: Trust | None = None
        self._before: Trust | None = None

    def trust(self) -> Trust:
        """The present trust."""
        return UNKNOWN if self._known is None else self._known

    def stopService(self) -> None:
        super().stopService()
        cancel(self._retry)

    def notified(self, payload: str) -> None:
        """To be called with each notification of a change."""
        self.announce()

    def announce(self) -> None:
        """Something has changed: read it again, in the background."""
        # A reading that failed is tried again, and has been logged.
        self._reading().addErrback(lambda failure: None)

    async def reload(self) -> None:
        """Returns when it has been read, by a reading that began no earlier than now, or could not be."""
        with suppress(Exception):
            await self._reading()

    def _reading(self) -> Deferred[None]:
        self._known = None
        self._version += 1
        cancel(self._retry)
        return self._readings.join()

    async def _read(self) -> None:
        version = self._version
        try:
            rows = await self._query(READ_TRUST, {"schemas": []})
            trust = await self._in_thread(lambda: trust_of(orjson.loads(rows[0][0]), version))
        except Exception as fault:
            if self.running:
                self._retry = self._clock.callLater(self._backoff.failed(), self.announce)
            _log.warn("functions and policies could not be read: {why}", why=type(fault).__name__)
            raise
        self._backoff.succeeded()
        warn_of_constants(self._before, trust)
        self._before = trust
        # A change that was announced meanwhile may be missing, and is about to be read.
        if version == self._version:
            self._known = trust


def settings_text(pairs: Pairs) -> str:
    """The SELECT that sets each name of ``pairs`` to its value until the transaction ends, for psycopg2.

    Raises ``ValueError`` for a value with a NUL.
    """
    return _select([f"set_config({_quoted(name)}, {_quoted(value)}, true)" for name, value in pairs])


def opening_of_shared(pairs: Pairs) -> list[Step]:
    """The statement that sets ``pairs`` for the session of a connection that reads share."""
    sets = [f"set_config({literal(name)}, {literal(value)}, false)" for name, value in pairs]
    return [Step(_select(sets), once=True)]


@lru_cache(maxsize=256)
def _settings_statement(names: tuple[str, ...]) -> str:
    """The SELECT that sets each of ``names`` to a parameter of its own. For PostgreSQL, parsing and planning it costs
    more than reading a row; prepared it costs a tenth of that."""
    return _select([f"set_config({literal(name)}, ${number}, true)" for number, name in enumerate(names, 1)])


# The array and its length make the result one number instead of a row with all values. The function's schema is
# named because RESET ALL has brought back the server's own search path, where others may have made one of that name.
_SELECT, _END = "SELECT pg_catalog.cardinality(ARRAY[", "])"


def _select(sets: Iterable[str]) -> str:
    return f"{_SELECT}{', '.join(sets)}{_END}"


def _quoted(text: str) -> str:
    if "\0" in text:
        raise ValueError("PostgreSQL has no text with NUL")
    return literal(text).replace("%", "%%")


def _call(function: str) -> str:
    """The SELECT that calls a function, whose name may have a schema."""
    schema, _, name = function.rpartition(".")
    called = f"{ident(schema)}.{ident(name)}" if schema else ident(name)
    return f"SELECT {called}()"


# How PostgreSQL writes a time; without a unit it is in milliseconds.
_TIME = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|min|h|d)?\s*\Z")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def extra_seconds(usual: str, own: str) -> float | None:
    """How many seconds a role's or function's own ``statement_timeout`` is longer than the usual one; 0 if it is not
    longer, None if it sets no limit."""
    usual_seconds, own_seconds = _seconds(usual), _seconds(own)
    if own_seconds == 0:
        return None
    return max(0.0, own_seconds - usual_seconds)


def is_short(own: str) -> bool:
    """Whether a ``statement_timeout`` is shorter than that of the connections that reads share."""
    return 0 < _seconds(own) < LIMIT_SECONDS


def _seconds(time: str) -> float:
    match = _TIME.match(time)
    # PostgreSQL rejects any other text, so the number does not matter.
    return float(match[1]) * _UNITS[match[2] or "ms"] if match is not None else 1.0
