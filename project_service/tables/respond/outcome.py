"""The one row that a statement returns, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from attrs import frozen

from project_service.errors import Headers
from project_service.tables import errors
from project_service.tables.headers import is_header, settable, status_of
from project_service.whole_numbers import from_digits


@frozen
class Outcome:
    """What a statement returned (see ``sql.statement.Statement``).

    ``rows`` is the number of rows in the body, ``total`` the number without the range, if it was asked for. ``size``
    is the length of the body in bytes, also if it was left out because of that. If it is not ``whole``, there are
    more rows or bytes than are sent in one piece. ``written`` is the number of rows that were written, or that a
    function made, where the body may show fewer. ``chosen`` is how many a limited write was to affect, where it may
    have affected more. ``location`` is the primary key of an inserted row; ``headers`` and ``status`` are what SQL
    set for the response.
    """

    rows: int = 0
    total: int | None = None
    body: bytes = b""
    location: tuple[str | None, ...] | None = None
    headers: bytes | None = None
    status: bytes | None = None
    updated: int = 0
    size: int = 0
    whole: bool = True
    written: int | None = None
    chosen: int | None = None

    @property
    def affected(self) -> int:
        return self.rows if self.written is None else self.written

    @property
    def inserted(self) -> int:
        # Never negative: a trigger may drop a row after it was counted as updated.
        return max(0, self.affected - self.updated)


def outcome_of_read(row: Sequence[Any]) -> Outcome:
    """Of the statement's row, whose numbers may be texts."""
    total, rows, body, headers, status, *more = row
    return Outcome(
        int(rows),
        None if total is None else int(total),
        body if body.__class__ is bytes else as_bytes(body),
        None,
        headers if headers is None else as_bytes(headers),
        status if status is None else as_bytes(status),
        size=int(more[0] or 0) if more else 0,
        written=int(more[1]) if len(more) > 1 else None,
    )


def outcome_of_write(row: Sequence[Any]) -> Outcome:
    updated, rows, location, body, headers, status, *counted = row
    keys = tuple(orjson.loads(location)) if location is not None else None
    return Outcome(
        int(rows),
        None,
        as_bytes(body),
        keys,
        _optional(headers),
        _optional(status),
        int(updated) if updated else 0,
        written=int(counted[0]) if counted else None,
        chosen=int(counted[1]) if len(counted) > 1 else None,
    )


def as_bytes(value: Any) -> bytes:
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else bytes(value)


def _optional(value: Any) -> bytes | None:
    return None if value is None else as_bytes(value)


def headers_from_sql(outcome: Outcome) -> Headers:
    """The headers in ``response.headers``, a JSON array of objects with one member each. Raises PGRST111 for anything
    else."""
    if outcome.headers is None:
        return ()
    try:
        found = orjson.loads(outcome.headers)
    except ValueError:
        raise errors.invalid_response_headers() from None
    if not isinstance(found, list):
        raise errors.invalid_response_headers()
    headers = []
    for item in found:
        if not isinstance(item, dict) or len(item) != 1:
            raise errors.invalid_response_headers()
        ((name, value),) = item.items()
        if not is_header(name, value):
            raise errors.invalid_response_headers()
        headers.append((name, value))
    return settable(headers)


def status_from_sql(outcome: Outcome) -> int | None:
    """The status in ``response.status``. Raises PGRST112 if it is none."""
    if outcome.status is None:
        return None
    status = status_of(from_digits(outcome.status.decode()))
    if status is None:
        raise errors.invalid_response_status()
    return status
