"""A statement to run, with all that belongs to running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from attrs import frozen

from project_service.tables.execution.preamble import Preamble
from project_service.tables.sql.fragment import NOTHING, Sql

Row = tuple[Any, ...]
Ending = Literal["implicit", "commit", "rollback"]


@frozen
class Work:
    """A statement to run, with its preamble and its values.

    Where the result may turn out too large, ``probe`` rows and one more are read. With the ``ending`` implicit the
    end of the message commits. With the others there is time in between to refuse what was done. ``kept`` allows the
    statement to be prepared, for that ``version`` of the schema cache; then ``locks``, if there are any, run before
    it (see ``sql.locks``).
    """

    preamble: Preamble
    statement: Sql
    operands: Sequence[str] = ()
    body: str = ""
    raw: bytes = b""
    probe: int = 0
    ending: Ending = "implicit"
    kept: bool = False
    version: int = 0
    locks: Sql = NOTHING

    @property
    def parts(self) -> tuple[Sql, ...]:
        return (self.locks, self.statement) if self.kept and self.locks else (self.statement,)

    @property
    def values(self) -> list[str | bytes | None]:
        found = self._values_of(self.statement)
        return self._values_of(self.locks) + found if self.kept and self.locks.parameters else found

    def _values_of(self, part: Sql) -> list[str | bytes | None]:
        return part.values(self.operands, self.body, self.raw, self.probe + 1)
