"""Queries that are run again and again, prepared so that PostgreSQL plans them once per connection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import psycopg2

from project_service.database.session import Row, Session

_PLACE = re.compile(r"%s|%%")


async def run_prepared(session: Session, sql: str, params: Sequence[Any]) -> list[Row]:
    """As ``session.query``, with ``sql`` prepared on this connection first.

    ``sql`` is a single statement, a constant of the program, with ``%s`` for parameters whose types PostgreSQL can
    infer. Must not be used inside a transaction, because the statement may be run again after a failure.
    """
    statements = session.statements
    try:
        execution = statements.execution(sql)
        if execution is None:
            execution = await statements.prepare(session.query, sql, numbered(sql), len(params))
        return await session.query(execution, params)
    except psycopg2.Error as fault:
        if not statements.refused(sql, fault.pgcode):
            raise
    return await session.query(sql, params)


def numbered(sql: str) -> str:
    """psycopg2's placeholders as PostgreSQL's own, ``$1`` and so on."""
    count = 0

    def place(found: re.Match[str]) -> str:
        nonlocal count
        if found[0] == "%%":
            return "%"
        count += 1
        return f"${count}"

    return _PLACE.sub(place, sql)
