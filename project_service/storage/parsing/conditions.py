"""Ranges and conditional requests (RFC 9110 sections 14 and 13). Pure but for Werkzeug's header parsers."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from attrs import evolve, frozen
from werkzeug.http import parse_date, parse_etags, parse_if_range_header

from project_service import whole_numbers
from project_service.errors import ApiError
from project_service.http.head import HeaderView
from project_service.storage import errors
from project_service.storage.values import UNCONDITIONAL, Conditions, ObjectRow

# More ranges than that are not looked at.
_MAX_RANGES = 100
_SPEC = re.compile(r"(\d*)-(\d*)", re.ASCII)


@frozen
class ByteRange:
    first: int
    length: int

    def content_range(self, size: int) -> str:
        return f"bytes {self.first}-{self.first + self.length - 1}/{size}"


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The single range of the header ``Range``, or None if the whole object is to be sent.

    That is the case for units other than bytes, which have to be ignored (section 14.2), and for several ranges,
    which may be; very many are not even looked at (section 17.15). Raises ``range_not_satisfiable`` for what is no
    range or lies outside the object.
    """
    if not header:
        return None
    unit, equals, specs = header.partition("=")
    if unit.lower() != "bytes":
        if equals and unit:
            return None
        raise errors.range_not_satisfiable(size)
    if specs.count(",") > _MAX_RANGES:
        return None
    ranges = [_resolve(stripped, size) for spec in specs.split(",") if (stripped := spec.strip())]
    if not any(ranges):
        raise errors.range_not_satisfiable(size)
    return ranges[0] if len(ranges) == 1 else None


def _resolve(spec: str, size: int) -> ByteRange | None:
    """The bytes that ``spec`` names of an object of ``size`` bytes, or None if there are none."""
    match = _SPEC.fullmatch(spec)
    if match is None or spec == "-":
        raise errors.range_not_satisfiable(size)
    # Section 14.1.2 allows any number of digits, or none on one side.
    first, last = whole_numbers.from_digits(match[1]), whole_numbers.from_digits(match[2])
    if last is None:
        last = whole_numbers.BEYOND
    if first is None:
        length = min(last, size)
        return ByteRange(size - length, length) if length else None
    if last < first:
        raise errors.range_not_satisfiable(size)
    return ByteRange(first, min(last, size - 1) - first + 1) if first < size else None


_CONDITIONAL = frozenset({b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since"})


def is_not_modified(headers: HeaderView, row: ObjectRow) -> bool:
    """Whether the response to a GET or HEAD is 304; raises ``precondition_failed``. The order is section 13.2.2's."""
    if _CONDITIONAL.isdisjoint(headers.first):
        return False
    if_match = _joined(headers, b"if-match")
    if if_match is not None:
        if not parse_etags(if_match).contains(row.etag):
            raise errors.precondition_failed()
    elif (since := _date(headers, b"if-unmodified-since")) is not None and row.modified > since:
        raise errors.precondition_failed()
    if_none_match = _joined(headers, b"if-none-match")
    if if_none_match is not None:
        return parse_etags(if_none_match).contains_weak(row.etag)
    since = _date(headers, b"if-modified-since")
    # With this very date the client may have bytes that were replaced within the second.
    return since is not None and row.modified <= since and not (row.changed_twice and row.modified == since)


def range_applies(headers: HeaderView, row: ObjectRow, now: datetime) -> bool:
    """Whether ``Range`` counts, by ``If-Range`` (section 13.1.5): only if the object has not changed.

    ``now`` is when the response is made. A date counts only as a strong validator (section 8.8.2.2): there were no
    other bytes within its second, and that second is over, so that there cannot be any.
    """
    text = headers.text(b"if-range")
    if text is None:
        return True
    if text.startswith("W/"):
        return False
    try:
        if_range = parse_if_range_header(text)
    except OverflowError:
        # A date outside Python's calendar cannot be this object's.
        return False
    if if_range.date is not None:
        over = row.modified + timedelta(seconds=1) <= now
        return row.modified == if_range.date and over and not row.changed_twice
    return if_range.etag == row.etag


def continues(headers: HeaderView, row: ObjectRow) -> bool:
    """Whether the request continues a download that broke off: it knows the ETag and leaves out the beginning."""
    if headers.text(b"if-range") != f'"{row.etag}"':
        return False
    try:
        part = parse_range(headers.text(b"range"), row.size)
    except ApiError:
        return False
    return part is not None and part.first > 0


def write_conditions(headers: HeaderView) -> Conditions:
    """The conditions of a request that changes an object."""
    if _CONDITIONAL.isdisjoint(headers.first):
        return UNCONDITIONAL
    if_match, if_none_match = _tags(headers, b"if-match"), _tags(headers, b"if-none-match")
    since = None if if_match is not None else _date(headers, b"if-unmodified-since")
    return Conditions(if_match, if_none_match, since)


def making_conditions(headers: HeaderView) -> Conditions:
    """The conditions of a request that makes an object: those of RFC 9110, and ``X-Upsert``, as Supabase's clients
    send it."""
    conditions = write_conditions(headers)
    if b"x-upsert" not in headers:
        return conditions
    return with_upsert(conditions, b",".join(headers.all(b"x-upsert")).decode("latin-1"))


def with_upsert(conditions: Conditions, upsert: str) -> Conditions:
    """``conditions``, with the one that no object is replaced unless ``upsert``, a list, says ``true`` and nothing
    else. For Supabase as well everything but ``true`` means that."""
    if {one.strip().lower() for one in upsert.split(",")} == {"true"}:
        return conditions
    return evolve(conditions, if_none_match=("*",))


def without_date(row: ObjectRow | None, conditions: Conditions) -> Conditions:
    """``conditions`` with their date replaced by entity tags, which are all that the database compares.

    The date is checked here against ``row``; the tags then make sure that the object is still the one in ``row``, or
    still missing. Raises ``precondition_failed`` if it has changed since the date. For an object that does not exist
    the date is ignored (section 13.1.4).
    """
    if row is None:
        return Conditions(if_none_match=("*",))
    if not conditions.unmodified(row):
        raise errors.precondition_failed()
    return Conditions((row.etag,), conditions.if_none_match)


def _tags(headers: HeaderView, name: bytes) -> tuple[str, ...] | None:
    text = _joined(headers, name)
    if text is None:
        return None
    tags = parse_etags(text)
    if tags.star_tag:
        return ("*",)
    # Werkzeug returns None for an empty tag ("").
    return tuple(tag or "" for tag in tags.as_set(include_weak=name == b"if-none-match"))


def _joined(headers: HeaderView, name: bytes) -> str | None:
    values = headers.all(name)
    return b", ".join(values).decode("latin-1") if values else None


def _date(headers: HeaderView, name: bytes) -> datetime | None:
    """An invalid date counts as absent (section 13.1.3)."""
    try:
        return parse_date(headers.text(name))
    except OverflowError:
        return None
