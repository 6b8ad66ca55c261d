"""Queries with descriptions, and the protocols of what runs them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from attrs import frozen

T = TypeVar("T")
Row = tuple[Any, ...]


class Runs(Protocol):
    async def query(self, sql: str, params: Mapping[str, Any] | None = None) -> list[Row]: ...


class Prepares(Protocol):
    async def prepared(self, sql: str, params: Sequence[Any]) -> list[Row]: ...


class Database(Runs, Prepares, Protocol):
    """What authentication needs of the database: ``database.pool.Pool``."""

    async def transaction(self, work: Callable[[Any], Awaitable[T]]) -> T: ...


@frozen
class Query:
    """``description`` says what the query is for. ``text`` may be several statements; the rows are the last one's."""

    description: str
    text: str

    async def run(self, where: Runs, **params: Any) -> list[Row]:
        return await where.query(self.text, params)

    async def one(self, where: Runs, **params: Any) -> Row | None:
        """The first row, or None."""
        rows = await where.query(self.text, params)
        return rows[0] if rows else None


@frozen
class Often:
    """A query that is run often and is therefore prepared. ``text`` is one statement with ``%s`` for its
    parameters."""

    description: str
    text: str

    async def one(self, where: Prepares, *params: Any) -> Row | None:
        """The first row, or None."""
        rows = await where.prepared(self.text, params)
        return rows[0] if rows else None


def jsonb(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
