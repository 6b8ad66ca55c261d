"""Queries that are run again and again, prepared so that PostgreSQL plans them once per connection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg2

from project_service.database.pipeline import Step, as_texts
from project_service.database.session import Row, Session
from project_service.database.statements import may_be_stale

_PLACE = re.compile(r"%s|%%")


async def run_prepared(session: Session, sql: str, params: Sequence[Any]) -> list[Row]:
    """As ``session.query``, with ``sql`` prepared on this connection.

    ``sql`` is a single statement, a constant of the program, with ``%s`` for parameters whose types PostgreSQL can
    infer. Must not be used inside a transaction, because the statement may be run again after a failure.
    """
    try:
        return await session.run_typed(Step(numbered(sql), as_texts(params)))
    except psycopg2.Error as fault:
        if not may_be_stale(fault.pgcode):
            raise
    return await session.query(sql, params)


@lru_cache(maxsize=256)
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
