"""What the modules beside this one need of the database pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Row = tuple[Any, ...]


class Database(Protocol):
    async def query(self, sql: str, params: Any = None) -> list[Row]:
        """One message in a transaction of its own."""

    async def prepared(self, sql: str, params: Sequence[Any]) -> list[Row]:
        """The same for one statement that is asked often, with its parameters in order."""
