"""The lanes of ``http.overload`` from the settings: how many requests of each part are served at a time.

A lane is named as ``http.overload.lanes`` names it.
"""

from __future__ import annotations

from collections.abc import Iterator

from project_service.http.overload.admission import Limits
from project_service.settings.model import Settings, StageDatabase

# How many requests are served beyond the number of database connections, so that no connection is idle while a
# request is being read or answered. With more, requests would wait for a connection after everything has been made
# for them; a request that waits in its lane has cost next to nothing yet.
PLACES_MORE = 2
LEAST_STORAGE_PLACES = 16
# For each thread that hashes passwords: one is hashed while the next is made ready.
PLACES_PER_THREAD = 2


def lanes(settings: Settings, threads: int) -> dict[str, Limits]:
    """The limits by lane. ``settings`` are one process's share; ``threads`` is how many threads hash its
    passwords."""
    places = {
        "auth": settings.database.pool_size + PLACES_MORE,
        "passwords": threads * PLACES_PER_THREAD,
        "storage": max(settings.store.max_connections, LEAST_STORAGE_PLACES),
    }
    for lane, database in _databases(settings):
        places[lane] = database.pool_size + PLACES_MORE
    return {lane: Limits(count, settings.database.acquire_timeout_seconds) for lane, count in places.items()}


def trace_headers(settings: Settings) -> dict[str, str]:
    """The name of the header that is sent back to the client, by lane, for databases that have ``trace_header``."""
    return {lane: one.trace_header for lane, one in _databases(settings) if one.trace_header is not None}


def _databases(settings: Settings) -> Iterator[tuple[str, StageDatabase]]:
    """Every database of the table API with the name of its lane."""
    for stage, name, database in settings.stage_databases():
        yield f"tables:{stage}/{name}", database
