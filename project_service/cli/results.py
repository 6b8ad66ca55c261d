"""The results of SQL statements as text: in columns, as CSV, and as JSON."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from math import isfinite
from typing import Any

import orjson
from attrs import frozen
from psycopg2 import extensions

from project_service.database.connection import Connection

# Replaces psycopg2's conversion to Python values, which cannot represent everything, for all types that have one.
_AS_WRITTEN: Any = extensions.new_type(
    tuple(extensions.string_types), "AS_WRITTEN", lambda value, cursor: value
)


@frozen
class Result:
    """What a statement has returned. ``command`` is PostgreSQL's tag, such as "INSERT 0 1". ``columns`` are None for
    a statement that returns no rows. ``types`` are those of the columns (``pg_type.oid``)."""

    command: str
    columns: tuple[str, ...] | None
    types: tuple[int, ...]
    rows: Sequence[Sequence[str | None]]

    @classmethod
    def of(cls, cursor: Any) -> Result:
        """The last result of a psycopg2 cursor, of a connection that is ``as_written``."""
        if cursor.description is None:
            return cls(cursor.statusmessage, None, (), ())
        names = tuple(column.name for column in cursor.description)
        types = tuple(column.type_code for column in cursor.description)
        return cls(cursor.statusmessage, names, types, cursor.fetchall())


def as_written(connection: Connection) -> None:
    """Have all values of the connection's results be text as PostgreSQL writes it."""
    extensions.register_type(_AS_WRITTEN, connection.raw)


# In columns, as psql prints them

# int8, int2, int4, oid, float4, float8, money, numeric: by pg_type.oid, and right-aligned.
_NUMBERS = frozenset((20, 21, 23, 26, 700, 701, 790, 1700))
# Control characters would break the columns, and may do things to a terminal.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {9: "\\t", 13: "\\r"}


def aligned(results: Sequence[Result]) -> Iterator[str]:
    """The lines of all results that have rows, with an empty line between two."""
    for number, result in enumerate(one for one in results if one.columns is not None):
        if number:
            yield ""
        yield from _table(result)


def _table(result: Result) -> Iterator[str]:
    names = [_cell(name) for name in result.columns or ()]
    rows = [[_cell(value) for value in row] for row in result.rows]
    widths = [max(map(_width, (line for cell in column for line in cell))) for column in zip(names, *rows)]  # noqa: B905  # all are as long as the names
    numbers = [type_ in _NUMBERS for type_ in result.types]
    yield from _row(names, widths, [False] * len(names))
    yield "-+-".join("-" * width for width in widths)
    for row in rows:
        yield from _row(row, widths, numbers)
    yield f"({len(rows)} row{'' if len(rows) == 1 else 's'})"


def _row(cells: Sequence[list[str]], widths: Sequence[int], numbers: Sequence[bool]) -> Iterator[str]:
    """A line for each line of the cell that has the most."""
    for line in zip_longest(*cells, fillvalue=""):
        padded = [
            " " * (width - _width(text)) + text if number else text + " " * (width - _width(text))
            for text, width, number in zip(line, widths, numbers, strict=True)
        ]
        yield " | ".join(padded).rstrip(" ")


def _cell(value: str | None) -> list[str]:
    return [line.translate(_VISIBLE) for line in (value or "").split("\n")]


def _width(text: str) -> int:
    """How many columns of a terminal it takes."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.category(one) in ("Mn", "Me", "Cf")
        else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )


# As CSV


def csv(results: Sequence[Result]) -> Iterator[str]:
    """As COPY writes it with a header: null is an empty cell, and an empty string is quoted. An empty line is between
    two results."""
    for number, result in enumerate(one for one in results if one.columns is not None):
        if number:
            yield ""
        for row in (result.columns or (), *result.rows):
            yield ",".join(map(_csv_cell, row))


def _csv_cell(value: str | None) -> str:
    if value is None:
        return ""
    if value in ("", "\\.") or any(one in value for one in '",\r\n'):
        doubled = value.replace('"', '""')
        return f'"{doubled}"'
    return value


# As JSON


def as_json(result: Result) -> dict[str, Any]:
    """Rows are lists, because names of columns may be the same."""
    return {
        "command": result.command,
        "columns": result.columns,
        "rows": [
            [_json(value, type_) for value, type_ in zip(row, result.types, strict=True)]
            for row in result.rows
        ],
    }


def _float(text: str) -> float | str:
    value = float(text)
    return value if isfinite(value) else text


# By pg_type.oid: bool, int8, int2, int4, oid, json, float4, float8, jsonb.
_AS_JSON: dict[int, Callable[[str], Any]] = {
    16: lambda text: text == "t",
    **dict.fromkeys((20, 21, 23, 26), int),
    **dict.fromkeys((114, 3802), orjson.Fragment),
    **dict.fromkeys((700, 701), _float),
}


def _json(value: str | None, type_: int) -> Any:
    """The value as JSON if its type has an equivalent there, otherwise as text."""
    return _AS_JSON.get(type_, str)(value) if value is not None else None
