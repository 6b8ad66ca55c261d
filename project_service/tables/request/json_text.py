"""JSON as PostgreSQL takes it, of which only the names of members matter here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import orjson

from project_service.tables import errors

EMPTY_OR_INVALID = "Empty or invalid json"
# Strings, and brackets with those that follow at once.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]+|[\]}]+', re.DOTALL)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The names without repetitions, sorted, so that their order in a request makes no difference."""
    ordered = tuple(sorted(set(names)))
    try:
        "".join(ordered).encode("utf-8")
    except UnicodeEncodeError:
        # JSON may have a lone surrogate, by an escape. No column or argument can be called like that.
        raise errors.invalid_body(EMPTY_OR_INVALID) from None
    return ordered


def value_of(body: bytes) -> Any:
    """The value of ``body``, of which only the names of members matter here. Raises ``ValueError`` for what is not
    JSON."""
    try:
        return orjson.loads(body)
    except ValueError:
        # orjson refuses what PostgreSQL takes: numbers that fit no double, great depth, and lone surrogates.
        text = body.decode("utf-8")
    try:
        return _with_any_numbers(text)
    except RecursionError:
        return _with_any_numbers(_shallow(text))


def _with_any_numbers(text: str) -> Any:
    return json.loads(text, parse_float=str, parse_int=str, parse_constant=_reject_constant)


def _shallow(text: str) -> str:
    """``text`` with 0 for each list and object that is a member of an object in a list, or deeper.

    Whether these are JSON is left to PostgreSQL, whose stack allows several thousand levels. Raises ``ValueError`` if
    not all are closed.
    """
    pieces, depth, rest = [], 0, 0
    for match in _BRACKETS.finditer(text):
        start, end = match.span()
        if text[start] in "[{":
            deeper = depth + end - start
            if depth < 3 <= deeper:
                pieces.append(text[rest : start + 2 - depth] + "0")
            depth = deeper
        elif text[start] != '"':
            higher = depth - (end - start)
            if higher < 3 <= depth:
                rest = start + depth - 2
            depth = higher
    if depth:
        raise ValueError("not all brackets are closed")
    return "".join([*pieces, text[rest:]])


def _reject_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
