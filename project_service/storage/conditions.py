"""Conditional requests (RFC 9110 section 13). Pure but for Werkzeug's header parsers."""

from __future__ import annotations

from datetime import datetime, timedelta

from werkzeug.http import parse_date, parse_etags, parse_if_range_header

from project_service.errors import ApiError
from project_service.http.headers import HeaderView
from project_service.storage import errors
from project_service.storage.model import UNCONDITIONAL, Conditions, ObjectRow, Writer
from project_service.storage.ranges import parse_range

_CONDITIONAL = frozenset({b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since"})


def for_read(headers: HeaderView, row: ObjectRow) -> bool:
    """Whether a GET or HEAD is answered with 304; raises ``precondition_failed``. The order is section 13.2.2's."""
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
    """Whether ``Range`` counts, by ``If-Range`` (section 13.1.5): only if nothing changed since.

    ``now`` is when the response is made. A date counts only as a strong validator (section 8.8.2.2): there were no
    other bytes within its second, and that second is over, so that there cannot be any.
    """
    text = headers.text(b"if-range")
    if text is None:
        return True
    if text.startswith("W/"):
        return False
    try:
        stated = parse_if_range_header(text)
    except OverflowError:
        # A date outside Python's calendar cannot be this object's.
        return False
    if stated.date is not None:
        over = row.modified + timedelta(seconds=1) <= now
        return row.modified == stated.date and over and not row.changed_twice
    return stated.etag == row.etag


def continues(headers: HeaderView, row: ObjectRow) -> bool:
    """Whether the request goes on with a download that broke off: it knows the ETag, and leaves out the beginning."""
    stated = headers.text(b"if-range") or ""
    if stated != f'"{row.etag}"':
        return False
    try:
        part = parse_range(headers.text(b"range"), row.size)
    except ApiError:
        return False
    return part is not None and part.first > 0


def for_write(headers: HeaderView) -> Conditions:
    if _CONDITIONAL.isdisjoint(headers.first):
        return UNCONDITIONAL
    if_match, if_none_match = _tags(headers, b"if-match"), _tags(headers, b"if-none-match")
    since = None if if_match is not None else _date(headers, b"if-unmodified-since")
    return Conditions(if_match, if_none_match, since)


def refusal(row: ObjectRow | None, guarded: bool, writer: Writer, stated: Conditions) -> str | None:
    """The outcome that the SQL function ``storage.refusal`` would give, for refusing early; None where it would
    allow.

    ``guarded`` says that only the object's owner may write.
    """
    if row is None:
        return None if stated.if_match is None else "precondition_failed"
    if guarded and row.owner != writer.user_id:
        return "not_owner"
    if stated.if_none_match is not None:
        if "*" in stated.if_none_match:
            return "object_exists"
        if row.etag in stated.if_none_match:
            return "precondition_failed"
    if stated.if_match is not None and not {"*", row.etag} & set(stated.if_match):
        return "precondition_failed"
    return None if _unmodified(row, stated) else "precondition_failed"


def without_date(row: ObjectRow | None, stated: Conditions) -> Conditions:
    """``stated`` with its date replaced by entity tags, which are all that the database compares.

    The date is checked here against ``row``; the tags then make sure that the object is still the one in ``row``, or
    still missing. Raises ``precondition_failed`` where it has changed since the date. For an object that does not
    exist the date is ignored (section 13.1.4).
    """
    if row is None:
        return Conditions(if_none_match=("*",))
    if not _unmodified(row, stated):
        raise errors.precondition_failed()
    return Conditions((row.etag,), stated.if_none_match)


def _unmodified(row: ObjectRow, stated: Conditions) -> bool:
    return stated.unmodified_since is None or row.modified <= stated.unmodified_since


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
    """A date that cannot be read counts as absent (section 13.1.3)."""
    try:
        return parse_date(headers.text(name))
    except OverflowError:
        return None
