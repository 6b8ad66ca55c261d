"""Logic trees: ``or=(a.eq.1,not.and(b.lt.2,c.is.null))``. PostgREST's reference: "Logical operators"."""

from __future__ import annotations

from typing import Literal

from project_service.tables.errors import TableError
from project_service.tables.parse import names
from project_service.tables.parse.filters import negation, operation
from project_service.tables.parse.scanner import Scanner
from project_service.tables.syntax import Condition, Filter, Logic

_NEGATION = "negation operator (not)"
_OPERATOR = "logic operator (and, or)"


def parse_logic(operator: str, negated: bool, value: str) -> Logic:
    """The tree of a parameter named ``and``, ``or``, ``not.and`` or ``not.or``."""
    prefix = f"not.{operator}" if negated else operator
    scanner = Scanner(prefix + value, "logic tree", value)
    scanner.pos = len(prefix)
    found = _terms(scanner, "and" if operator == "and" else "or", negated)
    scanner.end_past_brackets()
    return found


def _terms(scanner: Scanner, operator: Literal["and", "or"], negated: bool) -> Logic:
    scanner.deeper()
    scanner.spaces()
    scanner.need("(")
    found = [_term(scanner)]
    while scanner.take(","):
        found.append(_term(scanner))
    scanner.need(")")
    scanner.spaces()
    scanner.depth -= 1
    return Logic(operator, tuple(found), negated)


def _term(scanner: Scanner) -> Condition:
    scanner.spaces()
    start = scanner.pos
    negated = scanner.peek("not.")
    scanner.pos += len("not.") if negated else 0
    for operator in ("and", "or"):
        mark = scanner.pos
        if scanner.peek(operator):
            scanner.pos += len(operator)
            scanner.spaces()
            if scanner.peek("("):
                return _terms(scanner, "and" if operator == "and" else "or", negated)
            scanner.pos = mark
    scanner.pos = start
    try:
        return _filter(scanner)
    except TableError:
        _refuse_operator(scanner, start)
        raise


def _filter(scanner: Scanner) -> Filter:
    if not names.begins(scanner):
        scanner.fail(names.FIELD_NAME, _NEGATION, _OPERATOR)
    field = names.field(scanner)
    scanner.need(".", "delimiter (.)")
    negated = negation(scanner)
    found = Filter(field, operation(scanner, in_logic=True), negated)
    scanner.spaces()
    return found


def _refuse_operator(scanner: Scanner, start: int) -> None:
    """Raise PGRST100 for terms such as ``ord(…)`` and ``not.xor(…)``, which begin like a logical operator and are no
    filter either. Does nothing for others."""
    fresh = Scanner(scanner.text, scanner.what, scanner.shown, start)
    negated = fresh.take("not.")
    for operator in ("and", "or"):
        if fresh.peek(operator):
            fresh.pos += len(operator)
            fresh.fail('"("')
    if negated:
        fresh.fail(_OPERATOR)
