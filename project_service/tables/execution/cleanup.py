"""Clears what SQL may leave behind on a connection besides settings (which RESET ALL takes away)."""

from __future__ import annotations

import psycopg2

from project_service.database.session import DatabaseGone, Session


async def clear(session: Session) -> None:
    """Release locks, temporary tables, cursors and channels that a request may have left behind.

    A connection on which that fails is never used again. Settings are reset first: with another search path, a
    function of the application might be called in place of PostgreSQL's own.
    """
    if not session.usable:
        return
    try:
        await session.execute(
            "RESET ALL; SELECT pg_catalog.pg_advisory_unlock_all(); UNLISTEN *; CLOSE ALL; DISCARD TEMP"
        )
    except (psycopg2.Error, DatabaseGone):
        session.discard()
