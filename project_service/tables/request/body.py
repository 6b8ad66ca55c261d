"""Request bodies: JSON, CSV, forms and, for functions of one unnamed argument, raw bytes."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal
from urllib.parse import parse_qsl

import orjson
from attrs import field, frozen

from project_service.http.json_body import depth_of
from project_service.tables import errors
from project_service.tables.request import headers

_EMPTY_OR_INVALID = "Empty or invalid json"
# The white space that JSON allows around a value (RFC 8259 section 2).
_WHITESPACE = " \t\n\r"
# Strings, and brackets with those that follow at once.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]+|[\]}]+', re.DOTALL)
# The fields of a form at most: as many as fit into a URL. A megabyte of fields would keep a worker busy for seconds.
_MAX_FIELDS = 25_000

# PostgreSQL reads JSON of at least this depth, whatever its platform and settings.
DEEP = 100

# Larger CSV is worth a thread.
INLINE_CSV_BYTES = 16 * 1024
# How many lines are objects at a time: a megabyte may have half a million, which would take 150 MB.
_CSV_LINES = 500
# Each line's object repeats the columns' names. A cell takes at least one byte, and a name in PostgreSQL has at most
# 63, so the JSON is at most so many times larger. Longer names are rejected where gigabytes would be made of a
# small body.
_MAX_GROWTH = 63
# Lifts Python's limit of 128 KiB for a cell. The size of a body is limited where it is read.
csv.field_size_limit(sys.maxsize)


@frozen
class Payload:
    """A request body. ``text`` is the JSON that PostgreSQL gets. ``keys`` are the members of its objects, ordered by
    name. If the items of an array have different members there are none, and ``keys_match`` is False: only a function
    that takes the whole body can use it.

    ``raw`` is the body as it came, for a function's single unnamed argument. ``arguments`` are the pairs of a form.
    """

    kind: Literal["json", "form", "raw"]
    media: str
    text: str = field(repr=False, default="")
    keys: tuple[str, ...] = ()
    is_array: bool = False
    is_empty: bool = False
    keys_match: bool = True
    raw: bytes = field(repr=False, default=b"")
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def depth(self) -> int:
        """How deep lists and objects are nested in a JSON body, counted anew each time."""
        return depth_of(self.raw) if self.media == headers.JSON else 0

    @property
    def is_nameless(self) -> bool:
        """Whether it is JSON other than an object or objects with members."""
        return self.kind == "json" and self.is_array and not self.keys


def slow_to_read(content_type: str | None, body: bytes) -> bool:
    """Whether others would wait for long while this body is read: a mebibyte of CSV may have half a million lines.

    JSON is read by a single call, for which all threads wait.
    """
    if len(body) <= INLINE_CSV_BYTES or content_type is None:
        return False
    return headers.parse_media(content_type).name == headers.CSV


def parse_payload(
    content_type: str | None, body: bytes, columns: tuple[str, ...] | None, routine: bool
) -> Payload:
    """Read the body by its Content-Type (JSON where there is none).

    ``columns`` names the members to be used. The objects need not all have the same members then, and the JSON is not
    parsed here but only by PostgreSQL. Raises PGRST102.
    """
    columns = _in_order(columns) if columns is not None else None
    name = headers.parse_media(content_type).name if content_type else headers.JSON
    if name == headers.JSON:
        if routine and not body:
            return Payload("json", name, "{}", raw=b"{}")
        return _json(body, routine) if columns is None else _unread(body, columns)
    if name == headers.CSV:
        return parse_csv(body, columns)
    if name == headers.FORM:
        return _form(body, columns)
    if routine and name in (headers.TEXT, headers.XML, headers.OCTETS):
        if name != headers.OCTETS:
            _check_text(body)
        return Payload("raw", name, raw=body)
    raise errors.invalid_body(f"Content-Type not acceptable: {content_type}")


def has_several_rows(payload: Payload) -> bool:
    """Whether the body is an array of several values. False for what is not JSON, which PostgreSQL refuses."""
    if payload.kind != "json" or not payload.is_array:
        return False
    try:
        value = _value(payload.text.encode("utf-8"))
    except ValueError:
        return False
    return isinstance(value, list) and len(value) > 1


def _check_text(body: bytes) -> None:
    try:
        body.decode("utf-8")
    except ValueError:
        raise errors.invalid_body("The body is not UTF-8") from None
    if b"\0" in body:
        raise errors.invalid_body("The body holds a NUL character")


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The names without repetitions, sorted, so that their order in a request makes no difference."""
    ordered = tuple(sorted(set(names)))
    try:
        "".join(ordered).encode("utf-8")
    except UnicodeEncodeError:
        # JSON may have a lone surrogate, by an escape. No column or argument can be called like that.
        raise errors.invalid_body(_EMPTY_OR_INVALID) from None
    return ordered


