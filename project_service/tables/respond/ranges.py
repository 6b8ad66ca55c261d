"""``Content-Range`` and the statuses that go with it."""

from __future__ import annotations

from project_service.tables import errors


def content_range(offset: int, rows: int, total: int | None) -> str:
    known = "*" if total is None else str(total)
    return f"{offset}-{offset + rows - 1}/{known}" if rows else f"*/{known}"


def status_of_range(offset: int, rows: int, total: int | None) -> int:
    """200 for all rows, 206 for a part. Raises PGRST103 for a range that begins after the end."""
    if total is None:
        return 200
    if offset > total:
        details = f"An offset of {offset} was requested, but there are only {total} rows."
        raise errors.unsatisfiable_range(details, content_range(0, 0, total))
    return 206 if rows < total else 200
