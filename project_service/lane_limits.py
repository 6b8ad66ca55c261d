"""The lanes of ``http.overload.admission`` from the settings: how many requests of each part are served at a time.

A lane is named as ``http.overload.lanes`` names it.
"""

from __future__ import annotations

from collections.abc import Iterator

from project_service.auth.hashing import QUEUE_PER_THREAD
from project_service.http.overload.admission import Limits
from project_service.settings.model import Settings, StageDatabase

# How many requests are served beyond the number of database connections, so that no connection is idle while a
# request is being read or answered. With more, requests would wait for a connection after everything has been made
# for them; a request that waits in its lane has cost next to nothing yet.
PLACES_MORE = 2
LEAST_STORAGE_PLACES = 16
# In lanes where passwords are hashed, no single client may have the last two places: a few logins per second keep all
# threads busy.
SPARE = 2


def lanes(settings: Settings, threads: int) -> dict[str, Limits]:
    """The limits by lane. ``settings`` are one process's share; ``threads`` is how many threads hash its
    passwords."""
    # Hashing takes a quarter of a second for each login, so waiting is normal in the lane of passwords: it is no sign
    # of overload there until a request has waited for as long as it may (``short_seconds`` is the whole patience).
    waiting, patience = settings.server.max_waiting, settings.database.acquire_timeout_seconds
    found = {
        "auth": Limits(settings.database.pool_size + PLACES_MORE, waiting, patience),
        "passwords": Limits(
            2 * threads + SPARE, min(waiting, QUEUE_PER_THREAD * threads), patience, patience, SPARE
        ),
        "storage": Limits(max(settings.store.max_connections, LEAST_STORAGE_PLACES), waiting, patience),
    }
    for lane, database in _databases(settings):
        found[lane] = Limits(database.pool_size + PLACES_MORE, waiting, patience)
    return found


def trace_headers(settings: Settings) -> dict[str, str]:
    """The name of the header that is sent back to the client, by lane, for databases that have ``trace_header``."""
    return {lane: one.trace_header for lane, one in _databases(settings) if one.trace_header is not None}


def _databases(settings: Settings) -> Iterator[tuple[str, StageDatabase]]:
    """Every database of the table API with the name of its lane."""
    for stage, name, database in settings.stage_databases():
        yield f"tables:{stage}/{name}", database
