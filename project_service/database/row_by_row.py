"""One statement at a time on a connection of its own, with its rows one by one, so that no result is ever in memory
as a whole.

libpq usually keeps all of a result before it hands out the first row, which may be gigabytes; in its single-row mode
(PostgreSQL's manual, "Retrieving Query Results in Chunks") it keeps one row. The statement runs as it would anywhere,
also if it is no SELECT, and has its full effect however many rows its caller wants. A cursor would do neither.

Cost: as in ``pipeline``, with which this shares ``libpq`` and manner.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from contextlib import suppress
from typing import Protocol

import psycopg2
from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.libpq import (
    NoticeReceiver,
    pq_clear,
    pq_command_status,
    pq_consume_input,
    pq_field_modifier,
    pq_field_name,
    pq_field_type,
    pq_fields,
    pq_flush,
    pq_get_result,
    pq_is_busy,
    pq_is_null,
    pq_result_error_field,
    pq_result_status,
    pq_send_query,
    pq_set_nonblocking,
    pq_set_notice_receiver,
    pq_set_single_row_mode,
    pq_value,
)
from project_service.lifecycle import background, start

# libpq has to have a whole row before it can be left out.
MAX_ROW_BYTES = 16 * 1024**2

_EMPTY, _COMMAND_OK, _TUPLES_OK, _COPY_OUT, _COPY_IN, _FATAL, _SINGLE_TUPLE = 0, 1, 2, 3, 4, 7, 9
_COPY_BOTH = 8
# PG_DIAG_SEVERITY_NONLOCALIZED and so on, of libpq's postgres_ext.h, in the order of the fields of ``Report``.
_FIELDS = [ord(letter) for letter in "VCMDHW"]
_POSITION = ord("P")


@frozen
class Column:
    """``type`` and ``modifier`` are as in ``pg_attribute``: ``atttypid`` and ``atttypmod``."""

    name: str
    type: int
    modifier: int


@frozen
class Report:
    """An error or a notice. ``position`` is that of a character in the statement, counted from 1."""

    severity: str
    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None
    context: str | None = None
    position: int | None = None


class Refused(Exception):
    """The server has refused the statement. The connection can be used further."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.message)
        self.report = report


class Unsuited(Exception):
    """The statement does what cannot be done here, so it was given up, and the connection with it."""


class Receiver(Protocol):
    """Is told what a statement returns. The text of a value is None for null."""

    @property
    def wants_rows(self) -> bool:
        """False: ``row`` is not called any more."""

    def begin(self, columns: tuple[Column, ...]) -> None: ...

    def row(self, values: list[bytes | None]) -> None: ...

    def count(self) -> None:
        """There is a row; called for each, before ``row``."""

    def notice(self, report: Report) -> None: ...


