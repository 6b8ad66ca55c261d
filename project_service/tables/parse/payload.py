"""Request bodies: JSON, CSV, forms and, for functions of one unnamed argument, raw bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Literal
from urllib.parse import parse_qsl

import orjson
from attrs import field, frozen

from project_service.tables import errors
from project_service.tables.parse import media
from project_service.tables.parse.csv_rows import read_csv

_EMPTY_OR_INVALID = "Empty or invalid json"
# The white space that JSON allows around a value (RFC 8259 section 2).
_WHITESPACE = " \t\n\r"
# Signs of a number that does not fit a double. The search for long runs of digits begins only at the first digit of a
# run; otherwise it would go through the run again from each of its digits.
_FAR = re.compile(r"[0-9][eE]\+?[0-9]{3}|(?<![0-9])[0-9]{300}")
# The fields of a form at most: as many as fit into a URL. A megabyte of fields would keep a worker busy for seconds.
_MOST_FIELDS = 25_000

# Larger CSV is worth a thread.
INLINE_CSV_BYTES = 16 * 1024


@frozen
class Payload:
    """A request body. ``text`` is the JSON that PostgreSQL gets. ``keys`` are the members of its objects, ordered by
    name.

    ``raw`` is the body as it came, for a function's single unnamed argument. ``arguments`` are the pairs of a form.
    """

    kind: Literal["json", "form", "raw"]
    media: str
    text: str = field(repr=False, default="")
    keys: tuple[str, ...] = ()
    is_array: bool = False
    is_empty: bool = False
    raw: bytes = field(repr=False, default=b"")
    arguments: tuple[tuple[str, str], ...] = ()


def slow_to_read(content_type: str | None, body: bytes) -> bool:
    """Whether others would wait for long while this body is read: a mebibyte of CSV may have half a million lines.

    JSON is read by a single call, for which all threads wait.
    """
    if len(body) <= INLINE_CSV_BYTES or content_type is None:
        return False
    return media.parse_media(content_type).name == media.CSV


def parse_payload(
    content_type: str | None, body: bytes, columns: tuple[str, ...] | None, routine: bool
) -> Payload:
    """Read the body by its Content-Type (JSON where there is none).

    ``columns`` names the members to be used. The objects need not all have the same members then, and the JSON is not
    parsed here but only by PostgreSQL. Raises PGRST102.
    """
    columns = _in_order(columns) if columns is not None else None
    name = media.parse_media(content_type).name if content_type else media.JSON
    if name == media.JSON:
        if routine and not body:
            return Payload("json", name, "{}", raw=b"{}")
        return _json(body, routine) if columns is None else _unread(body, columns)
    if name == media.CSV:
        return _csv(body, columns)
    if name == media.FORM:
        return _form(body, columns)
    if routine and name in (media.TEXT, media.XML, media.OCTETS):
        if name != media.OCTETS:
            _check_text(body)
        return Payload("raw", name, raw=body)
    raise errors.invalid_body(f"Content-Type not acceptable: {content_type}")


def _check_text(body: bytes) -> None:
    try:
        body.decode("utf-8")
    except ValueError:
        raise errors.invalid_body("The body is not UTF-8") from None
    if b"\0" in body:
        raise errors.invalid_body("The body holds a NUL character")


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The names without repetitions, sorted, so that their order in a request makes no difference."""
    return tuple(sorted(set(names)))


def _unread(body: bytes, columns: tuple[str, ...]) -> Payload:
    try:
        text = body.decode("utf-8")
    except ValueError:
        raise errors.invalid_body(_EMPTY_OR_INVALID) from None
    if "\0" in text:
        raise errors.invalid_body(_EMPTY_OR_INVALID)
    is_object = text.lstrip(_WHITESPACE).startswith("{")
    return Payload("json", media.JSON, text, columns, not is_object, raw=body)


def _json(body: bytes, routine: bool) -> Payload:
    try:
        value, text = _value(body), body.decode("utf-8")
    except (ValueError, RecursionError):
        raise errors.invalid_body(_EMPTY_OR_INVALID) from None
    if isinstance(value, dict):
        return Payload("json", media.JSON, text, _in_order(value), raw=body)
    if not isinstance(value, list):
        if not routine:
            # PostgREST writes nothing here and answers 201 (its issue 1323).
            raise errors.invalid_body("The body is neither an object nor an array of objects")
        return Payload("json", media.JSON, "[]", (), True, True, raw=body)
    return Payload("json", media.JSON, text, _common_keys(value), True, not value, raw=body)


def _value(body: bytes) -> Any:
    """The value of ``body``. Raises ``ValueError`` for what is not JSON, which includes lone surrogates."""
    try:
        return orjson.loads(body)
    except ValueError:
        # orjson refuses numbers that do not fit a double. JSON allows them, and so does PostgreSQL's numeric.
        text = body.decode("utf-8")
        if not _FAR.search(text):
            raise
        found = json.loads(text, parse_float=str, parse_int=str, parse_constant=_refused)
        json.dumps(found, ensure_ascii=False).encode("utf-8")
        return found


def _refused(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _common_keys(rows: list[Any]) -> tuple[str, ...]:
    if not rows:
        return ()
    first = rows[0]
    if not isinstance(first, dict):
        raise errors.invalid_body("All object keys must match")
    expected = first.keys()
    for row in rows:
        if not isinstance(row, dict) or row.keys() != expected:
            raise errors.invalid_body("All object keys must match")
    return _in_order(first)


def _csv(body: bytes, columns: tuple[str, ...] | None) -> Payload:
    found = read_csv(body)
    keys = columns if columns is not None else _in_order(found.names)
    return Payload("json", media.CSV, found.json, keys, True, not found.count, raw=body)


def _form(body: bytes, columns: tuple[str, ...] | None) -> Payload:
    try:
        pairs = tuple(
            parse_qsl(
                body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
            )
        )
    except ValueError:
        raise errors.invalid_body("Invalid form") from None
    if any("\0" in name or "\0" in value for name, value in pairs):
        raise errors.invalid_body("The form holds a NUL character")
    text = orjson.dumps(dict(pairs)).decode("utf-8")
    keys = columns if columns is not None else _in_order(dict(pairs))
    return Payload("form", media.FORM, text, keys, raw=body, arguments=pairs)
