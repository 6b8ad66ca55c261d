"""SQL text and its parameters, which stay apart until psycopg2 or PREPARE puts them together; names in SQL text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from attrs import field, frozen

from project_service.database import quoting
from project_service.tables import errors
from project_service.tables.plan.nodes import NAME_BYTES
from project_service.tables.request.syntax import Operand
from project_service.tables.values import Key

# The statement's own rows: those that were written or that a function returned, and those that a body is made of.
SOURCE = "pgrst_source"
ROWS = "_t"
# A whole row. The bare name would mean a column, if there is one of that name. Functions that take such a row are
# called with their schema, because an application's computed column, such as ``count(authors)``, would match it too.
ROW = f"{ROWS}.*"
ROW_COUNT = f"pg_catalog.count({ROW})"
MAX_BIGINT = 2**63 - 1

# No application needs a statement that long, and PostgreSQL would take minutes to plan it.
MAX_CHARACTERS = 1024 * 1024
# Stands for a parameter in ``Sql.text``. PostgreSQL allows no NUL in SQL, so it cannot mean anything else.
PLACEHOLDER = "\0"
_SPECIAL = re.compile(r"[\0%]")
_BODY_SLOT, _TEXT_SLOT, _BYTES_SLOT, _PROBE_SLOT = -2, -3, -4, -5

# Types whose names are key words of SQL; any other name is quoted as an identifier.
_KEYWORD_TYPES = {
    *("int", "integer", "smallint", "bigint", "real", "float", "double precision"),
    *("decimal", "dec", "numeric", "boolean", "bit", "bit varying"),
    *("character", "char", "varchar", "character varying", "nchar"),
    *("time", "time with time zone", "time without time zone", "interval"),
    *("timestamp", "timestamp with time zone", "timestamp without time zone"),
}


def ident(name: str) -> str:
    """A quoted identifier. Raises 42622 for a name that PostgreSQL would cut."""
    reject_long_name(name)
    return quoting.ident(name)


def reject_long_name(name: str, of: str | None = None) -> None:
    """Raise 42622 for a name that PostgreSQL would cut. Two names might become one, or one that of something else."""
    if len(name.encode("utf-8")) > NAME_BYTES:
        raise errors.name_too_long(name, NAME_BYTES, of)


def qualified(key: Key) -> str:
    return f"{ident(key[0])}.{ident(key[1])}"


def cast_type(name: str) -> str:
    """The type of a cast, as the client named it: key words as they are, everything else as a quoted identifier."""
    folded = " ".join(name.lower().split())
    array = folded.endswith("[]")
    base = folded.removesuffix("[]").strip()
    reject_long_name(base, "type")
    type_ = base if base in _KEYWORD_TYPES else ident(base)
    return type_ + ("[]" if array else "")


Parameter = Operand | str | bytes | None


@frozen(slots=False)
class Sql:
    """A piece of SQL with its parameters. Immutable; ``+`` and ``joined`` put pieces together.

    Raises 54001 for a text that is too long. This holds for each piece and not only for the whole statement: with
    embeddings inside each other every level may be several times as long as the one below, and memory would run out
    before the statement is complete.
    """

    text: str
    parameters: tuple[Parameter, ...] = field(default=(), repr=False)

    def __attrs_post_init__(self) -> None:
        if len(self.text) > MAX_CHARACTERS:
            raise errors.statement_too_large(MAX_CHARACTERS)

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
        """The text with psycopg2's placeholders, in which a literal ``%`` is doubled."""
        return _SPECIAL.sub(lambda match: "%s" if match.group() == PLACEHOLDER else "%%", self.text)

    @cached_property
    def for_prepare(self) -> str:
        """The text with PostgreSQL's own placeholders, ``$1`` and so on."""
        pieces = self.text.split(PLACEHOLDER)
        return "".join(piece if number == 0 else f"${number}{piece}" for number, piece in enumerate(pieces))

    def prepare_texts(self) -> None:
        """Make the texts, which is worth a thread for a long statement."""
        _ = self.for_driver, self.for_prepare

    def values(
        self, operands: Sequence[str] = (), body: str = "", raw: bytes = b"", probe: int = 0
    ) -> list[str | bytes | None]:
        """The parameters' values in their order. An operand with a slot is replaced by what the slot stands for: one
        of ``operands``, the ``body``, the body untouched (``raw``), or ``probe``."""
        values: list[str | bytes | None] = []
        for value in self.parameters:
            if not isinstance(value, Operand):
                values.append(value)
            elif value.slot >= 0:
                values.append(operands[value.slot])
            else:
                values.append(str(probe) if value.slot == _PROBE_SLOT else _of_body(value, body, raw))
        return values


def _of_body(operand: Operand, body: str, raw: bytes) -> str | bytes:
    if operand.slot == _BODY_SLOT:
        return body
    if operand.slot == _TEXT_SLOT:
        return raw.decode("utf-8")
    return raw if operand.slot == _BYTES_SLOT else operand.text


NOTHING = Sql("")


def parameter(value: Parameter) -> Sql:
    return Sql(PLACEHOLDER, (value,))


# The request's body: as JSON; untouched, as text; untouched, as bytes.
BODY = parameter(Operand("", _BODY_SLOT))
TEXT = parameter(Operand("", _TEXT_SLOT))
BYTES = parameter(Operand("", _BYTES_SLOT))
# How many rows are read to see whether the result fits into a reply in one piece.
PROBE = parameter(Operand("", _PROBE_SLOT))


def joined(fragments: Iterable[Sql | str], separator: str = ", ") -> Sql:
    pieces = [Sql(piece) if isinstance(piece, str) else piece for piece in fragments]
    return Sql(
        separator.join(piece.text for piece in pieces),
        tuple(value for piece in pieces for value in piece.parameters),
    )
