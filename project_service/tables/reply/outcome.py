"""What a statement returned, and what is learned from it for the next runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from attrs import define

from project_service.database.quickness import Quickness
from project_service.frozen import quick


@quick
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
    """The outcome of a read or a call, from the one row that its statement returns. Its numbers may be texts."""
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
    """The same for a write."""
    updated, rows, location, body, headers, status, *counted = row
    keys = tuple(orjson.loads(location)) if location is not None else None
    return Outcome(
        int(rows),
        None,
        as_bytes(body),
        keys,
        headers if headers is None else as_bytes(headers),
        status if status is None else as_bytes(status),
        int(updated) if updated else 0,
        written=int(counted[0]) if counted else None,
        chosen=int(counted[1]) if len(counted) > 1 else None,
    )


def as_bytes(value: Any) -> bytes:
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else bytes(value)


# PostgreSQL needs longer to make one body of more rows than these than to open a cursor.
MAX_PROBED_ROWS = 10_000
# The first number where nothing is known of the size: for views, partitioned and foreign tables, or before ANALYZE.
UNKNOWN_ROWS = 100


@define
class Probe:
    """How many rows to read at once, to see whether a result fits into one reply; what does not fit is streamed.

    PostgreSQL makes a body of at most ``rows`` rows and leaves out one of more than ``threshold_bytes``, so a single
    statement answers whatever fits. The number follows from the size of rows, which is learned from earlier results:
    for a relation and what is selected of it, and not for each request.
    """

    rows: int
    threshold_bytes: int

    @classmethod
    def first(cls, row_bytes: int, threshold_bytes: int) -> Probe:
        """The probe for a statement that has not been run yet. ``row_bytes`` is what the catalog says of a row's
        size, 0 where it says nothing."""
        limit = MAX_PROBED_ROWS if row_bytes else UNKNOWN_ROWS
        return cls(max(1, min(limit, threshold_bytes // max(row_bytes, 1))), threshold_bytes)

    def fits(self, outcome: Outcome, allowed: int) -> bool:
        """Whether ``outcome`` has the whole result, given that ``allowed`` rows were read."""
        return outcome.rows <= allowed and outcome.size <= self.threshold_bytes

    def again(self, outcome: Outcome, allowed: int) -> bool:
        """Learn from an outcome that did not fit. True where it is worth running the statement again, because many
        more rows than ``allowed`` would have fitted."""
        likely = self.threshold_bytes * outcome.rows // max(outcome.size, 1)
        # A quarter more, since rows differ, but never more than ``allowed`` where those were too large.
        likely = max(1, min(MAX_PROBED_ROWS, likely + likely // 4))
        if outcome.size > self.threshold_bytes:
            self.rows = min(allowed, likely)
            return False
        self.rows = max(allowed, likely)
        return likely >= 2 * allowed


@define(eq=False)
class History(Quickness):
    """How the earlier runs of a statement went. ``streamed``: its last result was too large for one piece."""

    streamed: bool = False
