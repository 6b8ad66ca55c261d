"""Statements in libpq's pipeline mode, on the connections that psycopg2 has opened.

Purpose: finding a row costs PostgreSQL less than being asked for it in a message of SQL text, and us less than
psycopg2's quoting, polling and conversions. Here each run of statements is Bind and Execute of what is prepared, and
one Sync (PostgreSQL's manual, "Pipeline Mode" of libpq and "Extended Query" of the protocol): a transaction of its
own, so neither settings nor errors nor roles pass to the run behind it. What has come within one turn of the reactor
goes out in one write.

Plan: psycopg2 says where libpq's connection is (``pgconn_ptr``, which it documents for this), and the functions are
those of the library that it has loaded itself. They are called with the interpreter's lock held (``PyDLL``), since
none of them blocks on a connection that is set nonblocking. While a connection is in pipeline mode psycopg2 must not
be asked to execute or poll, so ``Connection`` leaves that mode before it does, and stays in it otherwise.

Cost: the functions' signatures have to be right, or the process crashes. They are all in ``libpq``, which nothing but
this and ``row_by_row`` sees: others make a ``Step``, and get rows or an exception that psycopg2 would have raised.

Figure: a query takes 15 us less of our CPU than through psycopg2's ``execute``, and half of PostgreSQL's.

With Bind and Execute PostgreSQL takes a statement's snapshot after it has waited for the statement's locks, so a read
that waits for TRUNCATE and a refill sees the new rows. (A cursor does not; see ``tables.run.stream``.)
"""

from __future__ import annotations

import datetime
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import count, repeat
from operator import call
from time import thread_time
from typing import Any, Protocol

import psycopg2
from attrs import define, field, frozen
from psycopg2 import errors as psycopg2_errors
from psycopg2 import extensions
from twisted.internet.defer import Deferred

from project_service.database.libpq import (
    NoticeReceiver,
    Text,
    pq_clear,
    pq_command_status,
    pq_consume_input,
    pq_enter_pipeline_mode,
    pq_exit_pipeline_mode,
    pq_field_type,
    pq_fields,
    pq_flush,
    pq_get_result,
    pq_is_busy,
    pq_is_null,
    pq_parameter_status,
    pq_pipeline_sync,
    pq_result_error_field,
    pq_result_status,
    pq_rows,
    pq_send_prepare,
    pq_send_query_params,
    pq_send_query_prepared,
    pq_set_error_verbosity,
    pq_set_nonblocking,
    pq_set_notice_receiver,
    pq_value,
)
from project_service.database.quickness import Quickness
from project_service.frozen import quick

# Each statement costs PostgreSQL about 10 kB on each connection.
PER_CONNECTION = 200
# How many a pooler keeps for a connection that has no use for them any more.
FORGOTTEN = 10 * PER_CONNECTION
# Sets our statements apart from those that an application's own SQL prepares.
_PREFIX = b"service_"
# SQLSTATEs that a prepared statement can raise after the schema has changed: no such operator or function, a wrong
# type, a result of another type than before, a dropped column in the rows of a function. If the type of a parameter
# was dropped, even if there is a new one of its name, it is an internal error (cache lookup failed).
_STALE = ("42883", "42804", "42846", "42725", "42703", "0A000", "XX000")
# The statement does not exist: an application's function has run DEALLOCATE ALL.
_GONE = "26000"
# query_canceled: the statement has taken longer than statement_timeout allows.
CANCELED = "57014"


@define(eq=False)
class Prepared:
    """A prepared statement: its ``name`` in PostgreSQL, and its columns' types once a result has shown them."""

    role: str
    text: str
    name: bytes
    types: tuple[int, ...] | None = None


