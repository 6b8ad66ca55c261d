"""A PostgreSQL connection that stays registered with the reactor.

``execute`` and ``query`` send SQL text through psycopg2, ``run`` prepared statements in libpq's pipeline mode
(``pipeline``), in which the connection stays until psycopg2 is needed. txpostgres' own cursors register with the
reactor for each query and fire in a later turn; this class does neither. Nothing here is safe to cancel, so callers
have to shield (see ``pool``).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from sys import getsizeof
from typing import Any

import psycopg2
from psycopg2 import extensions
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure
from txpostgres import txpostgres

from project_service.database.opening import Opening
from project_service.database.pipeline import (
    NotTaken,
    Pipeline,
    Run,
    Statements,
    Step,
    error_that_ended,
    ignore_notices,
    may_be_stale,
    reported,
    show_sqlstates,
)
from project_service.database.quickness import Quickness
from project_service.database.slow import NOT_WATCHED
from project_service.errors import Away
from project_service.lifecycle import cancel

Params = Mapping[str, Any] | Sequence[Any] | None
Row = tuple[Any, ...]

# The settings on which the meaning of a message depends: its encoding, how it quotes, who sends it, and whether it
# may write. The server reports changes of these by itself (PostgreSQL's manual, section 55.2.7).
_REPORTED = (
    b"client_encoding",
    b"standard_conforming_strings",
    b"session_authorization",
    b"default_transaction_read_only",
)
_IN_TRANSACTION = (extensions.TRANSACTION_STATUS_INTRANS, extensions.TRANSACTION_STATUS_INERROR)
_CONNECTION_FAULTS = (psycopg2.OperationalError, psycopg2.InterfaceError)


class DatabaseGone(Away):
    """The connection was lost, could not be made, or does not answer. The work may or may not have been done.

    ``reason`` is the error by which the server ended the connection, if it sent one."""

    def __init__(self, why: str, reason: psycopg2.Error | None = None) -> None:
        super().__init__(why)
        self.reason = reason

    def because(self, reason: psycopg2.Error | None) -> DatabaseGone:
        return type(self)(str(self), reason)


class DatabaseSilent(DatabaseGone):
    """The server does not answer. Another connection would most likely have to wait as long."""


class Connection(txpostgres.Connection):  # type: ignore[misc]  # txpostgres is not typed
    """Made by ``Connector``. Only one caller may use it at a time; the pool sees to that.

    ``on_lost`` is called once if the connection is lost while it is idle. Each answer may take ``answer_seconds``
    and ``extra_seconds``, without a limit if one of them is None.
    """

    # What the connection uses in pipeline mode.
    pipeline_class = Pipeline

    def __init__(self, reactor: Any) -> None:
        super().__init__(reactor=reactor)
        self.on_lost: Callable[[Connection], None] | None = None
        self.on_notify: Callable[[str, str], None] | None = None
        self.answer_seconds: float | None = None
        # What the present caller is allowed beyond ``answer_seconds``.
        self.extra_seconds: float | None = 0.0
        self.statements = Statements()
        # What makes the session's own settings, as the expressions of a SELECT. RESET ALL removes them.
        self.own = ""
        # Set where each transaction may have another session: what it begins with, and whether it may prepare.
        self.opening: Opening | None = None
        self.prepares = True
        # What is slow on it is reported to these, with the role that the present caller acts as, if any.
        self.slow = NOT_WATCHED
        self.role = ""
        # For ``acting``: whose plans PostgreSQL has cached, if any, and the version of the trust in the database with
        # which the connection was made as new.
        self.plans_of: object = None
        self.recycled: int | None = None
        # Set while the connection is in pipeline mode.
        self.pipeline: Pipeline | None = None
        self._sent = 0.0
        self._running: Deferred[None] | None = None
        self._discarded = False
        self._expires: float | None = None
        # One delayed call checks the answers to many messages: one for each would cost as much as sending it.
        self._answer_check: IDelayedCall | None = None
        # One cursor is enough, since there is one message at a time.
        self._cursor: Any = None
        self._descriptor: int | None = None
        self._remembered: tuple[bytes | None, ...] | None = None

    async def open(self, **params: Any) -> None:
        """Connect with libpq's parameters, for one host. This may be cancelled; then call ``close``."""
        await self._connected(params)
        ignore_notices(self._connection)
        show_sqlstates(self._connection)
        # libpq closes its socket when the server hangs up, but the reactor must still be able to unregister it. So
        # from here on the reactor watches a duplicate of the descriptor.
        self.reactor.removeReader(self)
        self._descriptor = os.dup(self._connection.fileno())
        self.reactor.addReader(self)

    def _connected(self, params: dict[str, Any]) -> Deferred[None]:
        """Callers do not wait on txpostgres' own Deferred, because its ``cancel`` raises."""
        waiting: Deferred[None] = Deferred()

        def passed(result: Any) -> None:
            if not waiting.called:
                waiting.callback(result if isinstance(result, Failure) else None)

        self.connect(**params).addBoth(passed)
        return waiting

    @property
    def raw(self) -> Any:
        """psycopg2's connection."""
        return self._connection

    def fileno(self) -> int:
        return int(super().fileno()) if self._descriptor is None else self._descriptor

    async def execute(self, sql: str | bytes, params: Params = None, opens: bool = True) -> Any:
        """Send one message of one or several statements. Returns psycopg2's cursor with the last result, which is
        valid until the next message. Without ``opens`` the message has what a transaction begins with itself.

        Raises ``psycopg2.Error`` for what the server refuses, and ``DatabaseGone`` if the connection is lost or the
        server does not answer within ``answer_seconds``.
        """
        self._check_idle()
        if self.pipeline is not None:
            pipeline, self.pipeline = self.pipeline, None
            pipeline.leave()
        cursor = self.cursor
        running: Deferred[None] = Deferred()
        self._running = running
        self._sent = self.reactor.seconds()
        try:
            cursor.execute(self._opened(sql) if opens and self.opening is not None else sql, params)
        except psycopg2.Error as fault:
            self._running = None
            raise self._as_raised(fault) from fault
        except BaseException:
            self._running = None
            raise
        self.watch()
        try:
            self._advance()
            await running
        except psycopg2.Error as fault:
            raise self._as_raised(fault) from fault
        finally:
            self._running = None
            took = self.reactor.seconds() - self._sent
            if took >= self.slow.seconds:
                self.slow.report(took, sql, self.role)
        return cursor

    def _opened(self, sql: str | bytes) -> str | bytes:
        """``sql`` after what a transaction begins with, unless it is in one."""
        if self.opening is None or self.in_transaction:
            return sql
        text = self.opening.text
        return text.encode() + sql if isinstance(sql, bytes) else text + sql

    async def query(self, sql: str | bytes, params: Params = None) -> list[Row]:
        """The rows of the last statement of ``sql``; an empty list if it returns none."""
        return self._rows(await self.execute(sql, params))

    async def query_whole(self, sql: str, params: Params = None) -> list[Row]:
        """As ``query``, for a message that has what a transaction begins with itself, with ``own`` in it."""
        return self._rows(await self.execute(sql, params, opens=False))

    def _rows(self, cursor: Any) -> list[Row]:
        rows: list[Row] = cursor.fetchall() if cursor.description is not None else []
        self._forget_large(rows[0] if len(rows) == 1 else ())
        return rows

    def _forget_large(self, row: Sequence[Any]) -> None:
        largest = max(map(getsizeof, row), default=0)
        if largest > 2**20:
            self._cursor = None  # it would keep the result until the next message, which may be hours away
        if largest > 2**23:
            self.expire_after(0)  # libpq keeps a buffer of that size for as long as it is connected

    async def run(self, steps: Sequence[Step], version: int = 0, timed: bool = False) -> Run:
        """Run prepared statements as one transaction of their own (see ``pipeline``); the complete run.

        Raises as ``execute`` does. ``version`` is that of the schema cache that the statements were made with.
        """
        pipeline = self.pipeline
        if pipeline is None or pipeline.waiting or self._discarded:
            self._check_idle()
            pipeline = self.enter_pipeline()
        self.watch()
        if self.opening is not None:
            steps = (*self.opening.steps, *steps)
            if self.statements.too_many:
                self.expire_after(0)
        run = pipeline.submit(version, steps, timed)
        pipeline.flush()
        try:
            await run.done
        except psycopg2.Error as fault:
            raise self._as_raised(fault) from fault
        finally:
            took = self.reactor.seconds() - run.sent
            if took >= self.slow.seconds:
                self.slow.report(took, steps[-1].text, self.role)
        self._forget_large(run.rows[0] if len(run.rows) == 1 else ())
        return run

    def report_slow(self, run: Run) -> None:
        """Report a run by which others were held up, if it was so slow that the log is to say so."""
        took = self.reactor.seconds() - run.sent
        if took >= self.slow.seconds and run.used:
            self.slow.report(took, run.used[-1].text, run.used[-1].role)

    def _check_idle(self) -> None:
        if self._running is not None or (self.pipeline is not None and self.pipeline.waiting):
            raise RuntimeError("the connection is busy")

    async def query_prepared(
        self, sql: str, params: Sequence[Any], quickness: Quickness | None = None
    ) -> list[Row]:
        """As ``query``, with ``sql`` prepared on this connection so that PostgreSQL plans it once.

        ``quickness`` learns how long it took, until it counts as quick. ``sql`` is as in ``Step.of``. Must not be
        used inside a transaction, because the statement may be run again after a failure.
        """
        if not self.prepares:
            return await self.query(sql, params)
        timed = quickness is not None and not quickness.is_quick
        try:
            run = await self.run([Step.of(sql, params)], timed=timed)
            if quickness is not None and timed:
                quickness.ran(run.took)
            return run.typed()
        except psycopg2.Error as fault:
            if not may_be_stale(fault.pgcode):
                raise
        return await self.query(sql, params)

    def open_each(self, opening: Opening, prepares: bool) -> None:
        """Begin each transaction with ``opening``: it may have another session, which a pooler chooses. Statements
        are prepared only if it ``prepares``, that is, sees to it that they are on that session too."""
        self.opening, self.own, self.prepares = opening, opening.own, prepares
        self.statements.drops = False

    @property
    def pooled(self) -> bool:
        """Whether each transaction may have another session."""
        return self.opening is not None

    def enter_pipeline(self) -> Pipeline:
        """Put the connection into pipeline mode, anew if it is. Raises ``DatabaseGone`` if it is lost."""
        if self._discarded or self._connection is None or self._connection.closed:
            raise DatabaseGone("connection lost")
        try:
            self.pipeline = self.pipeline_class(self)
        except NotTaken:
            self.abandon()
            raise DatabaseGone("connection lost") from None
        return self.pipeline

    def watch(self) -> None:
        """A message has just been sent: close the connection if the server does not answer it in time."""
        if self.answer_seconds is None or self.extra_seconds is None:
            return
        allowed = self.answer_seconds + self.extra_seconds
        if self._answer_check is None:
            self._answer_check = self.reactor.callLater(allowed, self._check_answer)
        elif self._answer_check.getTime() > self.reactor.seconds() + allowed:
            self._answer_check.reset(allowed)  # it was longer before

    def _check_answer(self) -> None:
        """Called when the answer that was awaited is due: it times out if it has not come. (Its arrival does not
        cancel the call, because that would cost time for each message.)"""
        self._answer_check = None
        since = self.awaiting_since
        if self.answer_seconds is None or self.extra_seconds is None or since is None:
            return
        left = since + self.answer_seconds + self.extra_seconds - self.reactor.seconds()
        if left > 0:
            self._answer_check = self.reactor.callLater(left, self._check_answer)
        else:
            self.timed_out()

    def timed_out(self) -> None:
        """The server does not answer. statement_timeout should have ended the statement, so the server or the network
        is gone."""
        drop_unsent(self.fileno())
        self._lost(DatabaseSilent("the database did not answer"))

    def abandon(self) -> None:
        """To be called when libpq has failed. What it still has to send, such as a part of a transaction, must not go
        out."""
        if self._descriptor is not None:
            drop_unsent(self._descriptor)
        self.connection_lost()

    @property
    def usable(self) -> bool:
        """Whether another caller may have it: it is connected, idle and outside a transaction."""
        raw, pipeline = self._connection, self.pipeline
        if self._discarded or self._running is not None or (pipeline is not None and pipeline.waiting):
            return False
        if raw is None or raw.closed or (self._expires is not None and self.expired):
            return False
        return bool(raw.get_transaction_status() == extensions.TRANSACTION_STATUS_IDLE)

    @property
    def expired(self) -> bool:
        """Whether the time set by ``expire_after`` has passed."""
        return self._expires is not None and bool(self.reactor.seconds() >= self._expires)

    @property
    def awaiting_since(self) -> float | None:
        """When the oldest unanswered message was sent; None if there is none."""
        if self._running is not None:
            return self._sent
        pipeline = self.pipeline
        return pipeline.waiting[0].sent if pipeline is not None and pipeline.waiting else None

    def expire_after(self, seconds: float) -> None:
        """Do not give it to another caller after so many seconds."""
        self._expires = self.reactor.seconds() + seconds

    def remember_settings(self) -> None:
        """Remember the present settings: every caller is to find these (see ``altered``)."""
        self._remembered = reported(self._connection, _REPORTED)

    @property
    def altered(self) -> bool:
        """Whether SQL has changed a session setting (encoding, quoting, user, read-only) that would make the next
        statement mean something else."""
        remembered = self._remembered
        return remembered is not None and remembered != reported(self._connection, _REPORTED)

    @property
    def in_transaction(self) -> bool:
        raw = self._connection
        return raw is not None and not raw.closed and raw.get_transaction_status() in _IN_TRANSACTION

    def discard(self) -> None:
        """Never use this connection again; the pool closes it when it comes back."""
        self._discarded = True

    def cancel_and_close(self) -> None:
        """Cancel the current statement, and close. This blocks until the server has taken the request."""
        if self._connection is not None and not self._connection.closed:
            with suppress(psycopg2.Error):
                self._connection.cancel()
        self.close()

    def close(self) -> None:
        self._discarded = True
        self.on_lost = None
        self._disconnect(DatabaseGone("closed"))
        self._fail(DatabaseGone("closed"))

    def connection_lost(self) -> None:
        """libpq reports that the connection is lost."""
        self._lost(DatabaseGone("connection lost"))

    # Called by the reactor.

    def doRead(self) -> None:
        if self._pollingD is not None:
            # Still connecting. Only the mixin's step: txpostgres' own method would then watch a socket that libpq
            # closes when the server hangs up.
            txpostgres._PollingMixin.doRead(self)
        elif self.pipeline is not None:
            self.pipeline.read()
        else:
            self._advance()

    def doWrite(self) -> None:
        if self._pollingD is not None:
            super().doWrite()
            return
        self.reactor.removeWriter(self)
        if self.pipeline is not None:
            self.pipeline.flush()
        else:
            self._advance()

    def connectionLost(self, reason: Failure) -> None:
        if self._pollingD is not None:
            super().connectionLost(reason)
            return
        self._lost(DatabaseGone("connection lost"))

    def _advance(self) -> None:
        raw = self._connection
        try:
            state = raw.poll()
        except psycopg2.Error as fault:
            if raw.closed or self._running is None:
                self._lost(fault)
            else:
                self._fail(fault)
            return
        if state == extensions.POLL_WRITE:
            self.reactor.addWriter(self)
        answered = None
        if state == extensions.POLL_OK:
            answered, self._running = self._running, None
        # Before whoever waits for the answer goes on, since it was announced before. But only now, because a
        # subscriber may send the next message, which ``state`` is not about.
        if raw.notifies:
            self._notify()
        if answered is not None:
            answered.callback(None)

    def _notify(self) -> None:
        notifies, self._connection.notifies[:] = list(self._connection.notifies), []
        if self.on_notify is not None:
            for notice in notifies:
                self.on_notify(notice.channel, notice.payload)

    def _lost(self, fault: Exception) -> None:
        self._discarded = True
        self._disconnect(fault if isinstance(fault, DatabaseGone) else DatabaseGone("connection lost"))
        if self._running is not None:
            self._fail(fault)
            return
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost(self)

    def _disconnect(self, fault: DatabaseGone) -> None:
        if self._connection is None:
            return
        pipeline, self.pipeline = self.pipeline, None
        if pipeline is not None:
            # A caller that learns of it cannot submit anything to it any more.
            pipeline.lost(fault.because)
        self.reactor.removeReader(self)
        self.reactor.removeWriter(self)
        cancel(self._answer_check)
        self._answer_check = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if not self._connection.closed:
            self._connection.close()

    def _fail(self, fault: Exception) -> None:
        running, self._running = self._running, None
        if running is not None and not running.called:
            running.errback(fault)

    @property
    def cursor(self) -> Any:
        """The psycopg2 cursor that ``execute`` uses, made on first use. Raises ``DatabaseGone``."""
        if self._discarded or self._connection is None or self._connection.closed:
            raise DatabaseGone("connection lost")
        if self._cursor is None:
            try:
                self._cursor = self._connection.cursor()
            except psycopg2.Error as fault:
                raise DatabaseGone("connection lost") from fault
        return self._cursor

    def _as_raised(self, fault: psycopg2.Error) -> Exception:
        """The exception to raise: an error without SQLSTATE is one of the connection, not of the statement."""
        if self._connection.closed or (fault.pgcode is None and isinstance(fault, _CONNECTION_FAULTS)):
            self._discarded = True
            return DatabaseGone(type(fault).__name__, error_that_ended(fault))
        return fault


def drop_unsent(descriptor: int) -> None:
    """Make the socket send nothing more, neither of what was written to it already nor of what libpq has not written
    yet, which it would do when it closes. To be called before that.

    By itself the kernel goes on sending for minutes. After an interruption of the network, the database would then
    execute a statement whose caller got an error long ago, and undo what the caller has done since then.
    """
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(OSError):  # the other side has closed it
            duplicate.shutdown(socket.SHUT_RDWR)
