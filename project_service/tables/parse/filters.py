"""Operators and their operands. PostgREST's reference: "Horizontal Filtering", "Operators"."""

from __future__ import annotations

import re
from typing import cast

from attrs import define, field

from project_service.tables.parse import names
from project_service.tables.parse.scanner import Scanner
from project_service.tables.syntax import Compare, Filter, In, Is, Operand, Operation, Quantifier, Search
from project_service.tables.syntax import Field as FieldName

# Name in the request -> operator in SQL. The first group takes the modifiers any and all.
QUANTIFIABLE = {
    "eq": "=",
    "gte": ">=",
    "gt": ">",
    "lte": "<=",
    "lt": "<",
    "like": "LIKE",
    "ilike": "ILIKE",
    "match": "~",
    "imatch": "~*",
}
SIMPLE = {
    "neq": "<>",
    "cs": "@>",
    "cd": "<@",
    "ov": "&&",
    "sl": "<<",
    "sr": ">>",
    "nxr": "&<",
    "nxl": "&>",
    "adj": "-|-",
    "isdistinct": "IS DISTINCT FROM",
}
COMPARISONS = QUANTIFIABLE | SIMPLE
SEARCHES = {
    "fts": "to_tsquery",
    "plfts": "plainto_tsquery",
    "phfts": "phraseto_tsquery",
    "wfts": "websearch_to_tsquery",
}
OPERATORS = {*COMPARISONS, *SEARCHES, "in", "is"}
PATTERNS = ("LIKE", "ILIKE")

_OPERATION = "operator (eq, gt, ...)"
_WORD = re.compile(r"[a-z]+")
_QUANTIFIER = re.compile(r"\((any|all)\)")
_LANGUAGE = re.compile(r"\(([\w$ -]+)\)")
_IS = re.compile(r"(not_null|null|true|false|unknown)(?=$|[\s,)])", re.IGNORECASE)
_ELEMENT = re.compile(r"[^,)]*")
_LOGIC_VALUE = re.compile(r"[^,)]*")
_LOGIC_ARRAY = re.compile(r"\{[^{}]*\}")


@define
class Operands:
    """Gathers the request's operands in order, so that a kept plan can be run with others."""

    values: list[str] = field(factory=list)

    def add(self, text: str) -> Operand:
        self.values.append(text)
        return Operand(text, len(self.values) - 1)


def looks_like_filter(value: str) -> bool:
    """True where ``value`` starts with an operator: how a function's arguments and filters are told apart."""
    word, dot, _ = value.partition(".")
    word = word.partition("(")[0]
    return bool(dot) and (word == "not" or word in OPERATORS)


def parse_filter(target: FieldName, value: str, operands: Operands) -> Filter:
    """The filter of a parameter such as ``age=not.gte.18``."""
    scanner = Scanner(value, "filter", value)
    negated = scanner.take("not.", '"not"')
    return Filter(target, operation(scanner, operands, in_logic=False), negated)


def operation(scanner: Scanner, operands: Operands, in_logic: bool) -> Operation:
    """An operator, a dot and its operand; inside a logic tree the operand ends at ``,`` or ``)``."""
    start = scanner.pos
    word = scanner.match(_WORD)
    if word is None or word not in OPERATORS:
        scanner.pos = start
        scanner.fail(_OPERATION)
    if word == "in":
        scanner.need(".", "delimiter (.)")
        return In(operands.add(array_literal(_list(scanner))))
    if word == "is":
        scanner.need(".", "delimiter (.)")
        return _is(scanner)
    if word in SEARCHES:
        language = scanner.match(_LANGUAGE)
        scanner.need(".", "delimiter (.)")
        operand = operands.add(_value(scanner, in_logic))
        return Search(SEARCHES[word], operand, language[1:-1] if language else None)
    quantifier = scanner.match(_QUANTIFIER) if word in QUANTIFIABLE else None
    scanner.need(".", "delimiter (.)")
    text = _value(scanner, in_logic)
    sql = COMPARISONS[word]
    operand = operands.add(text.replace("*", "%") if sql in PATTERNS else text)
    return Compare(sql, operand, cast("Quantifier", quantifier[1:-1]) if quantifier else None)


def _is(scanner: Scanner) -> Is:
    found = scanner.match(_IS)
    if found is None:
        scanner.fail("isVal: (null, not_null, true, false, unknown)")
    return Is(found.lower())  # type: ignore[arg-type]  # the pattern allows the five literals only


def _list(scanner: Scanner) -> list[str]:
    scanner.spaces()
    scanner.need("(")
    scanner.spaces()
    if scanner.take(")"):
        return []
    found = [_element(scanner)]
    while scanner.take(","):
        scanner.spaces()
        found.append(_element(scanner))
    scanner.need(")")
    scanner.spaces()
    return found


def _element(scanner: Scanner) -> str:
    """A quoted value where the quotes enclose it whole, else everything up to ``,`` or ``)``."""
    return _enclosed(scanner) or scanner.match(_ELEMENT) or ""


def _enclosed(scanner: Scanner) -> str | None:
    start = scanner.pos
    found = names.quoted(scanner)
    if found is not None and (scanner.at_end or scanner.text[scanner.pos] in ",)"):
        return found
    scanner.pos = start
    return None


def _value(scanner: Scanner, in_logic: bool) -> str:
    if not in_logic:
        text, scanner.pos = scanner.text[scanner.pos :], len(scanner.text)
        return text
    start = scanner.pos
    enclosed = _enclosed(scanner)
    if enclosed is not None:
        return enclosed
    array = scanner.match(_LOGIC_ARRAY)
    if array is not None and (scanner.at_end or scanner.text[scanner.pos] in ",) "):
        return array
    scanner.pos = start
    return scanner.match(_LOGIC_VALUE) or ""


def array_literal(values: list[str]) -> str:
    """PostgreSQL's text form of an array of these values, each quoted."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"
