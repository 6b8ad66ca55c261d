"""Bodies with a row on each line, CSV and NDJSON, read as they arrive: after each piece, the rows that are complete.

A row is the JSON object that PostgreSQL gets, with the number of the line that it begins on, counted from 1.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator, Set
from typing import Protocol

import orjson
from attrs import define, field

from project_service.tables import errors
from project_service.tables.request.json_text import in_order, value_of

Row = tuple[int, bytes]

# Each line's object repeats the columns' names. A cell takes at least one byte, and a name in PostgreSQL has at most
# 63, so the JSON is at most so many times larger. Longer names are rejected where gigabytes would be made of a
# small body.
MAX_GROWTH = 63
# Spreadsheets begin the CSV that they write with a byte order mark. It is no part of the first column's name.
_MARK = b"\xef\xbb\xbf"
# Lifts Python's limit of 128 KiB for a cell. The size of a body, or of one of its rows, is limited where it is read.
csv.field_size_limit(sys.maxsize)


class Lines(Protocol):
    """Reads a body. ``keys`` are the members of its rows, ordered by name: the ``columns`` that the request names, or
    else those of the first row; None until there is one."""

    keys: tuple[str, ...] | None

    @property
    def kept_bytes(self) -> int:
        """About how many bytes of a row that is not complete are kept."""

    def read(self, data: bytes, last: bool = False) -> list[Row]:
        """The rows that are complete with ``data``, the next bytes of the body. ``last``: no more will come.

        Raises PGRST102 with the number of the line for one that cannot be read or is larger than ``max_bytes``.
        """


@define
class _WholeLines:
    """The bytes up to the last line feed, each time there are more; what comes after it is kept for the next time."""

    max_bytes: int
    _kept: bytearray = field(factory=bytearray, init=False)
    _begun: bool = field(default=False, init=False)

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return len(self._kept)

    def after(self, data: bytes, last: bool, line: int) -> bytes:
        """The lines that are complete with ``data``. ``line`` is the number of the first of them."""
        whole, end = b"", len(data) if last else data.rfind(b"\n") + 1
        if end or last:
            whole = bytes(self._kept) + data[:end]
            self._kept.clear()
        self._kept += data[end:]
        if self.size > self.max_bytes:
            raise errors.at_line(errors.row_too_large(self.max_bytes), line + whole.count(b"\n"))
        if whole and not self._begun:
            self._begun = True
            whole = whole.removeprefix(_MARK)
        return whole


@define
class JsonLines:
    """NDJSON: an object on each line, all with the same members unless ``columns`` names those to use. Lines without
    anything on them are left out. See ``Lines``."""

    columns: tuple[str, ...] | None
    max_bytes: int
    keys: tuple[str, ...] | None = field(init=False)
    _whole: _WholeLines = field(init=False)
    _line: int = field(default=1, init=False)
    _expected: Set[str] | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.keys = None if self.columns is None else in_order(self.columns)
        self._whole = _WholeLines(self.max_bytes)

    @property
    def kept_bytes(self) -> int:
        return self._whole.size

    def read(self, data: bytes, last: bool = False) -> list[Row]:
        rows = []
        block = self._whole.after(data, last, self._line)
        for line in block.removesuffix(b"\n").split(b"\n") if block else ():
            text = line.strip(b" \t\r")
            if text:
                self._check(text)
                rows.append((self._line, text))
            self._line += 1
        return rows

    def _check(self, text: bytes) -> None:
        if len(text) > self.max_bytes:
            raise errors.at_line(errors.row_too_large(self.max_bytes), self._line)
        try:
            row = value_of(text)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise errors.at_line(errors.invalid_body("Each line must be a JSON object"), self._line)
        if self.keys is None:
            self._expected = row.keys()
            self.keys = in_order(row)
        elif self._expected is not None and row.keys() != self._expected:
            raise errors.at_line(errors.keys_differ(), self._line)


# Cells, as far as they are whole, with what separates them; and the rest of a cell in quotes. Possessive, so that no
# text is looked at twice.
_CELLS = re.compile(r'(?:"(?:[^"]++|"")*+"(?=[,\r\n]|\Z)|[^",\r\n][^,\r\n]*+|[,\r\n]++)*+')
_REST_OF_CELL = re.compile(r'(?:[^"]++|"")*+"(?!")')


def _leaves_open(line: str, is_open: bool) -> bool:
    """Whether a cell in quotes goes on behind ``line``, given whether one did before it.

    False also for what is not CSV: there is nothing to wait for then.
    """
    if '"' not in line:
        return is_open
    begin = 0
    if is_open:
        rest = _REST_OF_CELL.match(line)
        if rest is None:
            return True
        begin = rest.end()
    cells = _CELLS.match(line, begin)
    assert cells is not None
    end = cells.end()
    return end < len(line) and _REST_OF_CELL.match(line, end + 1) is None


@define
class CsvLines:
    """CSV (RFC 4180) with a line of names. The cell ``NULL`` is null, unless it is quoted; empty lines are left out.
    See ``Lines``.

    A row is parsed once it is complete. Until then only its new lines are looked at, for whether its last cell in
    quotes has ended: so a body takes time by its length, in whatever pieces it comes.
    """

    columns: tuple[str, ...] | None
    max_bytes: int
    keys: tuple[str, ...] | None = field(default=None, init=False)
    _whole: _WholeLines = field(init=False)
    # The first line that has not been read, and the text from there on, if it is the beginning of a row whose quoted
    # cell goes on. Not line by line: there may be half a million.
    _line: int = field(default=1, init=False)
    _begun: list[str] = field(factory=list, init=False)
    _begun_lines: int = field(default=0, init=False)
    _begun_size: int = field(default=0, init=False)
    _names: list[str] | None = field(default=None, init=False)
    # How many characters the names have, which the object of each row repeats.
    _growth: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._whole = _WholeLines(self.max_bytes)

    @property
    def kept_bytes(self) -> int:
        return self._whole.size + self._begun_size

    def read(self, data: bytes, last: bool = False) -> list[Row]:
        block = self._whole.after(data, last, self._line + self._begun_lines)
        size = len(block) + self._begun_size
        records = self._records(self._complete(self._decoded(block), last))
        if self._names is None:
            first = next(records, None)
            if first is not None:
                self._names = as_names(first[1])
                self._growth = sum(map(len, self._names))
                self.keys = in_order(self._names if self.columns is None else self.columns)
            elif last:
                raise errors.invalid_body("Empty or invalid CSV")
        return self._objects(records, size)

    def _decoded(self, block: bytes) -> str:
        try:
            return marked(block.decode("utf-8"))
        except UnicodeDecodeError as fault:
            line = self._line + self._begun_lines + block.count(b"\n", 0, fault.start)
            raise errors.at_line(errors.invalid_body(f"Invalid CSV: {fault.reason}"), line) from None

    def _complete(self, block: str, last: bool) -> str:
        """The rows that are complete with ``block``. The text of one that goes on is kept."""
        is_open = bool(self._begun)
        if not is_open and '"' not in block:
            return block
        # How far the last row that is complete goes, and the one that is not from there.
        end, ended, lines, size = 0, 0, self._begun_lines, self._begun_size
        at = 0
        for line in io.StringIO(block, newline=""):
            at += len(line)
            lines += 1
            size += len(line)
            is_open = _leaves_open(line, is_open)
            if not is_open:
                end, ended, size = at, lines, 0
        if last:
            end, ended, size = at, lines, 0
        if size > self.max_bytes:
            raise errors.at_line(errors.row_too_large(self.max_bytes), self._line + ended)
        complete = "".join([*self._begun, block[:end]]) if ended else ""
        if ended:
            self._begun.clear()
        if size:
            self._begun.append(block[end:])
        self._begun_lines, self._begun_size = lines - ended, size
        return complete

    def _records(self, text: str) -> Iterator[tuple[int, list[str]]]:
        """The rows' cells, each with its line."""
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        before, done = self._line, 0
        try:
            for cells in reader:
                if cells:
                    yield before + done, cells
                done = reader.line_num
        except csv.Error as fault:
            raise errors.at_line(errors.invalid_body(f"Invalid CSV: {fault}"), before + done) from None
        self._line = before + done

    def _objects(self, records: Iterable[tuple[int, list[str]]], size: int) -> list[Row]:
        """The rows of ``records``, which had ``size`` bytes."""
        rows, names, made = [], self._names or [], 0
        for line, cells in records:
            made += self._growth
            if len(cells) != len(names):
                raise errors.at_line(errors.fields_differ(), line)
            if made > MAX_GROWTH * size:
                raise errors.at_line(errors.names_too_long(), line)
            given = cells if NULLS.isdisjoint(cells) else with_nulls(cells)
            rows.append((line, orjson.dumps(dict(zip(names, given, strict=True)))))
        return rows


