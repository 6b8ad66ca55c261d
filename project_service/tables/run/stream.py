"""Replies too large for one piece: rows from a server-side cursor, as fast as the client reads them.

The first time, the ordinary statement shows that its result is too large, and a cursor then runs the query once more.
The next request of the same shape opens a cursor at once, so that results that are always large are computed once. If
the cursor's first rows turn out to be all, the reply is sent in one piece, and so are the next ones.

All rows, and the total if it was asked for, come from one statement and so from one snapshot. The cursor is open and
the first rows have arrived before the head is sent, so most failures still get a proper response; if no connection is
free in time, that is PGRST003. After an error in the middle the connection to the client is broken off, so a body
that ends properly is complete.

A stream holds a connection to the database for as long as its client reads. So clients that read too slowly are
dropped (``Pace``), and there are always fewer streams than connections (``Streams``). The pool closes a connection
that is released in the middle of its transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable
from math import ceil
from typing import Any, TypeVar

import psycopg2
from attrs import define, evolve, field, frozen
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.database.acting import Actor, Preamble, Session
from project_service.database.connection import DatabaseGone
from project_service.http.admission import Slot
from project_service.http.body import ClientGone
from project_service.http.response import Reply, Sink, StreamReply, fault_of
from project_service.lifecycle import start, with_timeout
from project_service.tables import errors
from project_service.tables.errors import from_postgres
from project_service.tables.planner import Planned
from project_service.tables.reply.outcome import Outcome, as_bytes, outcome_of_read
from project_service.tables.reply.response import head_of_stream, reply_to
from project_service.tables.request.request import RawRequest
from project_service.tables.sql.fragment import Sql
from project_service.tables.sql.statement import RESPONSE_SETTINGS
from project_service.tables.values import TablesConfig

FIRST_ROWS = 500
MAX_ROWS = 5000
# What one FETCH is meant to bring.
CHUNK_BYTES = 256 * 1024
# How many requests may wait for their turn. By then all has been made for them, and each holds some 30 KiB.
MAX_WAITING = 2000
# How much longer than a client may take for a chunk PostgreSQL waits before it ends the transaction. That only
# happens if this process hangs.
IDLE_MARGIN_SECONDS = 10
_CURSOR = "pgrst_rows"
# Statuses without a body, which SQL may set however many rows there are.
_BODILESS = (204, 304)

T = TypeVar("T")


class _TooSlow(Exception):
    pass


@frozen
class Pace:
    """How slowly a client may read, or send an import. The client may fall ``timeout_seconds`` behind another that
    moves ``bytes_per_second``; time that it saved by being faster before does not count. With 0 ``bytes_per_second``
    each chunk may take ``timeout_seconds``."""

    timeout_seconds: float
    bytes_per_second: int

    def left(self, before: float, waited: float, taken: int) -> float:
        """How many seconds the next chunk may take, after one of ``taken`` bytes that was allowed ``before`` seconds
        and took ``waited``."""
        if not self.bytes_per_second:
            return self.timeout_seconds
        return min(self.timeout_seconds, before - waited + taken / self.bytes_per_second)


@frozen
class Streams:
    """Decides which replies of a database are streamed, and gives each stream a connection: at most as many at a time
    as there are ``turns``."""

    config: TablesConfig
    actor: Actor
    turns: DeferredSemaphore
    clock: IReactorTime
    acquire_timeout_seconds: float
    pace: Pace

    def expected(self, planned: Planned) -> bool:
        """Whether to open a cursor at once. Not where a stream would have to wait for a connection, nor where the
        number of rows has to be known first."""
        preferences = planned.request.head.preferences
        return (
            planned.compiled.history.streamed
            and self.turns.tokens > 0
            and preferences.get("count") in (None, "exact")
            and preferences.max_affected is None
        )

    async def at_once(
        self, incoming: RawRequest, planned: Planned, preamble: Preamble
    ) -> Reply | StreamReply | None:
        """The reply by a cursor, to be called where it is ``expected``. None where the ordinary statement has to be
        run after all, for the total. Raises what ``open`` raises."""
        probe = planned.compiled.probe
        assert probe is not None
        likely = Outcome(rows=probe.rows, size=probe.threshold_bytes)
        # The request keeps its slot: where a stream is expected, it does not wait.
        stream = await self.open(planned, preamble, incoming.resource, likely, Slot())
        try:
            outcome = await stream.outcome(_counts(planned), self.config.stream_threshold_bytes)
            if outcome.whole:
                await stream.finish()
                planned.compiled.history.streamed = False
                if not _has_total(planned, outcome):
                    return None
                return reply_to(planned.request, planned.compiled, outcome, incoming.path)
            return _reply(self._head(incoming, planned, outcome), stream)
        except BaseException:
            stream.close()
            raise

    async def after(
        self, incoming: RawRequest, planned: Planned, outcome: Outcome, preamble: Preamble
    ) -> Reply | StreamReply:
        """The reply by a cursor, after ``outcome`` has shown that the result is too large for one piece.

        Raises what ``open`` raises.
        """
        head = self._head(incoming, planned, outcome)
        if not _has_body(head):
            return head
        planned.compiled.history.streamed = True
        stream = await self.open(planned, preamble, incoming.resource, outcome, incoming.slot)
        try:
            streamed = evolve(outcome, rows=len(stream.fetched), total=stream.total)
            if _counts(planned) and _has_total(planned, streamed):
                head = self._head(incoming, planned, streamed)
            return _reply(head, stream)
        except BaseException:
            stream.close()
            raise

    def _head(self, incoming: RawRequest, planned: Planned, outcome: Outcome) -> Reply:
        request = evolve(planned.request, range=planned.request.range.capped(planned.compiled.max_rows))
        return head_of_stream(request, planned.compiled, outcome, incoming.path)

    async def open(
        self, planned: Planned, preamble: Preamble, resource: str, likely: Outcome, slot: Slot
    ) -> RowStream:
        """A stream whose first rows have been read. The caller has to write it or to close it.

        ``likely`` is an outcome whose rows are likely to be as large. ``slot`` is left to others while the stream
        waits for the clients of other streams. Raises PGRST003 if no connection is free in time, and what running the
        query raises.
        """
        session = await self.lend(slot, preamble, resource)
        try:
            # Judged by an outcome with similar rows.
            count = max(1, min(FIRST_ROWS, CHUNK_BYTES * likely.rows // max(likely.size, 1)))
            stream = RowStream(self, session, planned, count)
            await stream.open()
        except BaseException:
            self.release(session)
            raise
        return stream

    async def lend(self, slot: Slot, preamble: Preamble, path: str) -> Session:
        """A session, which the caller has to ``release``, when it is its turn. ``slot`` is left to others while it
        waits for that. Raises PGRST003 if it has to wait too long."""
        await self._turn(slot)
        try:
            return await self.actor.acquire(preamble, path)
        except BaseException:
            self.release(None)
            raise

    async def _turn(self, slot: Slot) -> None:
        if len(self.turns.waiting) >= MAX_WAITING:
            raise errors.pool_timeout()
        turn: Deferred[Any] = self.turns.acquire()
        if turn.called:
            return
        slot.release()
        try:
            await with_timeout(self.clock, self.acquire_timeout_seconds, turn, errors.pool_timeout)
        finally:
            slot.retake()

    def release(self, session: Session | None) -> None:
        self.turns.release()
        if session is not None:
            self.actor.release(session)


@define(eq=False)
class RowStream:
    """Writes the body of one reply, once: it is called with a sink. If it is not to be written, call ``close``.

    ``count`` is how many rows the next FETCH asks for, ``fetched`` are those that were read last, and ``more`` says
    whether there may be more. ``header`` is the first line of CSV.
    """

    streams: Streams
    session: Session
    planned: Planned
    count: int
    fetched: list[Any] = field(factory=list, init=False)
    more: bool = field(default=False, init=False)
    header: bytes = field(default=b"", init=False)
    closed: bool = field(default=False, init=False)

    log = Logger()

    @property
    def total(self) -> int:
        """How many rows there are without the range, where the query counts them."""
        return self.fetched[0][1] if self.fetched else 0

    async def open(self) -> None:
        planned, statement = self.planned, self.planned.compiled.statement
        rows = statement.stream
        assert rows is not None
        idle = ceil(self.streams.pace.timeout_seconds) + IDLE_MARGIN_SECONDS
        text = (
            "SET LOCAL cursor_tuple_fraction = 1; "
            f"SET LOCAL idle_in_transaction_session_timeout = '{idle}s'; "
            f"{_locks_of(rows).for_driver}; "
            f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR {rows.for_driver}; {self._fetch()}"
        )
        values = rows.values(planned.operands, planned.body, planned.raw)
        self.fetched = await self._mapped(self.session.text(text, [*values, *values], "BEGIN READ ONLY"))
        self.more = len(self.fetched) == self.count
        if statement.header is not None:
            given = statement.header.values(planned.operands, planned.body, planned.raw)
            ((line,),) = await self._query(statement.header.for_driver, given)
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
            rows = await self._read(self._fetch())
            self.fetched, size = self.fetched + rows, size + _size(rows)
        ((headers, status),) = await self._query(RESPONSE_SETTINGS)
        body = b"" if self.more else self._chunk(first=True) + self._end()
        total = self.total if counted else None
        outcome = outcome_of_read((total, len(self.fetched), body, headers, status))
        return evolve(outcome, whole=not self.more)

    async def finish(self) -> None:
        """To be called when everything has been read: ends the transaction and releases the connection."""
        await self._query("COMMIT")
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.streams.release(self.session)

    async def _write(self, sink: Sink) -> None:
        allowed, first = self.streams.pace.timeout_seconds, True
        while self.fetched or first:
            chunk = self._chunk(first)
            sink.write(chunk)
            first = False
            if not self.more:
                break
            self._suit(len(chunk))
            allowed = await self._taken(sink, allowed, len(chunk))
            self.fetched = await self._read(self._fetch())
        sink.write(self._end())

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

    def _chunk(self, first: bool) -> bytes:
        """The piece of the body with the rows fetched last, which are texts already."""
        form, texts = self.planned.compiled.rendering.form, [row[0] for row in self.fetched]
        if form == "ndjson":
            return b"".join([text + b"\n" for text in texts])
        # Between JSON values the same separator as of PostgreSQL's json_agg.
        separator = b"\n" if form == "csv" else b", \n "
        if first and form == "csv":
            # The last line, which may be that of the names, has no line feed at its end.
            return separator.join([self.header, *texts])
        if first:
            begin = b'{"type" : "FeatureCollection", "features" : [' if form == "geojson" else b"["
            return begin + separator.join(texts)
        return separator + separator.join(texts) if texts else b""

    def _end(self) -> bytes:
        return {"geojson": b"]}", "json": b"]"}.get(self.planned.compiled.rendering.form, b"")

    def _suit(self, size: int) -> None:
        """Set the number of rows for the next FETCH by the ``size`` in bytes of those fetched last, so that memory is
        bounded however wide the rows are."""
        self.count = max(1, min(MAX_ROWS, len(self.fetched) * CHUNK_BYTES // max(size, 1)))

    def _fetch(self) -> str:
        return f"FETCH FORWARD {self.count} FROM {_CURSOR}"

    async def _read(self, sql: str) -> list[Any]:
        rows = await self._query(sql)
        self.more = len(rows) == self.count
        return rows

    async def _query(self, sql: str, values: list[Any] | None = None) -> list[Any]:
        return await self._mapped(self.session.query(sql, values))

    async def _mapped(self, result: Awaitable[T]) -> T:
        try:
            return await result
        except (psycopg2.Error, DatabaseGone) as error:
            raise from_postgres(error, self.session.preamble.authenticated) from error


def _locks_of(rows: Sql) -> Sql:
    """The statement that locks all that ``rows`` reads, including partitions: PostgreSQL locks them to plan it, and
    it reads nothing.

    DECLARE takes its snapshot before it waits for a lock. A table that was truncated and filled again in the
    meantime, or rewritten for a column's new type, would look empty to it (PostgreSQL's manual, "Caveats" of
    concurrency control). If the statement before it waits for the lock, the snapshot is taken afterwards.
    """
    return "SELECT * FROM (" + rows + ") AS pgrst_planned LIMIT 0"  # noqa: S608  # SQL of ours


def _size(rows: list[Any]) -> int:
    """About how many bytes of the body ``rows`` make."""
    return sum([len(row[0]) for row in rows]) + len(rows)


def _reply(head: Reply, stream: RowStream) -> Reply | StreamReply:
    if _has_body(head):
        return StreamReply(head.status, head.headers, None, stream)
    stream.close()
    return head


def _has_body(head: Reply) -> bool:
    """Whether the edge will write the body. If it does not, nobody closes the stream, which keeps its connection.

    The edge rejects heads that it cannot write. SQL's headers have been checked by now, but the schema's name in
    Content-Profile comes from the configuration and may be anything.
    """
    return head.status not in _BODILESS and fault_of(head.status, head.headers) is None


def _has_total(planned: Planned, outcome: Outcome) -> bool:
    """Whether the total is known where it was asked for. It comes with each row, so there has to be a row, unless
    there are none at all."""
    return outcome.rows > 0 or planned.request.range.offset == 0 or not _counts(planned)


def _counts(planned: Planned) -> bool:
    return planned.request.head.preferences.get("count") == "exact"
