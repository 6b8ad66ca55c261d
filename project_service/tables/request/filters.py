"""Filters and logic trees. PostgREST's reference: "Horizontal Filtering", "Operators", "Logical operators".

The operators themselves are in ``syntax.OPERATORS``.
"""

from __future__ import annotations

import re
from typing import Literal, NoReturn, cast

from attrs import define

from project_service.tables.errors import TableError
from project_service.tables.request.scanning import DELIMITER, FIELD_NAME, Scanner
from project_service.tables.request.syntax import (
    OPERATORS,
    Compare,
    Condition,
    Field,
    Filter,
    In,
    Is,
    Logic,
    Operand,
    Operation,
    Operator,
    Quantifier,
    Search,
)

# What errors say was expected.
_OPERATOR = "operator (eq, gt, ...)"
_LOGIC_NEGATION = "negation operator (not)"
_LOGIC_OPERATOR = "logic operator (and, or)"

# Operators whose operand is a parameter of the statement, so that a plan can be used again with another one.
_PLAIN_NAMES = [name for name, one in OPERATORS.items() if one.operand in ("value", "pattern", "list")]
_PLAIN = re.compile(rf"(?:not\.)?({'|'.join(sorted(_PLAIN_NAMES, key=len, reverse=True))})\.")
_WORD = re.compile(r"[a-z]+")
_QUANTIFIER = re.compile(r"\((any|all)\)")
_LANGUAGE = re.compile(r"\(([\w$ -]+)\)")
_LANGUAGE_NAME = re.compile(r"[\w$ -]+")
_IS_VALUES = ("null", "not_null", "true", "false", "unknown")
_IS = re.compile(rf"({'|'.join(_IS_VALUES)})(?=$|[\s,)])", re.IGNORECASE)
_UP_TO_END = re.compile(r"[^,)]*")
_LOGIC_ARRAY = re.compile(r"\{[^{}]*\}")


@define
class Operands:
    """Numbers the operands of plain comparisons, so that a cached plan can be run with other values instead."""

    count: int = 0

    def add(self, text: str) -> Operand:
        self.count += 1
        return Operand(text, self.count - 1)


def looks_like_filter(value: str) -> bool:
    """Whether ``value`` starts with an operator. That is how a function's arguments are distinguished from
    filters."""
    word, dot, _ = value.partition(".")
    word = word.partition("(")[0]
    return bool(dot) and (word == "not" or word in OPERATORS)


def shape_of_filter(value: str) -> tuple[str, str] | None:
    """Splits a plain comparison or list, such as ``eq.5`` or ``not.in.(a,b)``, into its operator and its operand.

    The operator is returned with its dots, the operand as PostgreSQL takes it. None for any other value, which
    belongs to the request's shape as a whole. Raises PGRST100 for a bad list.
    """
    match = _PLAIN.match(value)
    if match is None:
        return None
    operator = OPERATORS[match.group(1)]
    if operator.operand == "list":
        scanner = Scanner(value, "filter", value, match.end())
        values = _list(scanner)
        # A bracket in an unquoted value ends the list. What follows it must not be dropped silently.
        scanner.end()
        return match.group(), array_literal(values)
    operand = value[match.end() :]
    return match.group(), _pattern(operand) if operator.operand == "pattern" else operand


def parse_filter(field: Field, value: str, operands: Operands) -> Filter:
    """The filter of a parameter such as ``age=not.gte.18``."""
    shape = shape_of_filter(value)
    if shape is not None:
        prefix, text = shape
        name = prefix.removeprefix("not.").removesuffix(".")
        operand = operands.add(text)
        plain = In(operand) if OPERATORS[name].operand == "list" else Compare(name, operand)
        return Filter(field, plain, prefix.startswith("not."))
    scanner = Scanner(value, "filter", value)
    negated = _negation(scanner)
    operation = _operation(scanner, in_logic=False)
    scanner.spaces()
    scanner.end()
    return Filter(field, operation, negated)


def _operation(scanner: Scanner, in_logic: bool) -> Operation:
    """An operator, a dot and its operand; inside a logic tree the operand ends at ``,`` or ``)``."""
    operator, modifier = _operator(scanner)
    if operator.operand == "list":
        return In(Operand(array_literal(_list(scanner))))
    if operator.operand == "keyword":
        return _is(scanner)
    text = _value(scanner, in_logic)
    if operator.operand == "search":
        return Search(operator.name, Operand(text), modifier)
    operand = Operand(_pattern(text) if operator.operand == "pattern" else text)
    return Compare(operator.name, operand, cast("Quantifier | None", modifier))


def _pattern(text: str) -> str:
    """``*`` stands for ``%``, which would have to be escaped in a URL."""
    return text.replace("*", "%")


def _negation(scanner: Scanner) -> bool:
    """Step over ``not.`` before an operator; whether it was there."""
    if scanner.take("not.", '"not"'):
        return True
    if scanner.peek("not"):
        scanner.pos += len("not")
        scanner.fail(DELIMITER)
    return False


