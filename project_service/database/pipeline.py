"""Statements in libpq's pipeline mode, on the connections that psycopg2 has opened.

Purpose: finding a row costs PostgreSQL less than being asked for it in a message of SQL text, and us less than
psycopg2's quoting, polling and conversions. Here each run of statements is Bind and Execute of what is prepared, and
one Sync (PostgreSQL's manual, "Pipeline Mode" of libpq and "Extended Query" of the protocol): a transaction of its
own, so neither settings nor errors nor roles pass to the run behind it. What has come within one turn of the reactor
goes out in one write.

Plan: psycopg2 says where libpq's connection is (``pgconn_ptr``, which it documents for this), and the functions are
those of the library that it has loaded itself. They are called with the interpreter's lock held (``PyDLL``), since
none of them blocks on a connection that is set nonblocking. While a connection is in pipeline mode psycopg2 must not
be asked to execute or poll, which ``Connection`` sees to; otherwise both may use it in turns.

Cost: the functions' signatures have to be right, or the process crashes; they are all below.

With Bind and Execute PostgreSQL takes a statement's snapshot after it has waited for the statement's locks, so a read
that waits for TRUNCATE and a refill sees the new rows. (A cursor does not; see ``tables/stream``.)
"""

from __future__ import annotations

import ctypes
import datetime
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from time import thread_time
from typing import TYPE_CHECKING, Any, Protocol

import psycopg2
from attrs import define, field, frozen
from psycopg2 import _psycopg, extensions
from psycopg2 import errors as psycopg2_errors
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from project_service.errors import ApiError, Away
from project_service.lifecycle import background, cancel

if TYPE_CHECKING:
    from project_service.database.connection import Connection, DatabaseGone


# Keeps track of the statements that are prepared on a connection.
#
# A statement is prepared by its text alone, which PostgreSQL shows to all roles (``pg_prepared_statements``), so it
# must not contain anything from a request. Neither preparing nor DEALLOCATE is undone by a rollback.


# Each statement costs PostgreSQL about 10 kB on each connection.
PER_CONNECTION = 200
# Sets our statements apart from those that an application's own SQL prepares.
_PREFIX = b"service_"
# SQLSTATEs that a prepared statement can raise after the schema has changed: no such operator or function, a wrong
# type, a result of another type than before, a dropped column in the rows of a function. If the type of a parameter
# was dropped, even if there is a new one of its name, it is an internal error (cache lookup failed).
_STALE = ("42883", "42804", "42846", "42725", "42703", "0A000", "XX000")
# The statement does not exist: an application's function has run DEALLOCATE ALL.
_GONE = "26000"


@define(eq=False)
class Prepared:
    """A prepared statement: its ``name`` in PostgreSQL, and its columns' types once a result has shown them."""

    role: str
    text: str
    name: bytes
    types: tuple[int, ...] | None = None


@define
class Statements:
    """The prepared statements of one connection. Beyond ``most`` those prepared first are dropped.

    The types of a statement's parameters are fixed when it is prepared. With another schema cache the same text may
    mean another operator, so a statement is only used for the version of the schema cache that it was prepared for.

    It is also used for one role only. When PostgreSQL inlines a function's body, or its value, into a plan, it checks
    the right to that function while planning, and would use the plan for other roles without checking again.
    """

    most: int = PER_CONNECTION
    # By role and text, in the order in which they were prepared.
    known: dict[tuple[str, str], Prepared] = field(factory=dict, init=False)
    # The names of those that PostgreSQL still has to be told to drop.
    unwanted: list[bytes] = field(factory=list, init=False)
    _number: int = field(default=0, init=False)
    version: int = field(default=0, init=False)
    # The role for which PostgreSQL has cached plans of queries inside functions, where that matters.
    plans_of: str | None = field(default=None, init=False)

    def use_version(self, version: int) -> None:
        """Forget what was prepared for another version of the schema cache."""
        self.unwanted.extend(prepared.name for prepared in self.known.values())
        self.known.clear()
        self.version = version

    def add(self, role: str, text: str) -> Prepared:
        """A statement that the caller is about to prepare under this name."""
        if len(self.known) >= self.most:
            self.forget(next(iter(self.known.values())))
        self._number += 1
        prepared = Prepared(role, text, _PREFIX + str(self._number).encode())
        self.known[role, text] = prepared
        return prepared

    def take_unwanted(self) -> list[bytes]:
        """The names of forgotten statements, which the caller is about to deallocate."""
        unwanted, self.unwanted = self.unwanted, []
        return unwanted

    def forget(self, prepared: Prepared) -> None:
        """Do not use it again; PostgreSQL is to be told at the next opportunity."""
        if self.known.pop((prepared.role, prepared.text), None) is not None:
            self.unwanted.append(prepared.name)