@define
class Statements:
    """The prepared statements of one connection. Beyond ``limit`` those prepared first are dropped.

    A statement is prepared by its text alone, which PostgreSQL shows to all roles (``pg_prepared_statements``), so it
    must not contain anything from a request. Neither preparing nor DEALLOCATE is undone by a rollback.

    The types of a statement's parameters are fixed when it is prepared. With another schema cache the same text may
    mean another operator, so a statement is only used for the version of the schema cache that it was prepared for.

    It is also used for one role only. When PostgreSQL inlines a function's body, or its value, into a plan, it checks
    the right to that function while planning, and would use the plan for other roles without checking again.
    """

    limit: int = PER_CONNECTION
    # Without it they stay: a pooler knows them by other names than PostgreSQL, and learns of no DEALLOCATE.
    drops: bool = True
    # By role and text, in the order in which they were prepared.
    known: dict[tuple[str, str], Prepared] = field(factory=dict, init=False)
    # The names of those that PostgreSQL still has to drop.
    unwanted: list[bytes] = field(factory=list, init=False)
    _number: int = field(default=0, init=False)
    version: int = field(default=0, init=False)

    def use_version(self, version: int) -> None:
        """Forget what was prepared for another version of the schema cache."""
        self.unwanted.extend(prepared.name for prepared in self.known.values())
        self.known.clear()
        self.version = version

    def add(self, role: str, text: str) -> Prepared:
        """A statement that the caller is about to prepare under this name."""
        if len(self.known) >= self.limit:
            self.forget(next(iter(self.known.values())))
        self._number += 1
        prepared = Prepared(role, text, _PREFIX + str(self._number).encode())
        self.known[role, text] = prepared
        return prepared

    def take_unwanted(self) -> list[bytes]:
        """The names of forgotten statements, which the caller is about to deallocate."""
        unwanted, self.unwanted = self.unwanted, []
        return unwanted

    @property
    def too_many(self) -> bool:
        """Whether so many are forgotten and were not dropped that the connection is better closed."""
        return len(self.unwanted) > FORGOTTEN

    def forget(self, prepared: Prepared) -> None:
        """Do not use it again. PostgreSQL drops it with the next run."""
        if self.known.pop((prepared.role, prepared.text), None) is not None:
            self.unwanted.append(prepared.name)


def may_be_stale(code: str | None) -> bool:
    """Whether an error of a prepared statement may be due to its being prepared, so that it is worth running as text.
    ``Statements`` has to forget such a statement too."""
    return code == _GONE or code in _STALE


_ignored = NoticeReceiver(lambda context, notice: None)
_VERBOSE = 2
_COMMAND_OK, _TUPLES_OK, _PIPELINE_SYNC, _PIPELINE_ABORTED = 1, 2, 10, 11
BYTEA = 17


def ignore_notices(connection: Any) -> None:
    """Drop the notices that SQL raises on a connection of psycopg2's, which would keep them all until it is asked to
    execute something itself."""
    pq_set_notice_receiver(connection.pgconn_ptr, _ignored, None)


def show_sqlstates(connection: Any) -> None:
    """Have the texts of libpq's errors begin with the SQLSTATE. ``error_that_ended`` reads it there."""
    pq_set_error_verbosity(connection.pgconn_ptr, _VERBOSE)


def reported(connection: Any, settings: Iterable[bytes]) -> tuple[bytes | None, ...]:
    """The present values of ``settings``, as far as the server reports them. psycopg2 would decode each in Python."""
    return tuple(map(partial(pq_parameter_status, connection.pgconn_ptr), settings))


Values = Sequence[bytes | None]
# A row as PostgreSQL's text of each value, None for null. The bytes of ``bytea`` are its text too (``unescaped``).
TextRow = list[bytes | None]


@quick(eq=False)
class Step:
    """One statement of a run, with ``$1`` and so on for its values. It is prepared on each connection that it is run
    on, for the ``role`` that it is run in; with ``once`` it is not, and has no values."""

    text: str
    values: Values = ()
    role: str = ""
    once: bool = False

    @classmethod
    def of(cls, sql: str, params: Sequence[Any]) -> Step:
        """``sql`` is a constant of the program, with psycopg2's ``%s`` for parameters whose types PostgreSQL can
        infer."""
        return cls(numbered(sql), as_texts(params))


@lru_cache(maxsize=256)
def numbered(sql: str) -> str:
    """``sql`` with ``$1`` and so on in place of ``%s``, and ``%`` in place of ``%%``."""
    numbers = count(1)
    return re.sub("%s|%%", lambda match: "%" if match[0] == "%%" else f"${next(numbers)}", sql)


