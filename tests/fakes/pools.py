"""A pool that is only looked at."""

from __future__ import annotations

from attrs import define, field

from project_service.database.connection import Row
from project_service.database.slow import SlowStatements


@define(eq=False)
class StillPool:
    """``rows`` are what it answers; it fails with ``fault`` if there is one. ``asked`` is how often it was asked."""

    size: int = 1
    open: int = 0
    busy: int = 0
    waiting: int = 0
    rows: list[Row] = field(factory=list)
    fault: Exception | None = None
    asked: int = 0
    slow: SlowStatements = field(factory=lambda: SlowStatements("-", 0))

    async def query(self, sql: str) -> list[Row]:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return self.rows