class RowByRow:
    """Takes ``connection`` over, which nobody uses for anything else from then on. Close this, not that."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reactor = connection.reactor
        self._libpq = connection.raw.pgconn_ptr
        self._descriptor = connection.fileno()
        self._running: Deferred[str] | None = None
        self._receiver: Receiver | None = None
        self._end: str | Failure | None = None
        self._cancelling: Deferred[None] | None = None
        self._begun = False
        # How much has come since the last row.
        self._received = 0
        # libpq keeps only its address.
        self._on_notice = NoticeReceiver(self._notice)
        pq_set_notice_receiver(self._libpq, self._on_notice, None)
        pq_set_nonblocking(self._libpq, 1)
        self._reactor.removeReader(connection)
        self._reactor.addReader(self)

    @property
    def usable(self) -> bool:
        return self._libpq is not None

    @property
    def in_transaction(self) -> bool:
        return self.usable and self._connection.in_transaction

    def setting(self, name: str) -> str | None:
        """The present value of a setting that the server reports."""
        value = self._connection.raw.get_parameter_status(name)
        return None if value is None else str(value)

    async def run(self, statement: str, receiver: Receiver) -> str:
        """Run one statement. Returns its command tag, such as "INSERT 0 1".

        Raises ``Refused``, ``Unsuited`` for COPY from or to the client and for a row of more than ``MAX_ROW_BYTES``,
        and ``DatabaseGone``. After all but the first it is not ``usable`` any more. May be cancelled; then ``cancel``
        has to be called.
        """
        if not self.usable:
            raise DatabaseGone("closed")
        assert self._running is None
        cancelling, self._cancelling = self._cancelling, None
        if cancelling is not None:
            await cancelling  # or it would end this statement
        self._receiver, self._end, self._begun, self._received = receiver, None, False, 0
        running: Deferred[str] = Deferred()
        self._running = running
        if not pq_send_query(self._libpq, statement.encode()) or not pq_set_single_row_mode(self._libpq):
            self._lost()
        else:
            self.doWrite()
        return await running

    def cancel(self) -> None:
        """Ask the server to end the statement that is under way. What comes of it, ``run`` raises or returns."""
        if self.usable and self._running is not None and self._cancelling is None:
            self._cancelling = start(self._ask_to_cancel())

    def close(self) -> None:
        """Close the connection; a statement that is under way is cancelled first, in the background."""
        if not self.usable:
            return
        busy = self._running is not None
        self._release()
        if busy:
            background(self._cancel_and_close(), "cancelling a statement")
        else:
            self._connection.close()

    async def _ask_to_cancel(self) -> None:
        # In a thread, because libpq waits until the server has taken the request.
        with suppress(psycopg2.Error):  # the connection is lost
            await deferToThreadPool(self._reactor, self._reactor.getThreadPool(), self._connection.raw.cancel)

    async def _cancel_and_close(self) -> None:
        try:
            await self._ask_to_cancel()
        finally:
            self._connection.close()

    def _release(self) -> None:
        self._libpq = None
        self._running = self._receiver = None
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)

    # Called by the reactor.

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return type(self).__name__

    def doWrite(self) -> None:
        left = pq_flush(self._libpq)
        if left > 0:
            self._reactor.addWriter(self)
            return
        self._reactor.removeWriter(self)
        if left < 0:
            self._lost()

    def doRead(self) -> None:
        self._received += _waiting(self._descriptor)
        if not pq_consume_input(self._libpq):
            self._take_results()  # the server may have said why
            self._lost()
            return
        self._take_results()
        if self._received > MAX_ROW_BYTES + _MARGIN:
            self._give_up(
                f"A row is larger than {MAX_ROW_BYTES} bytes: select less of it, such as left(text, 1000)."
            )

    def connectionLost(self, reason: Failure) -> None:
        self._lost()

    def _take_results(self) -> None:
        while self._running is not None and not pq_is_busy(self._libpq):
            result = pq_get_result(self._libpq)
            if not result:
                self._ended()
                return
            try:
                self._take(result)
            finally:
                pq_clear(result)

    def _take(self, result: int) -> None:
        assert self._receiver is not None
        status = pq_result_status(result)
        self._received = 0
        if status in (_SINGLE_TUPLE, _TUPLES_OK):
            columns = range(pq_fields(result))
            if not self._begun:
                self._begun = True
                self._receiver.begin(tuple(_column(result, number) for number in columns))
            if status == _SINGLE_TUPLE:
                self._receiver.count()
                if self._receiver.wants_rows:
                    self._receiver.row([_text(result, number) for number in columns])
                return
            self._end = _decoded(pq_command_status(result))
        elif status in (_COMMAND_OK, _EMPTY):
            self._end = _decoded(pq_command_status(result))
        elif status in (_COPY_IN, _COPY_OUT, _COPY_BOTH):
            self._give_up(
                "COPY can neither read from the client nor write to it here: use INSERT and SELECT."
            )
        elif not isinstance(self._end, Failure):  # which may be followed by the loss of the connection
            report = _report(result)
            self._end = Failure(Refused(report) if report.sqlstate else DatabaseGone("connection lost"))

    def _ended(self) -> None:
        running, self._running, self._receiver = self._running, None, None
        end = self._end if self._end is not None else Failure(DatabaseGone("connection lost"))
        if running is not None and not running.called:
            running.callback(end)  # a Failure handed to callback() runs the errbacks

    def _give_up(self, why: str) -> None:
        running = self._running
        self.close()
        if running is not None and not running.called:
            running.errback(Unsuited(why))

    def _lost(self) -> None:
        if not self.usable:
            return
        running, end = self._running, self._end
        self._release()
        self._connection.close()
        if running is not None and not running.called:
            running.errback(end if isinstance(end, Failure) else DatabaseGone("connection lost"))

    def _notice(self, context: int, result: int) -> None:
        if self._receiver is not None:
            self._receiver.notice(_report(result))


# What libpq and the socket may have of further rows.
_MARGIN = 1024**2


def _waiting(descriptor: int) -> int:
    """How many bytes the socket has that were not read yet."""
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0])


def _decoded(text: bytes | None) -> str:
    return (text or b"").decode("utf-8", "replace")


def _decoded_or_none(text: bytes | None) -> str | None:
    return None if text is None else _decoded(text)


def _column(result: int, number: int) -> Column:
    return Column(
        _decoded(pq_field_name(result, number)),
        pq_field_type(result, number),
        pq_field_modifier(result, number),
    )


def _text(result: int, number: int) -> bytes | None:
    value: bytes | None = pq_value(result, 0, number)
    return None if not value and pq_is_null(result, 0, number) else value


def _report(result: int) -> Report:
    severity, sqlstate, message, detail, hint, context = [
        pq_result_error_field(result, field) for field in _FIELDS
    ]
    position = pq_result_error_field(result, _POSITION)
    return Report(
        _decoded(severity),
        _decoded(sqlstate),
        _decoded(message),
        _decoded_or_none(detail),
        _decoded_or_none(hint),
        _decoded_or_none(context),
        None if position is None else int(position),
    )