class Owner(Protocol):
    """The connection that is in pipeline mode (``connection.Connection``)."""

    reactor: Any
    statements: Statements

    @property
    def raw(self) -> Any:
        """psycopg2's connection."""

    @property
    def cursor(self) -> Any:
        """One of psycopg2's cursors."""

    def abandon(self) -> None:
        """libpq has failed. Calls ``Pipeline.lost``."""

    def connection_lost(self) -> None:
        """libpq reports that the connection is lost. Calls ``Pipeline.lost``."""

    def report_slow(self, run: Run) -> None:
        """Report ``run`` if it was so slow that the log is to say so."""


# Makes the failure of a run that a lost connection ends, of the error that the server had sent for it, if any.
Lost = Callable[[psycopg2.Error | None], Exception]


class Run:
    """A submitted transaction. ``done`` fires when it has run and ``rows`` are those of its last statement. It fails
    with ``psycopg2.Error`` for what the server refuses, or as ``Pipeline.lost`` says.

    Cancelling ``done`` does not stop the run. ``types`` are those of the last statement's columns. ``took`` is how
    many seconds the server needed for a ``timed`` one; ``slow`` whether it held up others that share the pipeline.
    """

    __slots__ = (
        "before",
        "connection",
        "done",
        "error",
        "preparing",
        "quickness",
        "result",
        "rows",
        "sent",
        "slow",
        "timed",
        "took",
        "types",
        "used",
    )

    def __init__(self, connection: Owner, sent: float, timed: bool = False) -> None:
        self.connection = connection
        self.sent = sent
        self.timed = timed
        self.took = 0.0
        self.slow = False
        self.done: Deferred[None] = Deferred()
        # Kept by ``sharing`` with what may be moved elsewhere.
        self.quickness: Quickness | None = None
        self.rows: list[TextRow] = []
        self.types: Sequence[int] = ()
        # What was sent to be prepared and is not known to be yet.
        self.preparing: list[Prepared] = []
        # The last result, and the one before it.
        self.result: int | None = None
        self.before: int | None = None
        self.used: list[Prepared] = []
        self.error: psycopg2.Error | None = None

    def with_bytes(self) -> list[TextRow]:
        """``rows`` with the bytes of ``bytea`` in place of their text."""
        types = self.types
        if BYTEA not in types:
            return self.rows
        return [
            [unescaped(value) if kind == BYTEA else value for kind, value in zip(types, row, strict=True)]
            for row in self.rows
        ]

    def typed(self) -> list[tuple[Any, ...]]:
        """``rows`` with their values as psycopg2 would have returned them."""
        converters, cursors = [*map(_converter, self.types)], repeat(self.connection.cursor)
        return [tuple(map(call, converters, row, cursors)) for row in self.rows]


class NotTaken(Exception):
    """libpq does not do what it was asked to: the connection is lost, or there is no memory."""


# A caller is held up by a slow neighbour if it waits so long, and so many times longer than usual.
SLOW_SECONDS = 0.01
SLOW_FACTOR = 5


