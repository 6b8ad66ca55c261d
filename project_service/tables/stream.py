"""Replies too large to be made in one piece: rows from a server-side cursor, as fast as the client reads them.

All rows, and the total if it was asked for, come from one statement and so from one snapshot. The cursor is open and
the first rows have arrived before the head is sent, so most failures still get a proper response; if no connection is
free in time, that is PGRST003. After an error in the middle the connection to the client is broken off, so a body
that ends properly is complete.

A stream holds a connection to the database for as long as its client reads. So clients that read too slowly are
dropped (``Pace``), and there are always fewer streams than connections (``Streams``). The pool closes a connection
that is given back in the middle of its transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from math import ceil
from typing import Any, TypeVar

import psycopg2
from attrs import define, evolve, field, frozen
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pool import Pool
from project_service.http.admission import Slot
from project_service.http.body import ClientGone
from project_service.http.response import Reply, Sink, StreamReply, fault_of
from project_service.lifecycle import start, with_timeout
from project_service.tables import errors
from project_service.tables.errors import from_postgres
from project_service.tables.execution import clear, pass_to_role
from project_service.tables.outcome import Outcome, as_bytes, outcome_of_read
from project_service.tables.plan.media import Rendering
from project_service.tables.planner import Planned
from project_service.tables.request.request import RawRequest
from project_service.tables.response import head_of_stream, reply_to
from project_service.tables.sql.fragment import Sql
from project_service.tables.sql.statement import RESPONSE_SETTINGS
from project_service.tables.transaction_settings import Preamble
from project_service.tables.values import TablesConfig

# Puts a body together from rows that are texts already, piece by piece, for a stream.


def begin(rendering: Rendering, header: bytes) -> bytes:
    """What comes before the first row. ``header`` is the first line of CSV."""
    if rendering.form == "csv":
        return header + b"\n"
    if rendering.form == "ndjson":
        return b""
    return b'{"type" : "FeatureCollection", "features" : [' if rendering.form == "geojson" else b"["


def joined(rendering: Rendering, rows: Sequence[Any], first: bool) -> bytes:
    """The piece of the body with these rows, of which there is at least one; ``first`` if none came before them."""
    texts = [row[0] for row in rows]
    if rendering.form == "ndjson":
        return b"\n".join(texts) + b"\n"
    # Between JSON values the same separator as of PostgreSQL's json_agg.
    separator = b"\n" if rendering.form == "csv" else b", \n "
    return (b"" if first else separator) + separator.join(texts)


def end(rendering: Rendering) -> bytes:
    """What comes after the last row."""
    if rendering.form == "geojson":
        return b"]}"
    return b"]" if rendering.form == "json" else b""


FIRST_ROWS = 500
MOST_ROWS = 5000
# What one FETCH is meant to bring.
CHUNK_BYTES = 256 * 1024
# How many requests may wait for their turn. By then all has been made for them, and each holds some 30 KiB.
MAX_WAITING = 2000
# How much longer than a client may take for a chunk PostgreSQL waits before it ends the transaction. That only
# happens if this process hangs.
_IDLE_MARGIN_SECONDS = 10
_CURSOR = "pgrst_rows"

T = TypeVar("T")


class _TooSlow(Exception):
    pass


@frozen
class Pace:
    """How slowly a client may read. It may fall ``patience_seconds`` behind a client that takes ``bytes_per_second``;
    what it has read faster before does not count. With 0 bytes it has to take each chunk within that time."""

    patience_seconds: float
    bytes_per_second: int

    def left(self, before: float, waited: float, taken: int) -> float:
        """How many seconds the next chunk may take, after one of ``taken`` bytes that was allowed ``before`` seconds
        and took ``waited``."""
        if not self.bytes_per_second:
            return self.patience_seconds
        return min(self.patience_seconds, before - waited + taken / self.bytes_per_second)


@frozen
class Streams:
    """Gives streams their connections: at most as many at a time as ``places`` has."""

    pool: Pool
    places: DeferredSemaphore
    clock: IReactorTime
    acquire_timeout_seconds: float
    pace: Pace

    async def open(
        self,
        preamble: Preamble,
        path: str,
        rows: Sql,
        values: list[Any],
        rendering: Rendering,
        likely: Outcome,
        slot: Slot,
        leaves_things: bool = False,
        header: tuple[Sql, list[Any]] | None = None,
    ) -> RowStream:
        """A stream whose first rows have been read. The caller has to write it or to close it.

        ``likely`` is an outcome whose rows are likely to be as large. ``header`` is the query for the first line of
        CSV, with its values. ``slot`` is released while it waits for the clients of other streams. Raises
        PGRST003 if no connection is free in time, and what running the query raises.
        """
        await self._turn(slot)
        connection = None
        try:
            connection = await self.pool.acquire()
            stream = RowStream(self, connection, preamble, rendering, _rows_of_chunk(likely), leaves_things)
            await stream.open(path, rows, values)
            if header is not None:
                await stream.read_header(*header)
        except BaseException:
            self.release(connection)
            raise
        return stream

    async def _turn(self, slot: Slot) -> None:
        if len(self.places.waiting) >= MAX_WAITING:
            raise errors.pool_timeout()
        turn: Deferred[Any] = self.places.acquire()
        if turn.called:
            return
        slot.release()
        try:
            await with_timeout(self.clock, self.acquire_timeout_seconds, turn, errors.pool_timeout)
        finally:
            slot.retake()

    def release(self, connection: Connection | None) -> None:
        self.places.release()
        if connection is not None:
            self.pool.release(connection)


@define(eq=False)
class RowStream:
    """Writes the body of one reply, once: it is called with a sink. If it is not to be written, call ``close``.

    ``fetched`` are the rows that were read last, ``count`` is how many the next FETCH asks for, and ``more`` says
    whether there may be more. ``leaves_things``: the connection has to be cleared afterwards (``cleanup``).
    """

    streams: Streams
    connection: Connection
    preamble: Preamble
    rendering: Rendering
    count: int
    leaves_things: bool = False
    fetched: list[Any] = field(factory=list, init=False)
    more: bool = field(default=False, init=False)
    header: bytes = field(default=b"", init=False)
    closed: bool = field(default=False, init=False)

    log = Logger()

    @property
    def total(self) -> int:
        """How many rows there are without the range, where the query counts them."""
        return self.fetched[0][1] if self.fetched else 0

    async def open(self, path: str, rows: Sql, values: list[Any]) -> None:
        preamble = self.preamble
        idle = ceil(self.streams.pace.patience_seconds) + _IDLE_MARGIN_SECONDS
        text = (
            f"BEGIN READ ONLY; {preamble.text}; SET LOCAL cursor_tuple_fraction = 1; "
            f"SET LOCAL idle_in_transaction_session_timeout = '{idle}s'; "
            f"{_locks_of(rows).for_driver}; "
            f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR {rows.for_driver}; {self._fetch()}"
        )
        self.connection.extra_seconds = preamble.extra_seconds
        if preamble.plans_apart:
            await self._or_refused(pass_to_role(self.connection, preamble))
        self.fetched = await self._fetched(text, [path, *values, *values])

    async def read_header(self, sql: Sql, values: list[Any]) -> None:
        ((line,),) = await self._asked(sql.for_driver, values)
        self.header = as_bytes(line)

    async def __call__(self, sink: Sink) -> None:
        try:
            await self._write(sink)
            await self.finish()
        finally:
            self.close()

    async def outcome(self, counted: bool, threshold_bytes: int) -> Outcome:
        """The outcome as far as it is known once more than ``threshold_bytes`` have been read. If that is everything
        it has the whole body; otherwise ``whole`` is false."""
        size = _size(self.fetched)
        while self.more and size <= threshold_bytes:
            self._suit(size)
            rows = await self._fetched(self._fetch())
            self.fetched, size = self.fetched + rows, size + _size(rows)
        ((headers, status),) = await self._asked(RESPONSE_SETTINGS)
        count = len(self.fetched)
        body = b"" if self.more else self._chunk(True) + end(self.rendering)
        found = outcome_of_read((self.total if counted else None, count, body, headers, status))
        return evolve(found, whole=not self.more)

    async def finish(self) -> None:
        """To be called when everything has been read: ends the transaction and gives the connection back."""
        try:
            await self._asked("COMMIT")
        finally:
            # Even if the commit is refused, others may get the connection.
            if self.leaves_things:
                await clear(self.connection)
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.streams.release(self.connection)

    def _chunk(self, first: bool) -> bytes:
        before = begin(self.rendering, self.header) if first else b""
        return before + joined(self.rendering, self.fetched, first) if self.fetched else before

    async def _write(self, sink: Sink) -> None:
        allowed, first = self.streams.pace.patience_seconds, True
        while self.fetched or first:
            chunk = self._chunk(first)
            sink.write(chunk)
            first = False
            if not self.more:
                break
            self._suit(len(chunk))
            allowed = await self._taken(sink, allowed, len(chunk))
            self.fetched = await self._fetched(self._fetch())
        sink.write(end(self.rendering))

    async def _taken(self, sink: Sink, allowed: float, size: int) -> float:
        """Wait until the client has read enough to be sent more. Returns how many seconds it may take for the next
        chunk; raises ``ClientGone`` if it took too long for this one."""
        clock, pace = self.streams.clock, self.streams.pace
        since = clock.seconds()
        try:
            await with_timeout(clock, max(0.0, allowed), start(sink.drained()), _TooSlow)
        except _TooSlow:
            self.log.info("a client that read too slowly was dropped")
            raise ClientGone from None
        return pace.left(allowed, clock.seconds() - since, size)

    def _suit(self, size: int) -> None:
        """Set the number of rows for the next FETCH by the ``size`` in bytes of those fetched last, so that memory is
        bounded however wide the rows are."""
        self.count = max(1, min(MOST_ROWS, len(self.fetched) * CHUNK_BYTES // max(size, 1)))

    def _fetch(self) -> str:
        return f"FETCH FORWARD {self.count} FROM {_CURSOR}"

    async def _fetched(self, sql: str, values: list[Any] | None = None) -> list[Any]:
        rows = await self._asked(sql, values)
        self.more = len(rows) == self.count
        return rows

    async def _asked(self, sql: str, values: list[Any] | None = None) -> list[Any]:
        return await self._or_refused(self.connection.query(sql, values))

    async def _or_refused(self, asking: Awaitable[T]) -> T:
        try:
            return await asking
        except (psycopg2.Error, DatabaseGone) as fault:
            raise from_postgres(fault, self.preamble.authenticated) from fault


def _locks_of(rows: Sql) -> Sql:
    """The statement that locks all that ``rows`` reads, including partitions: PostgreSQL locks them to plan it, and
    it reads nothing.

    DECLARE takes its snapshot before it waits for a lock. A table that was meanwhile truncated and filled again, or
    rewritten for a column's new type, would look empty to it (PostgreSQL's manual, "Caveats" of concurrency control).
    If the statement before it waits for the lock, the snapshot is taken afterwards.
    """
    return "SELECT * FROM (" + rows + ") AS pgrst_planned LIMIT 0"  # noqa: S608  # SQL of ours


def _size(rows: list[Any]) -> int:
    """About how many bytes of the body these rows are."""
    return sum([len(row[0]) for row in rows]) + len(rows)


def _rows_of_chunk(likely: Outcome) -> int:
    """How many rows one FETCH is to bring, judged by an outcome with similar rows."""
    return max(1, min(FIRST_ROWS, CHUNK_BYTES * likely.rows // max(likely.size, 1)))


# Replies that are too large to be sent in one piece.
#
# The first time, the ordinary statement shows that its result is too large, and a cursor then runs the query once
# more. The next request of the same shape opens a cursor at once, so that results which are always large are
# computed once. If the cursor's first rows turn out to be all, the reply is sent in one piece, and so are the next
# ones.


# Statuses without a body, which SQL may set however many rows there are.
_BODILESS = (204, 304)


@frozen
class LargeReplies:
    """Decides when to stream, and opens the streams."""

    config: TablesConfig
    streams: Streams

    def expected(self, planned: Planned) -> bool:
        """Whether to open a cursor at once. Not where a stream would have to wait for a connection, nor where the
        number of rows has to be known first."""
        preferences = planned.request.head.preferences
        return (
            planned.compiled.history.streamed
            and self.streams.places.tokens > 0
            and preferences.get("count") in (None, "exact")
            and preferences.max_affected is None
        )

    async def at_once(
        self, path: str, planned: Planned, preamble: Preamble, resource: str
    ) -> Reply | StreamReply | None:
        """The reply by a cursor, to be called where it is ``expected``. None where the ordinary statement has to be
        run after all, for the total. Raises what ``Streams.open`` raises."""
        probe = planned.compiled.probe
        assert probe is not None
        likely = Outcome(rows=probe.rows, size=probe.threshold_bytes)
        stream = await self._open(
            planned, preamble, resource, likely, Slot()
        )  # it does not wait where it is expected
        try:
            outcome = await stream.outcome(_counts(planned), self.config.stream_threshold_bytes)
            if outcome.whole:
                await stream.finish()
                planned.compiled.history.streamed = False
                if not _has_total(planned, outcome):
                    return None
                return reply_to(planned.request, planned.compiled, outcome, path)
            return self._reply(self._head(path, planned, outcome), stream)
        except BaseException:
            stream.close()
            raise

    async def after(
        self, incoming: RawRequest, planned: Planned, outcome: Outcome, preamble: Preamble
    ) -> Reply | StreamReply:
        """The reply by a cursor, after ``outcome`` has shown that the result is too large for one piece.

        Raises what ``Streams.open`` raises.
        """
        path = incoming.path
        head = self._head(path, planned, outcome)
        if not _has_body(head):
            return head
        planned.compiled.history.streamed = True
        stream = await self._open(planned, preamble, incoming.resource, outcome, incoming.slot)
        try:
            streamed = evolve(outcome, rows=len(stream.fetched), total=stream.total)
            if _counts(planned) and _has_total(planned, streamed):
                head = self._head(path, planned, streamed)
            return self._reply(head, stream)
        except BaseException:
            stream.close()
            raise

    async def _open(
        self,
        planned: Planned,
        preamble: Preamble,
        resource: str,
        likely: Outcome,
        slot: Slot,
    ) -> RowStream:
        compiled = planned.compiled
        rows = compiled.statement.stream
        assert rows is not None
        given = planned.operands, planned.body, planned.raw
        header = compiled.statement.header
        return await self.streams.open(
            preamble,
            resource,
            rows,
            rows.values(*given),
            compiled.rendering,
            likely,
            slot,
            compiled.leaves_things,
            None if header is None else (header, header.values(*given)),
        )

    def _head(self, path: str, planned: Planned, outcome: Outcome) -> Reply:
        request = evolve(planned.request, range=planned.request.range.capped(self.config.max_rows))
        return head_of_stream(request, planned.compiled, outcome, path)

    def _reply(self, head: Reply, stream: RowStream) -> Reply | StreamReply:
        if _has_body(head):
            return StreamReply(head.status, head.headers, None, stream)
        stream.close()
        return head


def _has_body(head: Reply) -> bool:
    """Whether the edge will write the body. If it does not, nobody closes the stream, which keeps its connection.

    The edge refuses heads that it cannot write. SQL's headers have been checked by now, but the schema's name in
    Content-Profile comes from the configuration and may be anything.
    """
    return head.status not in _BODILESS and fault_of(head.status, head.headers) is None


def _has_total(planned: Planned, outcome: Outcome) -> bool:
    """Whether the total is known where it was asked for. It comes with each row, so there has to be a row, unless
    there are none at all."""
    return outcome.rows > 0 or planned.request.range.offset == 0 or not _counts(planned)


def _counts(planned: Planned) -> bool:
    return planned.request.head.preferences.get("count") == "exact"
