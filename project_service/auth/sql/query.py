"""Queries with descriptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from project_service.database.listener import Listener
from project_service.database.pool import Pool, Transaction
from project_service.database.session import Row


@frozen
class Query:
    """``description`` says what the query is for. ``text`` may be several statements; the rows are the last one's."""

    description: str
    text: str

    async def run(self, where: Pool | Transaction | Listener, **params: Any) -> list[Row]:
        return await where.query(self.text, params)

    async def one(self, where: Pool | Transaction, **params: Any) -> Row | None:
        """The first row, or None."""
        rows = await where.query(self.text, params)
        return rows[0] if rows else None


@frozen
class Often:
    """A query that only reads, is quick, and is run often: it is prepared and shares its connection. ``text`` is one
    statement with ``%s`` for its parameters."""

    description: str
    text: str

    async def one(self, where: Pool, *params: Any) -> Row | None:
        """The first row, or None."""
        rows = await where.read(self.text, params)
        return rows[0] if rows else None


def jsonb(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
