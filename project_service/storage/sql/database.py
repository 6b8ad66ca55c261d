"""What these rows need of the database."""

from __future__ import annotations

from typing import Any, Protocol

Row = tuple[Any, ...]


class Database(Protocol):
    async def query(self, sql: str, params: Any = None) -> list[Row]:
        """One message in a transaction of its own."""
