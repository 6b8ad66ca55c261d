"""A query with a name, and what runs it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from attrs import frozen

T = TypeVar("T")
Row = tuple[Any, ...]


class Runs(Protocol):
    async def query(self, sql: str, params: Mapping[str, Any] | None = None) -> list[Row]: ...


class Database(Runs, Protocol):
    """What authentication needs of ``database.pool.Pool``."""

    async def transaction(self, work: Callable[[Any], Awaitable[T]]) -> T: ...


@frozen
class Query:
    """``description`` says what it is for; ``text`` may be several statements, the last one's rows count."""

    description: str
    text: str

    async def run(self, where: Runs, **params: Any) -> list[Row]:
        return await where.query(self.text, params)

    async def one(self, where: Runs, **params: Any) -> Row | None:
        """The first row, or None."""
        rows = await where.query(self.text, params)
        return rows[0] if rows else None


def jsonb(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
