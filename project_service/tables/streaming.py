"""Replies too large to be made in one piece: rows from a server-side cursor, as fast as the client reads them.

One transaction, so one snapshot. A client that stops reading is dropped by the edge after the idle timeout; the
connection, left in the middle of its transaction, is thrown away and the pool's place is free again. An error in the
middle breaks the connection to the client off: a body that ends politely is whole.
"""

from __future__ import annotations

from typing import Any

import orjson
import psycopg2
from attrs import frozen
from twisted.internet.defer import DeferredSemaphore

from project_service.database.pool import Pool
from project_service.database.session import Session
from project_service.http.outbound import Sink
from project_service.tables.plan.media import Rendering
from project_service.tables.respond.outcome import as_bytes
from project_service.tables.run import Preamble, failure
from project_service.tables.sql.fragment import Sql

FIRST_ROWS = 500
MOST_ROWS = 5000
# What one FETCH is meant to bring.
CHUNK_BYTES = 256 * 1024
_CURSOR = "pgrst_rows"


@frozen
class RowStream:
    """Writes the body of one reply."""

    pool: Pool
    preamble: Preamble
    rows: Sql
    values: list[Any]
    rendering: Rendering
    authenticated: bool
    gate: DeferredSemaphore
    first_rows: int = FIRST_ROWS

    async def __call__(self, sink: Sink) -> None:
        # Slow readers hold their connections for long: some are always left for everybody else.
        await self.gate.acquire()
        try:
            async with self.pool.acquire() as session:
                await self._written(session, sink)
        finally:
            self.gate.release()

    async def _written(self, session: Session, sink: Sink) -> None:
        try:
            await self._write(session, sink)
            await session.query("COMMIT")
        except psycopg2.Error as fault:
            raise failure(fault, self.authenticated) from fault

    async def _write(self, session: Session, sink: Sink) -> None:
        fetched = await self._open(session)
        count, first = self.first_rows, True
        while fetched:
            chunk = _joined(self.rendering, fetched, first)
            sink.write(chunk)
            first = False
            if len(fetched) < count:
                break
            # A wide row makes the next fetch shorter, so that memory stays bounded by bytes.
            count = max(1, min(MOST_ROWS, count * CHUNK_BYTES // max(len(chunk), 1)))
            await sink.drained()
            fetched = await session.query(f"FETCH FORWARD {count} FROM {_CURSOR}")
        sink.write(_end(self.rendering, first))

    async def _open(self, session: Session) -> list[Any]:
        text = (
            f"BEGIN READ ONLY; SET LOCAL cursor_tuple_fraction = 1; {self.preamble.text}; "
            f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR {self.rows.for_driver}; "
            f"FETCH FORWARD {self.first_rows} FROM {_CURSOR}"
        )
        return await session.query(text, [*self.preamble.values, *self.values])


def _joined(rendering: Rendering, rows: list[Any], first: bool) -> bytes:
    if rendering.form == "csv":
        head = ",".join(orjson.loads(as_bytes(rows[0][1]))).encode() + b"\n" if first else b"\n"
        return head + b"\n".join([row[0] for row in rows])
    if rendering.form == "ndjson":
        return b"\n".join([row[0] for row in rows]) + b"\n"
    # As PostgreSQL's json_agg puts it.
    return (b"[" if first else b", \n ") + b", \n ".join([row[0] for row in rows])


def _end(rendering: Rendering, empty: bool) -> bytes:
    if rendering.form == "json":
        return b"[]" if empty else b"]"
    return b"\n" if rendering.form == "csv" and empty else b""
