"""JSON as PostgreSQL takes it, of which only the names of members matter here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import orjson

from project_service.frozen import quick
from project_service.tables import errors

EMPTY_OR_INVALID = "Empty or invalid json"
# The white space that JSON allows around a value (RFC 8259 section 2).
WHITESPACE = " \t\n\r"
# Strings, and brackets with those that follow at once. A string without an end extends to the end of the text: trying
# again from each quote in it would take long.
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+["\\]?|[\[{]+|[\]}]+', re.DOTALL)
# Making more lists and objects than that takes more than some ten milliseconds.
_FEW_BRACKETS = 40_000
_PIECE_CHARACTERS = 16 * 1024


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The names without repetitions, sorted, so that their order in a request makes no difference."""
    ordered = tuple(sorted(set(names)))
    try:
        "".join(ordered).encode("utf-8")
    except UnicodeEncodeError:
        # JSON may have a lone surrogate, by an escape. No column or argument can be called like that.
        raise errors.invalid_body(EMPTY_OR_INVALID) from None
    return ordered


@quick
class Outline:
    """What matters of a JSON value. ``keys`` are the members of an object, or those that all items of an array have,
    ordered by name; None for anything else. ``count`` is the number of an array's items."""

    kind: Literal["object", "array", "other"]
    keys: tuple[str, ...] | None = None
    count: int = 1


def outline_of(body: bytes) -> Outline:
    """The outline of a JSON text. Raises ``ValueError`` for what is not JSON, unless it is within what a member of a
    row holds, or of the outermost object: that PostgreSQL gets to see.

    A text of many lists or objects is read in pieces, and without making what is deep in it: an object for every
    three bytes would stop all threads for a tenth of a second.
    """
    text = body.decode("utf-8")
    if not text.lstrip(WHITESPACE).startswith("[") or not _has_many_brackets(body):
        value = value_of(body)
        if isinstance(value, dict):
            return Outline("object", in_order(value))
        if not isinstance(value, list):
            return Outline("other")
        return _of_array([value])
    return _of_array(_lists(text))


def _of_array(lists: Iterable[list[Any]]) -> Outline:
    """The outline of an array whose items come in several lists."""
    count, expected, same = 0, None, True
    for rows in lists:
        if not count and rows and isinstance(rows[0], dict):
            expected = rows[0].keys()
        count += len(rows)
        same = same and all(isinstance(row, dict) and row.keys() == expected for row in rows)
    return Outline("array", in_order(expected or ()) if same else None, count)


def _lists(text: str) -> Iterator[list[Any]]:
    """The items of an array, as many at a time as a piece of it has."""
    pieces = _shallow(text)
    # Each piece but the first begins with a comma, and each but the last lacks the end.
    opening, skipped, held = "", 0, next(pieces)
    for piece in pieces:
        yield _loaded(f"{opening}{held}]")[skipped:]
        opening, skipped, held = "[0", 1, piece
    yield _loaded(opening + held)[skipped:]


def value_of(body: bytes) -> Any:
    """The value of ``body``, of which only the names of members matter here. Raises ``ValueError`` for what is not
    JSON, as ``outline_of``."""
    if _has_many_brackets(body):
        return _loaded("".join(_shallow(body.decode("utf-8"))))
    return _loaded(body)


def _loaded(text: str | bytes) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        # orjson refuses what PostgreSQL takes: numbers that fit no double, great depth, and lone surrogates.
        decoded = text if isinstance(text, str) else text.decode("utf-8")
    try:
        return _with_any_numbers(decoded)
    except RecursionError:
        return _with_any_numbers("".join(_shallow(decoded)))


def _with_any_numbers(text: str) -> Any:
    return json.loads(text, parse_float=str, parse_int=str, parse_constant=_reject_constant)


def _has_many_brackets(body: bytes) -> bool:
    return len(body) > _FEW_BRACKETS and body.count(b"[") + body.count(b"{") > _FEW_BRACKETS


def _shallow(text: str) -> Iterator[str]:
    """``text`` with 0 for each list and object that is a member of an object in a list, or deeper.

    It comes in pieces, of which each but the last ends behind an item of the outermost list or object. Whether what
    is left out is JSON is left to PostgreSQL, whose stack allows several thousand levels. Raises ``ValueError`` if
    not all are closed.
    """
    pieces, size, depth, rest = [], 0, 0, 0
    for match in _BRACKETS.finditer(text):
        start, end = match.span()
        if text[start] in "[{":
            deeper = depth + end - start
            if depth < 3 <= deeper:
                pieces.append(text[rest : start + 2 - depth] + "0")
                size += len(pieces[-1])
            depth = deeper
        elif text[start] != '"':
            higher = depth - (end - start)
            if higher < 3 <= depth:
                rest = start + depth - 2
            if higher == 1 and size + end - rest > _PIECE_CHARACTERS:
                yield "".join([*pieces, text[rest:end]])
                pieces, size, rest = [], 0, end
            depth = higher
    if depth:
        raise ValueError("not all brackets are closed")
    yield "".join([*pieces, text[rest:]])


def _reject_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
