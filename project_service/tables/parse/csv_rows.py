"""CSV as the JSON that PostgreSQL gets: an array with one object for each line."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from itertools import islice

import orjson
from attrs import field, frozen

from project_service.tables import errors

# How many lines are objects at a time: a megabyte may have half a million, which would take 150 MB.
_LINES = 500
# Each line's object repeats the columns' names. A cell takes at least one byte, and a name in PostgreSQL has at most
# 63, so the JSON is at most so many times larger. Longer names are refused where they would make gigabytes of a small
# body.
_MOST_AS_NAMES = 63
# Lifts Python's limit of 128 KiB for a cell. The size of a body is limited where it is read.
csv.field_size_limit(sys.maxsize)


@frozen
class CsvRows:
    """``names`` are those of the first line, and ``json`` is an array of the ``count`` lines below it."""

    names: tuple[str, ...]
    count: int
    json: str = field(repr=False)


def read_csv(body: bytes) -> CsvRows:
    """Read CSV (RFC 4180) with a line of names. The cell ``NULL`` is null; empty lines are left out. Raises
    PGRST102."""
    try:
        # Spreadsheets begin the CSV that they write with a byte order mark. It is no part of the first column's name.
        text = body.decode("utf-8-sig")
        return _read(filter(None, csv.reader(io.StringIO(text, newline=""), strict=True)), len(body))
    except (UnicodeDecodeError, csv.Error) as fault:
        raise errors.invalid_body(f"Invalid CSV: {fault}") from None


def _read(lines: Iterator[list[str]], size: int) -> CsvRows:
    names = next(lines, None)
    if names is None:
        raise errors.invalid_body("Empty or invalid CSV")
    length_of_names = sum(map(len, names))
    count, pieces = 0, []
    while some := list(islice(lines, _LINES)):
        if {*map(len, some)} != {len(names)}:
            raise errors.invalid_body("All lines must have same number of fields")
        count += len(some)
        if length_of_names * count > _MOST_AS_NAMES * size:
            raise errors.invalid_body("The names of the columns are too long for so many lines")
        pieces.append(_objects(names, some))
    return CsvRows(tuple(names), count, f"[{b','.join(pieces).decode()}]")


def _objects(names: list[str], lines: list[list[str]]) -> bytes:
    """The lines' objects with commas between. One expression, since there may be a line for every two bytes."""
    objects = [dict(zip(names, line if "NULL" not in line else _nulled(line))) for line in lines]  # noqa: B905  # as long as each other
    return orjson.dumps(objects)[1:-1]


def _nulled(line: list[str]) -> list[str | None]:
    return [None if cell == "NULL" else cell for cell in line]
