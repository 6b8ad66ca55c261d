"""Running a statement: settings, pre-request and query in one message where nothing has to be decided in between.

Several statements in one simple-protocol message are one implicit transaction, so the settings, which are local to a
transaction, leave nothing behind on the connection (PostgreSQL's manual, 55.2.2.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import psycopg2
from attrs import frozen

from project_service.database.session import DatabaseGone, Session
from project_service.tables import errors
from project_service.tables.errors import TableError
from project_service.tables.failures import from_sqlstate
from project_service.tables.sql.fragment import Sql

Row = tuple[Any, ...]


@frozen
class Work:
    """``preamble`` sets what is local to the transaction. ``ending`` implicit commits with the message itself;
    otherwise ``check`` may still refuse what was done before it is committed or rolled back."""

    preamble: Sql
    statement: Sql
    operands: tuple[str, ...] | None = None
    ending: Literal["implicit", "commit", "rollback"] = "implicit"
    authenticated: bool = True


async def run(session: Session, work: Work, check: Callable[[list[Row]], None]) -> list[Row]:
    """The rows of ``work.statement``. Raises ``TableError`` for what the database refuses."""
    try:
        if work.ending == "implicit":
            found = await _send(session, "", work)
            check(found)
            return found
        return await _explicit(session, work, check)
    except psycopg2.Error as fault:
        raise failure(fault, work.authenticated) from fault
    except DatabaseGone:
        raise errors.database_unreachable() from None


async def _explicit(session: Session, work: Work, check: Callable[[list[Row]], None]) -> list[Row]:
    try:
        found = await _send(session, "BEGIN; ", work)
        check(found)
        if work.ending == "rollback":
            # Deferred constraints speak up as they would have done at a commit.
            await session.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except BaseException:
        if session.in_transaction:
            await session.execute("ROLLBACK")
        raise
    await session.execute("COMMIT" if work.ending == "commit" else "ROLLBACK")
    return found


async def _send(session: Session, prefix: str, work: Work) -> list[Row]:
    text = prefix + work.preamble.for_driver + "; " + work.statement.for_driver
    return await session.query(text, [*work.preamble.values(), *work.statement.values(work.operands)])


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
