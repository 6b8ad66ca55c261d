"""Operators and their operands. PostgREST's reference: "Horizontal Filtering", "Operators"."""

from __future__ import annotations

import re
from typing import Literal, NoReturn, cast

from attrs import define

from project_service.tables.errors import TableError
from project_service.tables.request import scanning
from project_service.tables.request.scanning import Scanner
from project_service.tables.request.syntax import (
    Compare,
    Condition,
    Filter,
    In,
    Is,
    Logic,
    Operand,
    Operation,
    Quantifier,
    Search,
)
from project_service.tables.request.syntax import Field as FieldName

# Operators: the name in the request and the operator in SQL. Those of the first group take the modifiers any and all.
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
# In their operands ``*`` stands for ``%``, which would have to be escaped in a URL.
_PATTERNS = ("like", "ilike")

_OPERATION = "operator (eq, gt, ...)"
_PLAIN = re.compile(rf"(?:not\.)?({'|'.join(sorted([*COMPARISONS, 'in'], key=len, reverse=True))})\.")
_WORD = re.compile(r"[a-z]+")
_QUANTIFIER = re.compile(r"\((any|all)\)")
_LANGUAGE = re.compile(r"\(([\w$ -]+)\)")
_LANGUAGE_NAME = re.compile(r"[\w$ -]+")
_IS_LITERALS = ("null", "not_null", "true", "false", "unknown")
_IS = re.compile(rf"({'|'.join(_IS_LITERALS)})(?=$|[\s,)])", re.IGNORECASE)
_UP_TO_END = re.compile(r"[^,)]*")
_LOGIC_ARRAY = re.compile(r"\{[^{}]*\}")


@define
class Operands:
    """Numbers the operands of plain comparisons, so that a kept plan can be run with other values in their places."""

    count: int = 0

    def add(self, text: str) -> Operand:
        self.count += 1
        return Operand(text, self.count - 1)


def looks_like_filter(value: str) -> bool:
    """Whether ``value`` starts with an operator. That is how a function's arguments are told from filters."""
    word, dot, _ = value.partition(".")
    word = word.partition("(")[0]
    return bool(dot) and (word == "not" or word in OPERATORS)


def shape_of_filter(value: str) -> tuple[str, str] | None:
    """Splits a plain comparison or list, such as ``eq.5`` or ``not.in.(a,b)``, into its operator and its operand.

    The operator is returned with its dots, the operand as PostgreSQL takes it. None for any other value, which
    belongs to the request's shape as a whole. Raises PGRST100 for a bad list.
    """
    found = _PLAIN.match(value)
    if found is None:
        return None
    operator, rest = found.group(1), value[found.end() :]
    if operator == "in":
        scanner = Scanner(value, "filter", value, found.end())
        values = _list(scanner)
        # A bracket in an unquoted value ends the list. What follows it must not be dropped silently.
        scanner.end()
        return found.group(), array_literal(values)
    return found.group(), rest.replace("*", "%") if operator in _PATTERNS else rest


def parse_filter(target: FieldName, value: str, operands: Operands) -> Filter:
    """The filter of a parameter such as ``age=not.gte.18``."""
    shape = shape_of_filter(value)
    if shape is not None:
        prefix, text = shape
        operator = prefix.removeprefix("not.").removesuffix(".")
        operand = operands.add(text)
        found = In(operand) if operator == "in" else Compare(COMPARISONS[operator], operand)
        return Filter(target, found, prefix.startswith("not."))
    scanner = Scanner(value, "filter", value)
    negated = negation(scanner)
    made = Filter(target, operation(scanner, in_logic=False), negated)
    scanner.spaces()
    scanner.end()
    return made


def operation(scanner: Scanner, in_logic: bool) -> Operation:
    """An operator, a dot and its operand; inside a logic tree the operand ends at ``,`` or ``)``."""
    word, modifier = _operator(scanner)
    if word == "in":
        return In(Operand(array_literal(_list(scanner))))
    if word == "is":
        return _is(scanner)
    text = _value(scanner, in_logic)
    if word in SEARCHES:
        return Search(SEARCHES[word], Operand(text), modifier)
    operand = Operand(text.replace("*", "%") if word in _PATTERNS else text)
    return Compare(COMPARISONS[word], operand, cast("Quantifier | None", modifier))


def negation(scanner: Scanner) -> bool:
    """Step over ``not.`` before an operator; whether it was there."""
    if scanner.take("not.", '"not"'):
        return True
    if scanner.peek("not"):
        scanner.pos += len("not")
        scanner.fail("delimiter (.)")
    return False


def _operator(scanner: Scanner) -> tuple[str, str | None]:
    """An operator up to its dot, and the language or quantifier in brackets behind it.

    Raises PGRST100 for anything else, at the place where it ceases to be the operator that it begins like.
    """
    found = scanner.match(_WORD)
    if found is None:
        scanner.fail(_OPERATION)
    word = _longest_operator(found)
    if word != found:
        scanner.pos -= len(found) - len(word)
        scanner.fail(_OPERATION)
    modifier: str | None = None
    pattern = _LANGUAGE if word in SEARCHES else _QUANTIFIER if word in QUANTIFIABLE else None
    if pattern is not None and scanner.peek("("):
        modifier = scanner.match(pattern)
        if modifier is None:
            _refuse_modifier(scanner, pattern)
    scanner.need(".", _OPERATION)
    return word, modifier[1:-1] if modifier else None


def _longest_operator(word: str) -> str:
    return max((name for name in OPERATORS if word.startswith(name)), key=len, default="")


def _refuse_modifier(scanner: Scanner, pattern: re.Pattern[str]) -> NoReturn:
    """Raise PGRST100 where PostgREST does: behind the characters of a language, or at the quantifier."""
    scanner.pos += 1
    if pattern is _LANGUAGE:
        scanner.match(_LANGUAGE_NAME)
    scanner.fail(_OPERATION)


def _is(scanner: Scanner) -> Is:
    found = scanner.match(_IS)
    if found is None:
        scanner.along(_IS_LITERALS)
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
    """The text within quotes if these enclose the whole value, else everything up to ``,`` or ``)``."""
    return _enclosed(scanner) or scanner.match(_UP_TO_END) or ""


def _enclosed(scanner: Scanner) -> str | None:
    start = scanner.pos
    found = scanning.quoted(scanner)
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
    return scanner.match(_UP_TO_END) or ""


def array_literal(values: list[str]) -> str:
    """PostgreSQL's text form of an array of these values, each quoted."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


# Logic trees: ``or=(a.eq.1,not.and(b.lt.2,c.is.null))``. PostgREST's reference: "Logical operators".


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
    if not scanning.begins(scanner):
        scanner.fail(scanning.FIELD_NAME, _NEGATION, _OPERATOR)
    field = scanning.field(scanner)
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
