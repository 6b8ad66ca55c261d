"""Runs a statement: settings, pre-request function and query go in one message unless something has to be decided in
between.

Several statements in one simple-protocol message are one implicit transaction, so the settings, which are local to a
transaction, leave nothing behind on the connection (PostgreSQL's manual, "Multiple Statements in a Simple Query").
The first time a query is to be prepared on a connection, there is one more message between the settings and the
query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psycopg2
from attrs import evolve

from project_service.database.session import DatabaseGone, Session
from project_service.tables.execution import prepared
from project_service.tables.execution.work import Row, Work
from project_service.tables.failures import failure

T = TypeVar("T")


async def run(session: Session, work: Work, read: Callable[[list[Row]], T]) -> T:
    """Run the work and return what ``read`` makes of the statement's rows.

    Raises ``TableError`` for what PostgreSQL refuses or if it is away, and what ``read`` raises. Unless the work's
    ending is implicit, nothing is committed if ``read`` raises.
    """
    preamble = work.preamble
    session.extra_seconds = preamble.extra_seconds
    try:
        if preamble.plans_apart:
            await prepared.pass_to_role(session, preamble)
        try:
            return await _run(session, work, read)
        except psycopg2.Error as fault:
            # The error has undone everything, so it may be run again.
            if not work.kept or not prepared.refused(session.statements, work, fault.pgcode):
                raise
        return await _run(session, evolve(work, kept=False), read)
    except (psycopg2.Error, DatabaseGone) as fault:
        raise failure(fault, preamble.authenticated) from fault


async def _run(session: Session, work: Work, read: Callable[[list[Row]], T]) -> T:
    text = prepared.execution(session.statements, work) if work.kept else work.statement.for_driver
    if work.ending == "implicit" and text is not None:
        return read(await _send(session, "", work, text))
    try:
        if text is None:
            rows = await prepared.prepare_and_send(session, work)
        else:
            rows = await _send(session, "BEGIN; ", work, text)
        found = read(rows)
        if work.ending == "rollback":
            # A violated deferred constraint raises its error now, as it would at a commit.
            await session.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except BaseException:
        if session.in_transaction:
            await session.execute("ROLLBACK")
        raise
    await session.execute("ROLLBACK" if work.ending == "rollback" else "COMMIT")
    return found


async def _send(session: Session, prefix: str, work: Work, text: str) -> list[Row]:
    beginning = prepared.beginning(session.statements, work) if work.kept else work.preamble.sql.text
    return await session.query(f"{prefix}{beginning}; {text}", [*work.preamble.values, *work.values])