# A cell ``"NULL"``, which in quotes is text. Quotes behind a separator begin a cell: within one they are doubled.
_QUOTED_NULL = re.compile(r'(?<![^,\r\n])"NULL"(?![^,\r\n])')
# What it is until the cells are parsed, which takes the quotes away. No text that was UTF-8 has a surrogate.
_TEXT = "NULL\udc00"
NULLS = frozenset({"NULL", _TEXT})


def marked(text: str) -> str:
    """CSV in which ``with_nulls`` can tell the text NULL from null."""
    return _QUOTED_NULL.sub(f'"{_TEXT}"', text) if '"NULL"' in text else text


def with_nulls(cells: list[str]) -> list[str | None]:
    """The values of the cells of ``marked`` CSV."""
    return [None if cell == "NULL" else "NULL" if cell == _TEXT else cell for cell in cells]


def as_names(cells: list[str]) -> list[str]:
    """The names in the first line of ``marked`` CSV."""
    return ["NULL" if cell == _TEXT else cell for cell in cells]


def whole_rows(body: bytes, columns: tuple[str, ...] | None) -> tuple[list[bytes], tuple[str, ...]]:
    """The rows of a body of NDJSON, and their members. Raises as ``Lines.read``."""
    lines = JsonLines(columns, len(body))
    rows = [row for _, row in lines.read(body, last=True)]
    return rows, lines.keys or ()