def _operator(scanner: Scanner) -> tuple[Operator, str | None]:
    """An operator up to its dot, and the language or quantifier in brackets behind it.

    Raises PGRST100 for anything else, where it ceases to be the operator that it begins like.
    """
    word = scanner.match(_WORD)
    if word is None:
        scanner.fail(_OPERATOR)
    name = max((name for name in OPERATORS if word.startswith(name)), key=len, default="")
    if name != word:
        scanner.pos -= len(word) - len(name)
        scanner.fail(_OPERATOR)
    operator = OPERATORS[name]
    pattern = _LANGUAGE if operator.operand == "search" else _QUANTIFIER if operator.quantified_sql else None
    modifier: str | None = None
    if pattern is not None and scanner.peek("("):
        modifier = scanner.match(pattern)
        if modifier is None:
            _reject_modifier(scanner, pattern)
    scanner.need(".", _OPERATOR)
    return operator, modifier[1:-1] if modifier else None


def _reject_modifier(scanner: Scanner, pattern: re.Pattern[str]) -> NoReturn:
    """Raise PGRST100 where PostgREST does: behind the characters of a language, or at the quantifier."""
    scanner.pos += 1
    if pattern is _LANGUAGE:
        scanner.match(_LANGUAGE_NAME)
    scanner.fail(_OPERATOR)


def _is(scanner: Scanner) -> Is:
    value = scanner.match(_IS)
    if value is None:
        scanner.skip_common_prefix(_IS_VALUES)
        scanner.fail(f"isVal: ({', '.join(_IS_VALUES)})")
    return Is(value.lower())  # type: ignore[arg-type]  # the pattern allows the five values only


def _list(scanner: Scanner) -> list[str]:
    scanner.spaces()
    scanner.need("(")
    scanner.spaces()
    if scanner.take(")"):
        return []
    values = [_element(scanner)]
    while scanner.take(","):
        scanner.spaces()
        values.append(_element(scanner))
    scanner.need(")")
    scanner.spaces()
    return values


def _element(scanner: Scanner) -> str:
    """The text within quotes if these enclose the whole value, else everything up to ``,`` or ``)``."""
    return _enclosed(scanner) or scanner.match(_UP_TO_END) or ""


def _enclosed(scanner: Scanner) -> str | None:
    start = scanner.pos
    text = scanner.quoted()
    if text is not None and (scanner.at_end or scanner.text[scanner.pos] in ",)"):
        return text
    scanner.pos = start
    return None


def _value(scanner: Scanner, in_logic: bool) -> str:
    start = scanner.pos
    if not in_logic:
        scanner.pos = len(scanner.text)
        return scanner.text[start:]
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


def parse_logic(operator: Literal["and", "or"], negated: bool, value: str) -> Logic:
    """The tree of a parameter named ``and``, ``or``, ``not.and`` or ``not.or``: ``or=(a.eq.1,not.and(b.lt.2,…))``."""
    prefix = f"not.{operator}" if negated else operator
    scanner = Scanner(prefix + value, "logic tree", value)
    scanner.pos = len(prefix)
    tree = _terms(scanner, operator, negated)
    scanner.end_past_brackets()
    return tree


def _terms(scanner: Scanner, operator: Literal["and", "or"], negated: bool) -> Logic:
    scanner.deeper()
    scanner.spaces()
    scanner.need("(")
    terms = [_term(scanner)]
    while scanner.take(","):
        terms.append(_term(scanner))
    scanner.need(")")
    scanner.spaces()
    scanner.depth -= 1
    return Logic(operator, tuple(terms), negated)


_LOGIC: tuple[Literal["and", "or"], ...] = ("and", "or")


def _term(scanner: Scanner) -> Condition:
    scanner.spaces()
    start = scanner.pos
    negated = scanner.peek("not.")
    scanner.pos += len("not.") if negated else 0
    operator = next((name for name in _LOGIC if scanner.peek(name)), None)
    if operator is not None:
        scanner.pos += len(operator)
        scanner.spaces()
        if scanner.peek("("):
            return _terms(scanner, operator, negated)
    scanner.pos = start
    try:
        return _filter(scanner)
    except TableError:
        _reject_operator(scanner, start)
        raise


def _filter(scanner: Scanner) -> Filter:
    if not scanner.at_name():
        scanner.fail(FIELD_NAME, _LOGIC_NEGATION, _LOGIC_OPERATOR)
    field = scanner.field()
    scanner.need(".", DELIMITER)
    negated = _negation(scanner)
    operation = _operation(scanner, in_logic=True)
    scanner.spaces()
    return Filter(field, operation, negated)


def _reject_operator(scanner: Scanner, start: int) -> None:
    """Raise PGRST100 for terms such as ``ord(…)`` and ``not.xor(…)``, which begin like a logical operator and are no
    filter either. Does nothing for others."""
    fresh = Scanner(scanner.text, scanner.parameter, scanner.shown, start)
    negated = fresh.take("not.")
    for operator in _LOGIC:
        if fresh.peek(operator):
            fresh.pos += len(operator)
            fresh.fail('"("')
    if negated:
        fresh.fail(_LOGIC_OPERATOR)
