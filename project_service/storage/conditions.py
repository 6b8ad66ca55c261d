"""Conditional requests (RFC 9110 section 13). Pure but for Werkzeug's header parsers."""

from __future__ import annotations

from datetime import datetime

from werkzeug.http import parse_date, parse_etags, parse_if_range_header

from project_service.http.headers import HeaderView
from project_service.storage import errors
from project_service.storage.model import Conditions, ObjectRow


def for_read(headers: HeaderView, row: ObjectRow) -> bool:
    """Whether a GET or HEAD is answered with 304; raises ``precondition_failed``. The order is section 13.2.2's."""
    if_match = _joined(headers, b"if-match")
    if if_match is not None:
        if not parse_etags(if_match).contains(row.etag):
            raise errors.precondition_failed()
    elif (since := _date(headers, b"if-unmodified-since")) is not None and _whole_second(
        row.updated_at
    ) > since:
        raise errors.precondition_failed()
    if_none_match = _joined(headers, b"if-none-match")
    if if_none_match is not None:
        return parse_etags(if_none_match).contains_weak(row.etag)
    since = _date(headers, b"if-modified-since")
    return since is not None and _whole_second(row.updated_at) <= since


def range_applies(headers: HeaderView, row: ObjectRow) -> bool:
    """Whether ``Range`` counts, by ``If-Range`` (section 13.1.5): only if nothing changed since."""
    text = headers.text(b"if-range")
    if text is None:
        return True
    if text.strip().startswith("W/"):
        return False
    try:
        stated = parse_if_range_header(text)
    except OverflowError:
        # A date beyond all calendars is no validator of this object.
        return False
    if stated.date is not None:
        return _whole_second(row.updated_at) == stated.date
    return stated.etag == row.etag


def for_write(headers: HeaderView) -> Conditions:
    return Conditions(_tags(headers, b"if-match"), _tags(headers, b"if-none-match"))


def _tags(headers: HeaderView, name: bytes) -> tuple[str, ...] | None:
    text = _joined(headers, name)
    if text is None:
        return None
    tags = parse_etags(text)
    if tags.star_tag:
        return ("*",)
    # Werkzeug has None for the empty tag.
    return tuple(sorted(tag or "" for tag in tags.as_set(include_weak=name == b"if-none-match")))


def _joined(headers: HeaderView, name: bytes) -> str | None:
    values = headers.all(name)
    return b", ".join(values).decode("latin-1") if values else None


def _date(headers: HeaderView, name: bytes) -> datetime | None:
    """A date that cannot be read counts as absent (section 13.1.3)."""
    try:
        return parse_date(headers.text(name))
    except OverflowError:
        return None


def _whole_second(moment: datetime) -> datetime:
    """Last-Modified is sent in whole seconds, so it is compared in them."""
    return moment.replace(microsecond=0)
