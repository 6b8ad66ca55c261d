"""SQL text with its parameters, kept apart until psycopg2 or PREPARE joins them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from attrs import field, frozen

from project_service.tables.syntax import BODY_SLOT, BYTES_SLOT, PROBE_SLOT, TEXT_SLOT, Operand

# PostgreSQL allows no NUL in SQL, so it can stand for a parameter.
_MARK = "\0"
_SPECIAL = re.compile(r"[\0%]")

Parameter = Operand | str | bytes | None


@frozen(slots=False)
class Sql:
    """Immutable; ``+`` and ``joined`` put fragments together."""

    text: str
    parameters: tuple[Parameter, ...] = field(default=(), repr=False)

    def __add__(self, other: Sql | str) -> Sql:
        if isinstance(other, str):
            return Sql(self.text + other, self.parameters)
        return Sql(self.text + other.text, self.parameters + other.parameters)

    def __radd__(self, other: str) -> Sql:
        return Sql(other + self.text, self.parameters)

    def __bool__(self) -> bool:
        return bool(self.text)

    @cached_property
    def for_driver(self) -> str:
        """With psycopg2's placeholders; a literal ``%`` is doubled."""
        return _SPECIAL.sub(lambda found: "%s" if found.group() == _MARK else "%%", self.text)

    @cached_property
    def for_prepare(self) -> str:
        """With PostgreSQL's own placeholders, ``$1`` and so on."""
        pieces = self.text.split(_MARK)
        return "".join(piece if number == 0 else f"${number}{piece}" for number, piece in enumerate(pieces))

    def values(
        self, operands: Sequence[str] = (), body: str = "", raw: bytes = b"", probe: int = 0
    ) -> list[str | bytes | None]:
        """The parameters' values, those with a slot taken from ``operands``, ``body``, ``raw`` and ``probe``."""
        found: list[str | bytes | None] = []
        for value in self.parameters:
            if not isinstance(value, Operand):
                found.append(value)
            elif value.slot >= 0:
                found.append(operands[value.slot])
            else:
                found.append(str(probe) if value.slot == PROBE_SLOT else _of_body(value, body, raw))
        return found


def _of_body(operand: Operand, body: str, raw: bytes) -> str | bytes:
    if operand.slot == BODY_SLOT:
        return body
    if operand.slot == TEXT_SLOT:
        return raw.decode("utf-8", "replace")
    return raw if operand.slot == BYTES_SLOT else operand.text


def parameter(value: Parameter) -> Sql:
    return Sql(_MARK, (value,))


def joined(fragments: Iterable[Sql | str], separator: str = ", ") -> Sql:
    found = [Sql(piece) if isinstance(piece, str) else piece for piece in fragments]
    return Sql(
        separator.join(piece.text for piece in found),
        tuple(value for piece in found for value in piece.parameters),
    )
