"""The ``Range`` header, counted in rows. PostgREST's reference: "Limits and Pagination"."""

from __future__ import annotations

import re
from typing import NoReturn

from project_service.tables import errors
from project_service.tables.syntax import Range
from project_service.whole_numbers import from_digits

_RANGE = re.compile(r"([0-9]+)-([0-9]+)?")


def parse_range(header: str | None) -> Range:
    """The rows from first to last, both included. A header in another form asks for every row."""
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None:
        return Range()
    first, last = (from_digits(digits or "") for digits in found.groups())
    assert first is not None
    if last is None:
        return Range(first)
    if last < first:
        raise errors.unsatisfiable_range(
            "The lower boundary must be lower than or equal to the upper boundary in the Range header."
        )
    return Range(first, last - first + 1)


def limited(limit: int | None) -> Range:
    """The first ``limit`` rows, or all for None. Raises PGRST103 where it is negative."""
    if limit is not None and limit < 0:
        refuse()
    return Range(0, limit)


def window(offset: int, limit: int) -> Range | None:
    """The rows from ``offset`` on, ``limit`` of them, without those at negative positions. None if no row is left,
    except that an offset and limit of 0 are a valid (empty) range."""
    if offset == limit == 0:
        return Range(0, 0)
    first, end = max(0, offset), offset + limit
    return Range(first, end - first) if end > first else None


def intersect(a: Range, b: Range) -> Range:
    """The rows that are in both ranges. Raises PGRST103 where there can be none, unless none were asked for."""
    offset = max(a.offset, b.offset)
    ends = [r.offset + r.limit for r in (a, b) if r.limit is not None]
    if not ends:
        return Range(offset)
    end = min(ends)
    if offset and end <= offset:
        refuse()
    return Range(offset, end - offset)


def refuse() -> NoReturn:
    raise errors.unsatisfiable_range("Limit should be greater than or equal to zero.")