def may_be_stale(code: str | None) -> bool:
    """Whether an error of a prepared statement may be due to its being prepared, so that it is worth running as text.

    Those are what ``Statements`` must forget too."""
    return code == _GONE or code in _STALE


_libpq = ctypes.PyDLL(_psycopg.__file__)
_P, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p


def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(_libpq, name)
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]  # ctypes makes it


_set_nonblocking = _function("PQsetnonblocking", _INT, _P, _INT)
_enter_pipeline = _function("PQenterPipelineMode", _INT, _P)
_exit_pipeline = _function("PQexitPipelineMode", _INT, _P)
_send_prepare = _function("PQsendPrepare", _INT, _P, _TEXT, _TEXT, _INT, _P)
_send_prepared = _function("PQsendQueryPrepared", _INT, _P, _TEXT, _INT, _P, _P, _P, _INT)
_send_text = _function("PQsendQueryParams", _INT, _P, _TEXT, _INT, _P, _P, _P, _P, _INT)
_sync = _function("PQpipelineSync", _INT, _P)
_set_verbosity = _function("PQsetErrorVerbosity", _INT, _P, _INT)
_flush = _function("PQflush", _INT, _P)
_consume = _function("PQconsumeInput", _INT, _P)
_is_busy = _function("PQisBusy", _INT, _P)
_get_result = _function("PQgetResult", _P, _P)
_status = _function("PQresultStatus", _INT, _P)
_command = _function("PQcmdStatus", _TEXT, _P)
_rows = _function("PQntuples", _INT, _P)
_columns = _function("PQnfields", _INT, _P)
_type = _function("PQftype", ctypes.c_uint, _P, _INT)
# Values are in text format, in which PostgreSQL has no NUL: what ends at the first one is the whole value.
_value = _function("PQgetvalue", _TEXT, _P, _INT, _INT)
_is_null = _function("PQgetisnull", _INT, _P, _INT, _INT)
_error_field = _function("PQresultErrorField", _TEXT, _P, _INT)
_clear = _function("PQclear", None, _P)
_set_notice_receiver = _function("PQsetNoticeReceiver", _P, _P, _P, _P)
_ignored = ctypes.CFUNCTYPE(None, _P, _P)(lambda context, notice: None)
_VERBOSE = 2
_COMMAND_OK, _TUPLES_OK, _PIPELINE_SYNC, _PIPELINE_ABORTED = 1, 2, 10, 11
BYTEA = 17


def ignore_notices(connection: Any) -> None:
    """Drop the notices that SQL raises on a connection of psycopg2's, which would keep them all until it is asked to
    execute something itself."""
    _set_notice_receiver(connection.pgconn_ptr, _ignored, None)


def show_sqlstates(connection: Any) -> None:
    """Have the texts of libpq's errors begin with the SQLSTATE. ``error_that_ended`` reads it there."""
    _set_verbosity(connection.pgconn_ptr, _VERBOSE)


Values = Sequence[bytes | None]
# A row as PostgreSQL's text of each value, None for null. The bytes of ``bytea`` are its text too (``unescaped``).
TextRow = list[bytes | None]


