"""Running a statement: settings, pre-request and query in one message where nothing has to be decided in between.

Several statements in one simple-protocol message are one implicit transaction, so the settings, which are local to a
transaction, leave nothing behind on the connection (PostgreSQL's manual, "Multiple Statements in a Simple Query").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import psycopg2
from attrs import evolve, frozen

from project_service.database.session import DatabaseGone, Session
from project_service.tables import errors
from project_service.tables.errors import TableError
from project_service.tables.failures import from_sqlstate
from project_service.tables.prepared_statements import PreparedStatements
from project_service.tables.sql.fragment import Sql

# No such operator or function, a wrong type, a result of another type than before.
_STALE = ("42883", "42804", "42846", "42725", "0A000")
# A function has said DEALLOCATE ALL, perhaps the very one that runs.
_GONE = "26000"

NUL = 'invalid byte sequence for encoding "UTF8": 0x00'

Row = tuple[Any, ...]
T = TypeVar("T")


@frozen
class Preamble:
    """What is set for the transaction, as psycopg2 takes it. It may take ``extra_seconds`` longer than the service
    allows, None for as long as it takes."""

    text: str
    values: Sequence[str]
    extra_seconds: float | None = 0.0


@frozen
class Work:
    """``probe`` rows and one more are read where the result may turn out too large. ``ending`` implicit commits with
    the message itself; otherwise what was done can still be refused before it is committed or rolled back. ``kept``
    allows the statement to be prepared, for that ``version`` of the schema cache.
    """

    preamble: Preamble
    statement: Sql
    operands: Sequence[str] = ()
    body: str = ""
    raw: bytes = b""
    probe: int = 0
    ending: Literal["implicit", "commit", "rollback"] = "implicit"
    authenticated: bool = True
    kept: bool = False
    version: int = 0


@frozen
class Runner:
    """Runs work on a session. ``prepared`` is None where statements are not to be prepared."""

    prepared: PreparedStatements | None

    async def run(self, session: Session, work: Work, read: Callable[[list[Row]], T]) -> T:
        """What ``read`` makes of the rows of ``work.statement``. Raises ``TableError`` for what is refused, and what
        ``read`` raises, in time for nothing to be committed where the work's ending is explicit."""
        session.extra_seconds = work.preamble.extra_seconds
        try:
            try:
                return await self._run(session, work, read)
            except psycopg2.Error as fault:
                again = self._again(session, work, fault.pgcode)
                if again is None:
                    raise
            return await self._run(session, again, read)
        except psycopg2.Error as fault:
            raise failure(fault, work.authenticated) from fault
        except ValueError as fault:
            # What psycopg2 itself refuses to send; what clients send is looked at before, so this is for the rest.
            if "NUL" not in str(fault):
                raise
            raise from_sqlstate("22021", NUL, None, None, work.authenticated) from fault
        except DatabaseGone:
            raise errors.database_unreachable() from None

    async def _run(self, session: Session, work: Work, read: Callable[[list[Row]], T]) -> T:
        if work.ending != "implicit":
            return await self._explicit(session, work, read)
        return read(await self._send(session, "", work))

    def _again(self, session: Session, work: Work, code: str | None) -> Work | None:
        """What to try after a failure, which has undone everything, that may be the prepared statement's alone."""
        if self.prepared is None or not work.kept:
            return None
        if code == _GONE:
            self.prepared.doubt(session)
        elif code in _STALE:
            # Its parameters' types were settled when it was prepared; the columns' may have changed since.
            self.prepared.forget(session, work.statement)
        else:
            return None
        return evolve(work, kept=False)

    async def _explicit(self, session: Session, work: Work, read: Callable[[list[Row]], T]) -> T:
        try:
            found = read(await self._send(session, "BEGIN; ", work))
            if work.ending == "rollback":
                # Deferred constraints speak up as they would have done at a commit.
                await session.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except BaseException:
            if session.in_transaction:
                await session.execute("ROLLBACK")
            raise
        await session.execute("COMMIT" if work.ending == "commit" else "ROLLBACK")
        return found

    async def _send(self, session: Session, prefix: str, work: Work) -> list[Row]:
        values = work.statement.values(work.operands, work.body, work.raw, work.probe + 1)
        head = f"{prefix}{work.preamble.text}; "
        if self.prepared is None or not work.kept:
            return await session.query(head + work.statement.for_driver, [*work.preamble.values, *values])
        text = await self.prepared.text(session, work.statement, len(values), work.version)
        rows = await session.query(head + text, [*work.preamble.values, *values])
        self.prepared.succeeded(session)
        return rows


def failure(fault: psycopg2.Error, authenticated: bool) -> TableError:
    if fault.pgcode is None:
        return errors.database_unreachable()
    diagnosis = fault.diag
    return from_sqlstate(
        fault.pgcode,
        diagnosis.message_primary or "",
        diagnosis.message_detail,
        diagnosis.message_hint,
        authenticated,
    )
