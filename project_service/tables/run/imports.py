"""Inserts of many rows: a body of CSV or NDJSON that is larger than others may be is written while it arrives.

The rows go to PostgreSQL in batches, each by the statement that an ordinary request with these rows would run, all of
them in one transaction. So memory is bounded, and either every row is written or none.

``Upload`` is the body, ``Rows`` what is read of it, ``Import`` the transaction. An import holds a connection to the
database until its client has sent everything; it takes turns with the replies that are streamed (``stream``), and its
client may be as slow as theirs.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any

import psycopg2
from attrs import define, evolve, field

from project_service.database.acting import Preamble, Session
from project_service.database.connection import DatabaseGone
from project_service.errors import payload_too_large, request_timeout
from project_service.http.admission import Slot
from project_service.http.request import Request
from project_service.lifecycle import InThread, start, with_timeout
from project_service.tables import errors
from project_service.tables.errors import TableError, from_postgres
from project_service.tables.planner import Planned, rolls_back
from project_service.tables.reply.outcome import Outcome, outcome_of_write
from project_service.tables.request import headers
from project_service.tables.request.body import INLINE_BYTES, PIECE_BYTES, Payload
from project_service.tables.request.lines import CsvLines, JsonLines, Lines, Row
from project_service.tables.request.request import Head
from project_service.tables.request.syntax import Query
from project_service.tables.run.stream import IDLE_MARGIN_SECONDS, Streams

# A batch has so many rows, or fewer that together have so many bytes of JSON.
BATCH_ROWS = 10_000
BATCH_BYTES = 512 * 1024
# So much is read of a body before the rows in it are counted.
_SLICE_BYTES = 64 * 1024

_READERS: dict[str, type[CsvLines | JsonLines]] = {headers.CSV: CsvLines, headers.NDJSON: JsonLines}
_SETTING = "the database's max_import_bytes"
_SAVEPOINT = "SAVEPOINT pgrst_rows"
# Classes of SQLSTATE that no row is to blame for: those of the connection, the transaction, locks and resources,
# operators and faults of the system; and 42, the statement's own.
_OF_NO_ROW = ("08", "25", "40", "42", "53", "55", "57", "58", "XX")
_MISSING_RIGHT = "42501"


@define(eq=False)
class Upload:
    """The body of a request that inserts rows, of at most ``max_bytes``."""

    request: Request
    max_bytes: int
    _first: list[bytes] = field(factory=list, init=False)
    _size: int = field(default=0, init=False)
    _allowed: float | None = field(default=None, init=False)

    @classmethod
    def of(cls, request: Request, segments: Sequence[str], max_bytes: int) -> Upload | None:
        """The rows in the body of ``request``, which are written as they arrive. None if the body is read in one
        piece, however large it is."""
        if request.method != "POST" or len(segments) != 1 or max_bytes <= request.max_json_bytes:
            return None
        media = headers.parse_media(request.headers.text(b"content-type") or "").name
        return cls(request, max_bytes) if media in _READERS else None

    async def whole(self) -> bytes | None:
        """The body, if it turns out to be small enough for one piece; None if its ``chunks`` are to be read.

        Raises ``payload_too_large``, and as ``Request.read``.
        """
        body, limit = self.request.body, self.request.max_json_bytes
        if body.length is not None:
            if body.length > self.max_bytes:
                raise payload_too_large(self.max_bytes, _SETTING)
            return None
        while self._size <= limit:
            chunk = await body.next_chunk()
            if not chunk:
                await self.request.admit_again()
                return b"".join(self._first)
            self._first.append(chunk)
            self._size += len(chunk)
        return None

    async def chunk(self, streams: Streams) -> bytes:
        """The next bytes; none at the end. Raises ``payload_too_large``, ``request_timeout`` for a client that is
        slower than ``streams`` allow, and ``ClientGone``."""
        if self._first:
            data, self._first = b"".join(self._first), []
            return data
        clock, pace = streams.clock, streams.pace
        allowed = pace.timeout_seconds if self._allowed is None else self._allowed
        since = clock.seconds()
        waiting = start(self.request.body.next_chunk())
        data = await with_timeout(clock, max(0.0, allowed), waiting, request_timeout)
        self._allowed = pace.left(allowed, clock.seconds() - since, len(data))
        self._size += len(data)
        if self._size > self.max_bytes:
            raise payload_too_large(self.max_bytes, _SETTING)
        return data


@define(eq=False)
class Batch:
    """Rows to be written by one statement; false if there is none.

    They are one text, and not an object each: thousands take the reactor milliseconds to free.
    """

    # The lines that the rows begin on, their JSON, with a comma behind each, and where in it each of them ends.
    lines: array[int] = field(factory=partial(array, "Q"))
    _objects: bytearray = field(factory=bytearray)
    _ends: array[int] = field(factory=partial(array, "Q"))

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= BATCH_ROWS or len(self._objects) >= BATCH_BYTES

    def add(self, row: Row) -> None:
        line, text = row
        self.lines.append(line)
        self._objects += text
        self._objects += b","
        self._ends.append(len(self._objects))

    def json(self) -> str:
        """The array of the rows."""
        return f"[{self._objects[:-1].decode()}]"

    def halves(self) -> tuple[Batch, Batch]:
        """Two batches of this one's rows, of which there are at least two."""
        half = len(self) // 2
        cut = self._ends[half - 1]
        ends = array("Q", [end - cut for end in self._ends[half:]])
        return (
            Batch(self.lines[:half], self._objects[:cut], self._ends[:half]),
            Batch(self.lines[half:], self._objects[cut:], ends),
        )