class Pipeline:
    """Puts a connection into pipeline mode until ``leave`` is called, and runs what is submitted in order.

    Raises ``NotTaken`` if that is not possible. ``waiting`` are the runs that are not answered yet."""

    def __init__(self, connection: Owner) -> None:
        self._connection = connection
        self._libpq = connection.raw.pgconn_ptr
        self._clock: Callable[[], float] = connection.reactor.seconds
        self._scheduled = False
        # Why the connection is lost, once it is.
        self._gone: Lost | None = None
        self.waiting: deque[Run] = deque()
        # When something came the last time, or waiting began.
        self.since = self._cpu = 0.0
        # A wait for a batch of results that is usually not exceeded.
        self.typical = 0.0
        if pq_set_nonblocking(self._libpq, 1) or not pq_enter_pipeline_mode(self._libpq):
            raise NotTaken

    def leave(self) -> None:
        """Leave pipeline mode, so that psycopg2 can use the connection. No run may be unfinished."""
        if self._libpq is not None and not pq_exit_pipeline_mode(self._libpq):
            self._connection.abandon()

    def submit(self, version: int, steps: Sequence[Step], timed: bool = False) -> Run:
        """Queue ``steps`` as one transaction; ``flush`` sends it. Without steps it fires when all before it are done.

        Statements are prepared anew for each ``version`` of the schema cache. ``timed`` asks for ``Run.took``.

        If libpq does not take all of it, the connection is lost, and with it all that waits: a statement without the
        settings before it would run in the connection's own role.
        """
        statements, now = self._connection.statements, self._clock()
        if not self.waiting:
            self.since, self._cpu = now, thread_time()
        if version != statements.version:
            statements.use_version(version)
        run = Run(self._connection, now, timed)
        try:
            if statements.unwanted and statements.drops:
                self._deallocate(now)
            self._send((*steps, _TOOK) if timed else steps, run)
        except BaseException as fault:
            self._connection.abandon()
            if not isinstance(fault, NotTaken):
                raise
            assert self._gone is not None
            run.done.errback(self._gone(None))
            return run
        self.waiting.append(run)
        return run

    def _send(self, steps: Sequence[Step], run: Run) -> None:
        """Raises ``NotTaken``."""
        libpq, known = self._libpq, self._connection.statements.known
        for step in steps:
            if step.once:
                if not pq_send_query_params(libpq, step.text.encode(), 0, None, None, None, None, 0):
                    raise NotTaken
                continue
            prepared = known.get((step.role, step.text)) or self._prepare(step, run)
            size = len(step.values)
            if not pq_send_query_prepared(
                libpq, prepared.name, size, (Text * size)(*step.values), None, None, 0
            ):
                raise NotTaken
            run.used.append(prepared)
        if not pq_pipeline_sync(libpq):
            raise NotTaken

    def flush_soon(self) -> None:
        """Send what has been submitted when everything that came in this turn of the reactor has been."""
        if not self._scheduled:
            self._scheduled = True
            self._connection.reactor.callLater(0, self.flush)

    def _prepare(self, step: Step, run: Run) -> Prepared:
        prepared = self._connection.statements.add(step.role, step.text)
        run.preparing.append(prepared)
        if not pq_send_prepare(self._libpq, prepared.name, step.text.encode(), 0, None):
            raise NotTaken
        return prepared

    def _deallocate(self, now: float) -> None:
        """Drop statements that are not used any more, each in a transaction of its own. Failures do not matter."""
        for name in self._connection.statements.take_unwanted():
            run = Run(self._connection, now)
            run.done.addErrback(lambda failure: None)
            self.waiting.append(run)
            drop = b"DEALLOCATE " + name
            if not (
                pq_send_query_params(self._libpq, drop, 0, None, None, None, None, 0)
                and pq_pipeline_sync(self._libpq)
            ):
                raise NotTaken

    def waited(self, now: float) -> float:
        """How long nothing has come, without the time in which this process itself was busy."""
        return now - self.since - (thread_time() - self._cpu)

    # Called by the connection

    def flush(self) -> None:
        """Send what has been submitted."""
        self._scheduled = False
        left = pq_flush(self._libpq) if self._libpq is not None else 0
        if left > 0:
            self._connection.reactor.addWriter(self._connection)
        elif left < 0:
            self._connection.abandon()

    def read(self) -> None:
        """Take what has arrived, and fire the runs that are complete."""
        libpq, waiting = self._libpq, self.waiting
        if not pq_consume_input(libpq):
            self._connection.connection_lost()
            return
        now, cpu = self._clock(), thread_time()
        waited = now - self.since - (cpu - self._cpu)  # as ``waited`` has it
        ended = False
        while waiting and not pq_is_busy(libpq):
            result = pq_get_result(libpq)
            if not result:
                if ended:
                    # Nothing twice in a row: the server has gone before it had all that was sent, and libpq would
                    # return nothing for ever.
                    self._connection.connection_lost()
                    return
                ended = True  # the end of one statement's results
                continue
            ended = False
            run, status = waiting[0], pq_result_status(result)
            if status == _PIPELINE_SYNC:
                pq_clear(result)
                waiting.popleft()
                if waited:
                    run.slow, waited = self._held_up(waited, run), 0.0
                self._finish(run)
                continue
            if status == _TUPLES_OK:
                if run.before:
                    pq_clear(run.before)
                run.before, run.result = run.result, result
                continue
            if status == _COMMAND_OK:
                # The result of preparing has no name of a command.
                if run.preparing and not pq_command_status(result):
                    del run.preparing[0]
            elif status != _PIPELINE_ABORTED:
                run.error = _refusal(result)
            pq_clear(result)
        self.since, self._cpu = now, cpu

    def lost(self, failure: Lost) -> None:
        """The connection is lost: fail each run with what ``failure`` makes of the error that the server may have
        sent for it before."""
        self._libpq = None  # with which libpq's functions do nothing
        self._gone = failure
        runs = list(self.waiting)
        self.waiting.clear()
        for run in runs:
            pq_clear(run.result)
            pq_clear(run.before)
            run.done.errback(failure(run.error))

    @property
    def usual(self) -> float:
        """Who waits longer for a batch of results is held up."""
        return max(SLOW_SECONDS, SLOW_FACTOR * self.typical)

    def _held_up(self, waited: float, run: Run) -> bool:
        """Whether a caller that waits so long for ``run`` is held up: it is much longer than usual. On a busy machine
        everything takes longer, and that alone is no reason not to share. But what had to be ended is not usual."""
        slow = waited > SLOW_SECONDS and waited > self.usual  # the first is enough for nearly all
        if run.error is None or run.error.pgcode != CANCELED:
            usual = min(waited, 1.3 * self.typical + 0.0001)
            self.typical = usual if waited > self.typical else 0.9 * self.typical
        return slow

    def _finish(self, run: Run) -> None:
        before, result = run.before, run.result
        run.before = run.result = None
        if run.error is not None:
            stale = run.used if may_be_stale(run.error.pgcode) else run.preparing
            for prepared in stale:
                self._connection.statements.forget(prepared)
            pq_clear(before)
            pq_clear(result)
            run.done.errback(run.error)
            return
        if run.timed:
            run.took = int(pq_value(result, 0, 0)) / 1e6
            run.used.pop()
            before, result = result, before
        if result:
            run.rows = _text_rows(result)
            if run.used:
                last = run.used[-1]
                if last.types is None:
                    last.types = tuple([pq_field_type(result, n) for n in range(pq_fields(result))])
                run.types = last.types
        pq_clear(before)
        pq_clear(result)
        run.done.callback(None)


