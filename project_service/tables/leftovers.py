"""What SQL can leave on a connection besides settings, which RESET ALL is for."""

from __future__ import annotations

import psycopg2

from project_service.database.session import DatabaseGone, Session


async def clear(session: Session) -> None:
    """After a request that may have left something; a connection on which that fails is not used again.

    Settings first: by another search path a function of the application's would be called for PostgreSQL's own.
    """
    if not session.usable:
        return
    try:
        await session.execute(
            "RESET ALL; SELECT pg_catalog.pg_advisory_unlock_all(); UNLISTEN *; CLOSE ALL; DISCARD TEMP"
        )
    except (psycopg2.Error, DatabaseGone):
        session.discard()
