"""Queries that are asked again and again, planned by PostgreSQL once per connection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import psycopg2

from project_service.database.session import Row, Session

# The statement is not there any more, or its columns have changed since.
_STALE = ("26000", "0A000")
_PLACE = re.compile(r"%s|%%")


async def run_prepared(session: Session, sql: str, params: Sequence[Any]) -> list[Row]:
    """As ``session.query``. ``sql`` is one statement, a constant of the program with ``%s`` for its parameters, whose
    types PostgreSQL can tell from their places."""
    name = session.statements.get(sql)
    if name is None:
        session.statement_count += 1
        name = f"own_{session.statement_count}"
        await session.query(f"PREPARE {name} AS {numbered(sql)}")
        session.statements[sql] = name
    places = ", ".join(["%s"] * len(params))
    try:
        return await session.query(f"EXECUTE {name}({places})", params)
    except psycopg2.Error as fault:
        if fault.pgcode not in _STALE:
            raise
    del session.statements[sql]
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
