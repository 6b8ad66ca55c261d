"""The ``order`` parameter: ``a.desc.nullslast,b->>c,relation(d).asc``. PostgREST's reference: "Ordering"."""

from __future__ import annotations

from typing import Literal

from project_service.tables.parse import names
from project_service.tables.parse.scanner import Scanner
from project_service.tables.syntax import OrderTerm


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
    if not field.path and scanner.take("("):
        relation, field = field.name, names.field(scanner)
        scanner.need(")")
    direction: Literal["asc", "desc"] | None = None
    nulls: Literal["nullsfirst", "nullslast"] | None = None
    if scanner.take(".", "delimiter (.)"):
        direction = "asc" if scanner.take("asc") else "desc" if scanner.take("desc") else None
        if direction is None or scanner.take(".", "delimiter (.)"):
            nulls = _nulls(scanner)
    scanner.spaces()
    return OrderTerm(field, direction, nulls, relation)


def _nulls(scanner: Scanner) -> Literal["nullsfirst", "nullslast"]:
    if scanner.take("nullsfirst"):
        return "nullsfirst"
    if scanner.take("nullslast"):
        return "nullslast"
    return scanner.fail()