@frozen(eq=False)
class Step:
    """One statement of a run, with ``$1`` and so on for its values. It is prepared on each connection that it is run
    on, for the ``role`` that it is run in; with ``once`` it is not, and has no values."""

    text: str
    values: Values = ()
    role: str = ""
    once: bool = False


class Run:
    """One transaction under way. ``done`` fires with the rows of its last statement, or fails with ``psycopg2.Error``
    for what the server refuses, or ``DatabaseGone``.

    Cancelling ``done`` leaves the run to go on without anybody waiting for it. ``took`` is how many seconds the
    server needed for it, where that was asked for; ``slow`` whether it held up the others that share the pipeline.
    """

    __slots__ = (
        "before",
        "connection",
        "done",
        "error",
        "preparing",
        "result",
        "sent",
        "slow",
        "timed",
        "took",
        "used",
    )

    def __init__(self, connection: Connection, timed: bool = False) -> None:
        self.connection = connection
        self.timed = timed
        self.took = 0.0
        self.slow = False
        self.done: Deferred[list[TextRow]] = Deferred()
        self.sent = 0.0
        # What was sent to be prepared and is not known to be yet.
        self.preparing: list[Prepared] = []
        # The last result, and the one before it.
        self.result: int | None = None
        self.before: int | None = None
        self.used: list[Prepared] = []
        self.error: psycopg2.Error | None = None

    @property
    def types(self) -> Sequence[int]:
        """The types of the last statement's columns, once it has run."""
        return (self.used[-1].types or ()) if self.used else ()

    def typed(self, rows: list[TextRow]) -> list[tuple[Any, ...]]:
        """``rows`` with their values as psycopg2 would have returned them."""
        types, cursor = self.types, self.connection.cursor
        return [
            tuple([_converter(kind)(value, cursor) for kind, value in zip(types, row, strict=True)])
            for row in rows
        ]


