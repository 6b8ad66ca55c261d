"""The ``order`` parameter: ``a.desc.nullslast,b->>c,relation(d).asc``. PostgREST's reference: "Ordering"."""

from __future__ import annotations

from typing import Literal

from project_service.tables.errors import TableError
from project_service.tables.parse import names
from project_service.tables.parse.scanner import END, Scanner
from project_service.tables.syntax import Field, OrderTerm

_DELIMITER = "delimiter (.)"


def parse_order(text: str) -> tuple[OrderTerm, ...]:
    scanner = Scanner(text, "order", text)
    found = [_term(scanner)]
    while scanner.take(","):
        found.append(_term(scanner))
    scanner.end()
    return tuple(found)


def _term(scanner: Scanner) -> OrderTerm:
    scanner.spaces()
    field = names.field(scanner)
    relation: str | None = None
    if not field.path and scanner.peek("("):
        relation, field = field.name, _related(scanner)
    direction: Literal["asc", "desc"] | None = None
    nulls: Literal["nullsfirst", "nullslast"] | None = None
    if scanner.take(".", _DELIMITER):
        direction = "asc" if scanner.take("asc") else "desc" if scanner.take("desc") else None
        if direction is None or scanner.take(".", _DELIMITER):
            nulls = _nulls(scanner)
    scanner.spaces()
    return OrderTerm(field, direction, nulls, relation)


def _related(scanner: Scanner) -> Field:
    """The field in brackets after a relation's name. Raises PGRST100 at the opening bracket if there is none."""
    inside = Scanner(scanner.text, scanner.what, scanner.shown, scanner.pos + 1)
    try:
        found = names.field(inside)
        inside.need(")")
    except TableError:
        scanner.fail(_DELIMITER, '","', END)
    scanner.pos = inside.pos
    return found


def _nulls(scanner: Scanner) -> Literal["nullsfirst", "nullslast"]:
    if scanner.take("nullsfirst"):
        return "nullsfirst"
    if scanner.take("nullslast"):
        return "nullslast"
    return scanner.fail()
