"""SQL text with its parameters, kept apart until psycopg2 or PREPARE joins them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from attrs import field, frozen

from project_service.tables import errors
from project_service.tables.syntax import Operand

# No application's statement is as long; PostgreSQL would take minutes to plan one.
MOST_CHARACTERS = 1024 * 1024

# PostgreSQL allows no NUL in SQL, so it can stand for a parameter.
PLACE = "\0"
_SPECIAL = re.compile(r"[\0%]")
_BODY_SLOT, _TEXT_SLOT, _BYTES_SLOT, _PROBE_SLOT = -2, -3, -4, -5

Parameter = Operand | str | bytes | None


@frozen(slots=False)
class Sql:
    """Immutable; ``+`` and ``joined`` put fragments together. Raises 54001 for a text that is too long.

    Not only for the whole: a few embeddings within each other may ask for more than there is memory, each of their
    levels for several times the one below.
    """

    text: str
    parameters: tuple[Parameter, ...] = field(default=(), repr=False)

    def __attrs_post_init__(self) -> None:
        if len(self.text) > MOST_CHARACTERS:
            raise errors.statement_too_large(MOST_CHARACTERS)

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
        return _SPECIAL.sub(lambda found: "%s" if found.group() == PLACE else "%%", self.text)

    @cached_property
    def for_prepare(self) -> str:
        """With PostgreSQL's own placeholders, ``$1`` and so on."""
        pieces = self.text.split(PLACE)
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
                found.append(str(probe) if value.slot == _PROBE_SLOT else _of_body(value, body, raw))
        return found


def _of_body(operand: Operand, body: str, raw: bytes) -> str | bytes:
    if operand.slot == _BODY_SLOT:
        return body
    if operand.slot == _TEXT_SLOT:
        return raw.decode("utf-8", "replace")
    return raw if operand.slot == _BYTES_SLOT else operand.text


NOTHING = Sql("")


def parameter(value: Parameter) -> Sql:
    return Sql(PLACE, (value,))


# The request's body: as JSON, as text untouched and as bytes untouched.
BODY = parameter(Operand("", _BODY_SLOT))
TEXT = parameter(Operand("", _TEXT_SLOT))
BYTES = parameter(Operand("", _BYTES_SLOT))
# How many rows are read to see whether they fit into one reply.
PROBE = parameter(Operand("", _PROBE_SLOT))


def joined(fragments: Iterable[Sql | str], separator: str = ", ") -> Sql:
    found = [Sql(piece) if isinstance(piece, str) else piece for piece in fragments]
    return Sql(
        separator.join(piece.text for piece in found),
        tuple(value for piece in found for value in piece.parameters),
    )