class Pipeline:
    """Puts a connection into pipeline mode until ``leave`` is called, and runs what is submitted in
    order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._libpq = connection._connection.pgconn_ptr
        self._clock: Callable[[], float] = connection.reactor.seconds
        self._scheduled = False
        self.waiting: deque[Run] = deque()
        self._since = self._cpu = 0.0
        # What most of the waits for the first of the results that come together do not exceed.
        self.typical = 0.0
        _set_nonblocking(self._libpq, 1)
        if not _enter_pipeline(self._libpq):
            raise RuntimeError("libpq refuses pipeline mode")

    def leave(self) -> None:
        """Back to what psycopg2 expects. Nothing may be under way."""
        _exit_pipeline(self._libpq)

    def submit(self, version: int, steps: Sequence[Step], timed: bool = False) -> Run:
        """Queue ``steps`` as one transaction; ``flush`` sends it. Without steps it fires when all before it are done.

        Statements are prepared anew for each ``version`` of the schema cache. ``timed`` asks for ``Run.took``.
        """
        libpq, statements = self._libpq, self._connection.statements
        if version != statements.version:
            statements.use_version(version)
        if statements.unwanted:
            self._deallocate()
        run = Run(self._connection, timed)
        for step in (*steps, _TOOK) if timed else steps:
            if step.once:
                _send_text(libpq, step.text.encode(), 0, None, None, None, None, 0)
                continue
            prepared = statements.known.get((step.role, step.text))
            if prepared is None:
                prepared = self._prepare(step, run)
            count = len(step.values)
            _send_prepared(libpq, prepared.name, count, (_TEXT * count)(*step.values), None, None, 0)
            run.used.append(prepared)
        _sync(libpq)
        run.sent = self._clock()
        if not self.waiting:
            self._since, self._cpu = run.sent, thread_time()
        self.waiting.append(run)
        return run

    def flush_soon(self) -> None:
        """Send what has been submitted when everything that came in this turn of the reactor has been."""
        if not self._scheduled:
            self._scheduled = True
            self._connection.reactor.callLater(0, self.flush)

    def _prepare(self, step: Step, run: Run) -> Prepared:
        prepared = self._connection.statements.add(step.role, step.text)
        run.preparing.append(prepared)
        _send_prepare(self._libpq, prepared.name, step.text.encode(), 0, None)
        return prepared

    def _deallocate(self) -> None:
        """Drop statements that are not used any more, each in a transaction whose outcome nobody waits for."""
        for name in self._connection.statements.take_unwanted():
            run = Run(self._connection)
            run.done.addErrback(lambda refused: None)
            _send_text(self._libpq, b"DEALLOCATE " + name, 0, None, None, None, None, 0)
            _sync(self._libpq)
            self.waiting.append(run)

    # What the connection calls.

    def flush(self) -> None:
        """Send what has been submitted."""
        self._scheduled = False
        left = _flush(self._libpq) if self._libpq is not None else 0
        if left > 0:
            self._connection.reactor.addWriter(self._connection)
        elif left < 0:
            self._connection.connection_lost()

    def read(self) -> None:
        """Take what has arrived, and fire the runs that are complete."""
        libpq, waiting = self._libpq, self.waiting
        if not _consume(libpq):
            self._connection.connection_lost()
            return
        now, cpu = self._clock(), thread_time()
        waited = now - self._since - (cpu - self._cpu)
        while waiting and not _is_busy(libpq):
            result = _get_result(libpq)
            if not result:
                continue  # the end of one statement's results
            run, status = waiting[0], _status(result)
            if status == _PIPELINE_SYNC:
                _clear(result)
                waiting.popleft()
                if waited:
                    run.slow, waited = self._held_up(waited), 0.0
                self._finish(run)
                continue
            if status == _TUPLES_OK:
                if run.before:
                    _clear(run.before)
                run.before, run.result = run.result, result
                continue
            if status == _COMMAND_OK:
                # That something is prepared is told without the name of a command.
                if run.preparing and not _command(result):
                    del run.preparing[0]
            elif status != _PIPELINE_ABORTED:
                run.error = _refusal(result)
            _clear(result)
        self._since, self._cpu = now, cpu

    def lost(self, fault: DatabaseGone) -> None:
        """The connection is gone: nothing more will be heard of what is under way, except for the error that the
        server may have sent before."""
        self._libpq = None  # with which libpq's functions do nothing
        runs = list(self.waiting)
        self.waiting.clear()
        for run in runs:
            _clear(run.result)
            _clear(run.before)
            run.done.errback(fault.because(run.error))

    def _held_up(self, waited: float) -> bool:
        """Whether somebody who waits so long is held up: much longer than usual, because on a busy machine everything
        takes longer, and by itself that is no reason not to share."""
        slow = waited > max(SLOW_SECONDS, HELD_UP * self.typical)
        self.typical = (
            min(waited, 1.3 * self.typical + 0.0001) if waited > self.typical else 0.9 * self.typical
        )
        return slow

    def _finish(self, run: Run) -> None:
        before, result = run.before, run.result
        run.before = run.result = None
        if run.error is not None:
            stale = run.used if may_be_stale(run.error.pgcode) else run.preparing
            for prepared in stale:
                self._connection.statements.forget(prepared)
            _clear(before)
            _clear(result)
            run.done.errback(run.error)
            return
        if run.timed:
            run.took = int(_value(result, 0, 0)) / 1e6
            run.used.pop()
            before, result = result, before
        rows: list[TextRow] = []
        if result:
            rows = _text_rows(result)
            if run.used and run.used[-1].types is None:
                run.used[-1].types = tuple([_type(result, n) for n in range(_columns(result))])
        _clear(before)
        _clear(result)
        run.done.callback(rows)


# How many microseconds the server has needed for the transaction so far.
_TOOK = Step("select (extract(epoch from clock_timestamp() - transaction_timestamp()) * 1e6)::int8")


def _text_rows(result: int) -> list[TextRow]:
    rows, columns = [], range(_columns(result))
    for number in range(_rows(result)):
        row: TextRow = []
        for column in columns:
            value = _value(result, number, column)
            row.append(None if not value and _is_null(result, number, column) else value)
        rows.append(row)
    return rows


# How many runs may be under way in a shared pipeline, and how old the oldest may be; whoever comes then goes
# elsewhere.
MAX_WAITING = 200
OLD_SECONDS = 0.02
# Who waits so long, and so many times longer than usual, is held up by a slow neighbour.
SLOW_SECONDS = 0.01
HELD_UP = 5
# A shared pipeline that nobody has used for so long gives its connection back.
IDLE_SECONDS = 30.0
LOOK_SECONDS = 1.0


class ConnectionSource(Protocol):
    """What ``Pipelines`` need of a pool."""

    async def acquire(self) -> Connection: ...
    def release(self, connection: Connection) -> None: ...


class Pipelines:
    """Up to ``size`` connections of a pool that quick reads share, so that many go out in one message.

    Nobody is to wait behind a slow neighbour. So what is submitted has to be known to be quick, and while a run has
    not been answered for ``OLD_SECONDS`` no more are taken. ``opening`` is run first on each connection, which is
    closed when it is not needed any more: nobody else is to find what ``opening`` has set.

    A connection is for one version of the schema cache. With another one it may not be known any more that SQL has
    left settings there, or taken away those of ``opening``.
    """

    def __init__(
        self, pool: ConnectionSource, size: int, clock: IReactorTime, opening: Sequence[Step] = ()
    ) -> None:
        self._pool = pool
        self._size = size
        self._clock = clock
        self._opening = opening
        self._connections: list[Connection] = []
        self._connecting = False
        self._closed = False
        self._used = 0.0
        self._call: IDelayedCall | None = None

    def submit(self, version: int, steps: Sequence[Step]) -> Run | None:
        """As ``Pipeline.submit``. None where none of them takes more now: then use a connection of your own."""
        now = self._clock.seconds()
        for connection in self._connections:
            pipeline, known = connection.pipeline, connection.statements.version
            if pipeline is None:
                continue  # it is lost
            if known not in (version, 0):
                if known < version:
                    self._retire(connection)
                    break
                continue
            waiting = pipeline.waiting
            oldest = OLD_SECONDS + HELD_UP * pipeline.typical
            if not waiting or (now - waiting[0].sent < oldest and len(waiting) < MAX_WAITING):
                self._used = now
                run = pipeline.submit(version, steps)
                pipeline.flush_soon()
                return run
        if len(self._connections) < self._size and not self._connecting and not self._closed:
            self._connecting = True
            background(self._connect(), "opening a pipeline")
        return None

    def close(self) -> None:
        """Give all connections back, each when what is under way on it is done."""
        self._closed = True
        cancel(self._call)
        self._call = None
        for connection in list(self._connections):
            self._retire(connection)

    async def _connect(self) -> None:
        try:
            connection = await self._pool.acquire()
            connection.on_lost = self._lost
            pipeline = connection.enter_pipeline()
        except (ApiError, Away):
            return  # the database is away or busy, which those who need it are told
        finally:
            self._connecting = False
        self._used = self._clock.seconds()
        self._connections.append(connection)
        if self._opening:
            opened = pipeline.submit(0, self._opening)
            pipeline.flush_soon()
            try:
                await opened.done
            except (psycopg2.Error, Away):
                self._retire(connection)
                return
        if self._closed:
            self._retire(connection)
        elif self._call is None:
            self._call = self._clock.callLater(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Give up servers that do not answer, and connections that are to be left or that nobody uses."""
        self._call = None
        now = self._clock.seconds()
        idle = now - self._used > IDLE_SECONDS
        for connection in list(self._connections):
            since = connection.awaiting_since
            if (
                since is not None
                and connection.answer_seconds is not None
                and now - since > connection.answer_seconds
            ):
                connection.timed_out()
            elif connection.expired or idle:
                self._retire(connection)
        if self._connections:
            self._call = self._clock.callLater(LOOK_SECONDS, self._look)

    def _retire(self, connection: Connection) -> None:
        """Take no more for it, and give it back when all that is under way is done."""
        if connection not in self._connections or connection.pipeline is None:
            return
        self._connections.remove(connection)
        last = connection.pipeline.submit(connection.statements.version, ())
        connection.pipeline.flush_soon()
        last.done.addBoth(lambda _: self._release(connection))

    def _lost(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._release(connection)

    def _release(self, connection: Connection) -> None:
        connection.on_lost = None
        connection.discard()
        self._pool.release(connection)


@frozen
class Diagnosis:
    """What the server says of an error, under psycopg2's names."""

    message_primary: str | None
    message_detail: str | None
    message_hint: str | None
    constraint_name: str | None


# PG_DIAG_SQLSTATE and so on, of libpq's postgres_ext.h.
_SQLSTATE, *_FIELDS = [ord(letter) for letter in "CMDHn"]


def _refusal(result: int) -> psycopg2.Error:
    code, *found = [_error_field(result, field) for field in (_SQLSTATE, *_FIELDS)]
    texts = [None if text is None else text.decode("utf-8", "replace") for text in found]
    if code is None:
        return psycopg2.OperationalError("connection lost")
    return _refused(code.decode())(Diagnosis(*texts))


# What libpq adds to a text for ``show_sqlstates``; the second word may be translated.
_SHOWN = re.compile(r"\A[0-9A-Z]{5}: |\n[^:\n]+:  \w+, \w+\.[chly]+:[0-9]+$")


def plain_text(fault: psycopg2.Error) -> str:
    """PostgreSQL's text of an error with its details, hint and position, as psql shows it."""
    return _SHOWN.sub("", str(fault).strip())


# The severity, which may be translated, the SQLSTATE and the message.
_WORDED = re.compile(r"[^:\n]+: +([0-9A-Z]{5}): ([^\n]*)")


def error_that_ended(fault: psycopg2.Error) -> psycopg2.Error | None:
    """The error by which the server ended the connection, if it sent one before. psycopg2 hears of both at once, and
    has that error only as the beginning of a text."""
    if fault.pgcode is not None:
        return fault
    worded = _WORDED.match(str(fault))
    return None if worded is None else _refused(worded[1])(Diagnosis(worded[2], None, None, None))


@lru_cache(maxsize=256)
def _refused(code: str) -> Callable[[Diagnosis], psycopg2.Error]:
    """Makes the exception that psycopg2 raises for ``code``, with that ``pgcode`` and a ``diag``."""
    try:
        kind = psycopg2_errors.lookup(code)
    except KeyError:
        kind = psycopg2.DatabaseError

    def init(self: Any, diagnosis: Diagnosis) -> None:
        kind.__init__(self, diagnosis.message_primary)
        self.diagnosis = diagnosis

    names = {
        "__init__": init,
        "pgcode": property(lambda self: code),
        "diag": property(lambda self: self.diagnosis),
    }
    return type(kind.__name__, (kind,), names)


def unescaped(value: bytes | None) -> bytes | None:
    """The bytes of a ``bytea`` in text form (PostgreSQL's manual, "Binary Data Types")."""
    found = psycopg2.BINARY(value, None)
    return None if found is None else bytes(found)


def as_text(value: Any) -> bytes | None:  # noqa: PLR0911  # one return for each type
    """A Python value as PostgreSQL reads it for a parameter of the matching type."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float):
        return repr(value).encode()
    if isinstance(value, datetime.datetime):
        return value.isoformat().encode()
    if isinstance(value, list | tuple):
        return b"{" + b",".join(map(_item, value)) + b"}"
    raise TypeError(f"no parameter can be made of {type(value).__name__}")


def as_texts(values: Sequence[Any]) -> Values:
    """As ``as_text``, for each of ``values``."""
    return [value.encode() if value.__class__ is str else as_text(value) for value in values]


def _item(value: Any) -> bytes:
    text = as_text(value)
    if text is None:
        return b"NULL"
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


@lru_cache(maxsize=256)
def _converter(kind: int) -> Callable[[bytes | None, Any], Any]:
    found: Callable[[bytes | None, Any], Any] = extensions.string_types.get(kind, extensions.UNICODE)
    return found
