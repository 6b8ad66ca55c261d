"""A cursor over one query parameter that remembers how far reading got and what could have stood there."""

from __future__ import annotations

import re
from typing import NoReturn

from attrs import define, field

from project_service.tables import errors
from project_service.tables.errors import TableError

# Deeper than any real request, shallow enough for the interpreter's stack and PostgreSQL's.
MAX_DEPTH = 50


@define
class Scanner:
    """``what`` names the parameter in messages; ``shown`` is its text as the client sent it."""

    text: str
    what: str
    shown: str
    pos: int = 0
    depth: int = 0
    _furthest: int = -1
    _expected: list[str] = field(factory=list)

    def expecting(self, label: str) -> None:
        """Note that ``label`` could have stood here; forgotten once reading has got further."""
        if self.pos > self._furthest:
            self._furthest, self._expected = self.pos, []
        if self.pos == self._furthest and label not in self._expected:
            self._expected.append(label)

    def fail(self, label: str | None = None) -> NoReturn:
        """Raise PGRST100 at the furthest place that was tried."""
        if label is not None:
            self.expecting(label)
        at = max(self.pos, self._furthest)
        found = f'"{self.text[at]}"' if at < len(self.text) else "end of input"
        details = f"unexpected {found}"
        labels = self._expected if at == self._furthest else []
        if labels:
            *most, last = labels
            details += " expecting " + (", ".join(most) + " or " + last if most else last)
        raise self.error(at, details)

    def error(self, at: int, details: str) -> TableError:
        return errors.unreadable(f"{self.what} ({self.shown})", at + 1, details)

    @property
    def at_end(self) -> bool:
        return self.pos >= len(self.text)

    def peek(self, token: str) -> bool:
        return self.text.startswith(token, self.pos)

    def take(self, token: str, label: str | None = None) -> bool:
        """Step over ``token`` if it stands here; otherwise note that it could have."""
        if self.text.startswith(token, self.pos):
            self.pos += len(token)
            return True
        self.expecting(label if label is not None else f'"{token}"')
        return False

    def need(self, token: str, label: str | None = None) -> None:
        if not self.take(token, label):
            self.fail()

    def match(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.pos)
        if found is None:
            return None
        self.pos = found.end()
        return found.group()

    def spaces(self) -> None:
        while self.pos < len(self.text) and self.text[self.pos].isspace():
            self.pos += 1

    def end(self) -> None:
        if not self.at_end:
            self.fail()

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(self.pos, f"nested deeper than {MAX_DEPTH} levels")
