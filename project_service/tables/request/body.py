"""Request bodies: JSON, CSV, NDJSON, forms and, for functions of one unnamed argument, raw bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import islice
from typing import Literal
from urllib.parse import parse_qsl

import orjson
from attrs import field

from project_service.frozen import quick
from project_service.http.json_body import depth_of
from project_service.tables import errors
from project_service.tables.request import headers
from project_service.tables.request.json_text import EMPTY_OR_INVALID, WHITESPACE, in_order, outline_of
from project_service.tables.request.lines import MAX_GROWTH, NULLS, as_names, marked, whole_rows, with_nulls

# The fields of a form at most: as many as fit into a URL. A megabyte of fields would keep a worker busy for seconds.
_MAX_FIELDS = 25_000

# More names than the columns that a table may have in PostgreSQL.
_MANY_NAMES = 1600

# PostgreSQL reads JSON of at least this depth, whatever its platform and settings.
DEEP = 100

# A larger body of many lines is worth a thread: there may be a row for every two bytes.
INLINE_BYTES = 4 * 1024
_INLINE_BYTES_OF_OTHERS = 32 * 1024
# A call of C, during which all threads wait, gets so much of a body at a time.
PIECE_BYTES = 16 * 1024
# How many lines are objects at a time: a megabyte may have half a million, which would take 150 MB.
_CSV_LINES = 500


@quick
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
    def has_many_names(self) -> bool:
        """Whether planning takes long because of the number of members."""
        return len(self.keys) + len(self.arguments) > _MANY_NAMES

    @property
    def is_nameless(self) -> bool:
        """Whether the body is JSON in which there are no names of arguments: neither an object, nor an array of
        objects that all have the same members."""
        return self.kind == "json" and self.is_array and not self.keys


def slow_to_read(content_type: str | None, body: bytes) -> bool:
    """Whether others would wait for long while this body is read: a mebibyte of CSV or NDJSON may have a hundred
    thousand lines.

    JSON and forms take less, so more of them is read at once.
    """
    if len(body) <= INLINE_BYTES:
        return False
    name = headers.parse_media(content_type).name if content_type else headers.JSON
    return name in (headers.CSV, headers.NDJSON) or len(body) > _INLINE_BYTES_OF_OTHERS


def parse_payload(
    content_type: str | None, body: bytes, columns: tuple[str, ...] | None, routine: bool
) -> Payload:
    """Read the body by its Content-Type (JSON where there is none).

    ``columns`` names the members to be used. The objects need not all have the same members then, and the JSON is not
    parsed here but only by PostgreSQL. Raises PGRST102.
    """
    columns = in_order(columns) if columns is not None else None
    name = headers.parse_media(content_type).name if content_type else headers.JSON
    if name == headers.JSON:
        if routine and not body:
            return Payload("json", name, "{}", raw=b"{}")
        return _json(body, routine) if columns is None else _unread(body, columns)
    if name == headers.CSV:
        return parse_csv(body, columns)
    if name == headers.NDJSON:
        rows, keys = whole_rows(body, columns)
        return Payload("json", name, f"[{b','.join(rows).decode()}]", keys, True, not rows, raw=body)
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
        return outline_of(payload.text.encode()).count > 1
    except ValueError:
        return False


def _check_text(body: bytes) -> None:
    try:
        body.decode("utf-8")
    except ValueError:
        raise errors.invalid_body("The body is not UTF-8") from None
    if b"\0" in body:
        raise errors.invalid_body("The body holds a NUL character")


def _unread(body: bytes, columns: tuple[str, ...]) -> Payload:
    try:
        text = body.decode("utf-8")
    except ValueError:
        raise errors.invalid_body(EMPTY_OR_INVALID) from None
    if "\0" in text:
        raise errors.invalid_body(EMPTY_OR_INVALID)
    is_object = text.lstrip(WHITESPACE).startswith("{")
    return Payload("json", headers.JSON, text, columns, not is_object, raw=body)


def _json(body: bytes, routine: bool) -> Payload:
    try:
        outline, text = outline_of(body), body.decode("utf-8")
    except ValueError:
        raise errors.invalid_body(EMPTY_OR_INVALID) from None
    keys = outline.keys
    if outline.kind == "object":
        return Payload("json", headers.JSON, text, keys or (), raw=body)
    if outline.kind == "other":
        if not routine:
            # PostgREST writes nothing here and answers 201 (its issue 1323).
            raise errors.invalid_body("The body is neither an object nor an array of objects")
        return Payload("json", headers.JSON, "[]", (), True, True, raw=body)
    if keys is None:
        if not routine:
            raise errors.keys_differ()
        return Payload("json", headers.JSON, text, (), True, keys_match=False, raw=body)
    return Payload("json", headers.JSON, text, keys, True, not outline.count, raw=body)


def parse_csv(body: bytes, columns: tuple[str, ...] | None = None) -> Payload:
    """CSV as of ``CsvLines``, as a JSON array with one object for each line below the names. Raises PGRST102."""
    try:
        text = marked(body.decode("utf-8-sig"))
        lines = filter(None, csv.reader(io.StringIO(text, newline=""), strict=True))
        names = next(lines, None)
        if names is None:
            raise errors.invalid_body("Empty or invalid CSV")
        names = as_names(names)
        chunks = list(_chunks_of_objects(names, lines, len(body)))
    except (UnicodeDecodeError, csv.Error) as fault:
        raise errors.invalid_body(f"Invalid CSV: {fault}") from None
    keys = columns if columns is not None else in_order(names)
    json_text = f"[{b','.join(chunks).decode()}]"
    return Payload("json", headers.CSV, json_text, keys, True, not chunks, raw=body)


def _chunks_of_objects(names: list[str], lines: Iterator[list[str]], size: int) -> Iterator[bytes]:
    """The objects of some lines at a time, with commas between. ``size`` is that of the body."""
    names_length, count = sum(map(len, names)), 0
    while chunk := list(islice(lines, _CSV_LINES)):
        if {*map(len, chunk)} != {len(names)}:
            raise errors.fields_differ()
        count += len(chunk)
        if names_length * count > MAX_GROWTH * size:
            raise errors.names_too_long()
        # One expression, since there may be a line for every two bytes.
        objects = [
            dict(zip(names, line if NULLS.isdisjoint(line) else with_nulls(line)))  # noqa: B905  # as long as each other
            for line in chunk
        ]
        yield orjson.dumps(objects)[1:-1]


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
    keys = columns if columns is not None else in_order(dict(pairs))
    return Payload("form", headers.FORM, text, keys, raw=body, arguments=pairs)