# How many microseconds the server has needed for the transaction so far.
_TOOK = Step("select (extract(epoch from clock_timestamp() - transaction_timestamp()) * 1e6)::int8")


def _text_rows(result: int) -> list[TextRow]:
    rows, columns = [], range(pq_fields(result))
    for number in range(pq_rows(result)):
        row: TextRow = []
        for column in columns:
            value = pq_value(result, number, column)
            row.append(None if not value and pq_is_null(result, number, column) else value)
        rows.append(row)
    return rows


@frozen
class Diagnosis:
    """The fields of an error, under psycopg2's names."""

    message_primary: str | None
    message_detail: str | None
    message_hint: str | None
    constraint_name: str | None


# PG_DIAG_SQLSTATE and so on, of libpq's postgres_ext.h.
_SQLSTATE, *_FIELDS = [ord(letter) for letter in "CMDHn"]


def _refusal(result: int) -> psycopg2.Error:
    code, *fields = [pq_result_error_field(result, field) for field in (_SQLSTATE, *_FIELDS)]
    texts = [None if text is None else text.decode("utf-8", "replace") for text in fields]
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
    """The error by which the server ended the connection, if it sent one before. psycopg2 gets both at once, and has
    that error only as the beginning of a text."""
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
    parsed = psycopg2.BINARY(value, None)
    return None if parsed is None else bytes(parsed)


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
    return [
        value.encode() if value.__class__ is str else None if value is None else as_text(value)
        for value in values
    ]


def _item(value: Any) -> bytes:
    text = as_text(value)
    if text is None:
        return b"NULL"
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


@lru_cache(maxsize=256)
def _converter(kind: int) -> Callable[[bytes | None, Any], Any]:
    converter: Callable[[bytes | None, Any], Any] = extensions.string_types.get(kind, extensions.UNICODE)
    return converter