def _unread(body: bytes, columns: tuple[str, ...]) -> Payload:
    try:
        text = body.decode("utf-8")
    except ValueError:
        raise errors.invalid_body(_EMPTY_OR_INVALID) from None
    if "\0" in text:
        raise errors.invalid_body(_EMPTY_OR_INVALID)
    is_object = text.lstrip(_WHITESPACE).startswith("{")
    return Payload("json", headers.JSON, text, columns, not is_object, raw=body)


def _json(body: bytes, routine: bool) -> Payload:
    try:
        value, text = _value(body), body.decode("utf-8")
    except ValueError:
        raise errors.invalid_body(_EMPTY_OR_INVALID) from None
    if isinstance(value, dict):
        return Payload("json", headers.JSON, text, _in_order(value), raw=body)
    if not isinstance(value, list):
        if not routine:
            # PostgREST writes nothing here and answers 201 (its issue 1323).
            raise errors.invalid_body("The body is neither an object nor an array of objects")
        return Payload("json", headers.JSON, "[]", (), True, True, raw=body)
    keys = _common_keys(value)
    if keys is None:
        if not routine:
            raise errors.keys_differ()
        return Payload("json", headers.JSON, text, (), True, keys_match=False, raw=body)
    return Payload("json", headers.JSON, text, keys, True, not value, raw=body)


def _value(body: bytes) -> Any:
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


def _common_keys(rows: list[Any]) -> tuple[str, ...] | None:
    """The members that all rows have; None if they are not all objects with the same members."""
    if not rows:
        return ()
    first = rows[0]
    if not isinstance(first, dict):
        return None
    expected = first.keys()
    if any(not isinstance(row, dict) or row.keys() != expected for row in rows):
        return None
    return _in_order(first)


def parse_csv(body: bytes, columns: tuple[str, ...] | None = None) -> Payload:
    """CSV (RFC 4180) with a line of names, as a JSON array with one object for each line below it. The cell ``NULL``
    is null; empty lines are left out. Raises PGRST102."""
    try:
        # Spreadsheets begin the CSV that they write with a byte order mark. It is no part of the first column's name.
        text = body.decode("utf-8-sig")
        lines = filter(None, csv.reader(io.StringIO(text, newline=""), strict=True))
        names = next(lines, None)
        if names is None:
            raise errors.invalid_body("Empty or invalid CSV")
        chunks = list(_chunks_of_objects(names, lines, len(body)))
    except (UnicodeDecodeError, csv.Error) as fault:
        raise errors.invalid_body(f"Invalid CSV: {fault}") from None
    keys = columns if columns is not None else _in_order(names)
    json_text = f"[{b','.join(chunks).decode()}]"
    return Payload("json", headers.CSV, json_text, keys, True, not chunks, raw=body)


def _chunks_of_objects(names: list[str], lines: Iterator[list[str]], size: int) -> Iterator[bytes]:
    """The objects of some lines at a time, with commas between. ``size`` is that of the body."""
    names_length, count = sum(map(len, names)), 0
    while chunk := list(islice(lines, _CSV_LINES)):
        if {*map(len, chunk)} != {len(names)}:
            raise errors.invalid_body("All lines must have same number of fields")
        count += len(chunk)
        if names_length * count > _MAX_GROWTH * size:
            raise errors.invalid_body("The names of the columns are too long for so many lines")
        # One expression, since there may be a line for every two bytes.
        objects = [
            dict(zip(names, line if "NULL" not in line else _with_nulls(line)))  # noqa: B905  # as long as each other
            for line in chunk
        ]
        yield orjson.dumps(objects)[1:-1]


def _with_nulls(line: list[str]) -> list[str | None]:
    return [None if cell == "NULL" else cell for cell in line]


def _form(body: bytes, columns: tuple[str, ...] | None) -> Payload:
    try:
        pairs = tuple(
            parse_qsl(
                body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS
            )
        )
    except ValueError:
        raise errors.invalid_body("Invalid form") from None
    if any("\0" in name or "\0" in value for name, value in pairs):
        raise errors.invalid_body("The form holds a NUL character")
    text = orjson.dumps(dict(pairs)).decode("utf-8")
    keys = columns if columns is not None else _in_order(dict(pairs))
    return Payload("form", headers.FORM, text, keys, raw=body, arguments=pairs)