@define(eq=False)
class Rows:
    """The rows of an ``upload``, as they are read."""

    upload: Upload
    media: str
    _lines: Lines
    _streams: Streams
    _in_thread: InThread
    # What has been read and not been handed out.
    _full: deque[Batch] = field(factory=deque, init=False)
    _filling: Batch = field(factory=Batch, init=False)
    # What has come and not been read.
    _unread: bytes = field(default=b"", init=False)
    _ended: bool = field(default=False, init=False)

    @classmethod
    def of(cls, head: Head, query: Query, upload: Upload, streams: Streams, in_thread: InThread) -> Rows:
        """How the rows of ``upload`` are read, in batches. Raises 413 ``payload_too_large`` where the request wants
        rows back."""
        limit = upload.request.max_json_bytes
        if head.preferences.get("return") == "representation":
            raise errors.payload_too_large_to_return(limit)
        media = headers.parse_media(head.content_type or "").name
        return cls(upload, media, _READERS[media](query.columns, limit), streams, in_thread)

    @property
    def payload(self) -> Payload:
        """What the statement is planned for, once the first batch has been read."""
        keys = self._lines.keys
        return Payload("json", self.media, keys=keys or (), is_array=True, is_empty=keys is None)

    async def batch(self) -> Batch:
        """The next rows; none at the end. Raises as ``Lines.read`` and ``Upload.chunk``."""
        while not self._ended and not self._full:
            if not self._unread:
                self._unread = await self.upload.chunk(self._streams)
                self._ended = not self._unread
            data, self._unread = self._unread[:_SLICE_BYTES], self._unread[_SLICE_BYTES:]
            read = partial(self._read, data)
            if len(data) + self._lines.kept_bytes > INLINE_BYTES:
                await self._in_thread(read)
            else:
                read()
        if self._full:
            return self._full.popleft()
        last, self._filling = self._filling, Batch()
        return last

    def _read(self, data: bytes) -> None:
        """Put the rows that are complete with ``data`` into batches. It is read in pieces: while one is read, all
        threads wait for it."""
        for begin in range(0, len(data) or 1, PIECE_BYTES):
            for row in self._lines.read(data[begin : begin + PIECE_BYTES], self._ended):
                self._filling.add(row)
                if self._filling.is_full:
                    self._full.append(self._filling)
                    self._filling = Batch()


@define(eq=False)
class Import:
    """The transaction in which the rows are written. Whoever opened it has to ``close`` it.

    ``outcome`` is that of all rows so far.
    """

    streams: Streams
    session: Session
    planned: Planned
    outcome: Outcome = field(factory=Outcome, init=False)

    @classmethod
    async def open(
        cls, streams: Streams, planned: Planned, preamble: Preamble, resource: str, slot: Slot
    ) -> Import:
        """Begin. Raises as ``Streams.lend``, and what the pre-request function raises."""
        importing = cls(streams, await streams.lend(slot, preamble, resource), planned)
        try:
            await importing._begin()
        except BaseException:
            await importing.close()
            raise
        return importing

    async def _begin(self) -> None:
        idle = ceil(self.streams.pace.timeout_seconds) + IDLE_MARGIN_SECONDS
        text = f"SET LOCAL idle_in_transaction_session_timeout = '{idle}s'; {_SAVEPOINT}"
        try:
            await self.session.text(text, begins="BEGIN")
        except (psycopg2.Error, DatabaseGone) as error:
            raise self._mapped(error) from error

    def _mapped(self, error: psycopg2.Error | DatabaseGone) -> TableError:
        return from_postgres(error, self.session.preamble.authenticated)

    async def write(self, batch: Batch) -> None:
        """Write a batch. Where PostgreSQL refuses a row, its error names the row's line.

        To find that row, halves of the batch are written one after the other, and again halves of the one that is
        refused. A batch that passes in halves has been written: one in which ON CONFLICT meets a row twice, say.
        """
        try:
            await self._insert(batch)
        except (psycopg2.Error, DatabaseGone) as error:
            mapped = self._mapped(error)
            if not _is_of_a_row(error):
                raise mapped from error
            if len(batch) < 2:
                raise (errors.at_line(mapped, batch.lines[0]) if batch else mapped) from error
        else:
            return
        await self.session.execute(f"ROLLBACK TO {_SAVEPOINT}")
        for half in batch.halves():
            await self.write(half)

    async def _insert(self, batch: Batch) -> None:
        sql = self.planned.compiled.statement.sql
        values = sql.values(self.planned.operands, batch.json())
        text = f"RELEASE {_SAVEPOINT}; {_SAVEPOINT}; {sql.for_driver}"
        outcome = outcome_of_write((await self.session.query(text, values))[0])
        written = self.outcome.rows + outcome.rows
        # What SQL has set for the response, and how many rows were updated, holds for the whole transaction.
        location = outcome.location if written == 1 else None
        self.outcome = evolve(outcome, rows=written, location=location)

    async def finish(self) -> None:
        """End the transaction: commit it, unless the request or the database wants a trial only."""
        trial = rolls_back(self.streams.config, self.planned.request)
        try:
            await self.session.end(commits=not trial)
        except (psycopg2.Error, DatabaseGone) as error:
            raise self._mapped(error) from error

    async def close(self) -> None:
        """Undo what has not been committed, and give the connection back."""
        try:
            await self.session.rollback()
        except (psycopg2.Error, DatabaseGone):
            self.session.discard()
        finally:
            self.streams.release(self.session)


def _is_of_a_row(error: Any) -> bool:
    """Whether one of several rows may be the reason for an error, and not all of them or none."""
    code = getattr(error, "pgcode", None)
    if code is None:
        return False
    if code == _MISSING_RIGHT:
        # A policy, or a trigger, refuses rows; a missing GRANT refuses the statement.
        return bool(error.diag.source_function != "aclcheck_error")
    return not code.startswith(_OF_NO_ROW)
