"""What the edge asks by lane, from the settings: how many requests are served at once, which header comes back."""

from __future__ import annotations

from collections.abc import Iterator

from project_service.auth.hashing import QUEUE_PER_THREAD
from project_service.http.admission import Limits
from project_service.settings import Settings, StageDatabase

# Beyond the connections, so that none is idle while a request is read or answered. More would only wait for one with
# everything made that they need, and that costs: what waits in its lane is next to nothing yet.
PLACES_MORE = 2
LEAST_STORAGE_PLACES = 16


def lanes(settings: Settings, threads: int) -> dict[str, Limits]:
    """``settings`` are one process's share; ``threads`` hash its passwords."""
    # A login takes a quarter of a second by itself: a queue of some is in order, as long as it ends.
    waiting, patience = settings.server.max_waiting, settings.database.acquire_timeout_seconds
    found = {
        "auth": Limits(settings.database.pool_size + PLACES_MORE, waiting, patience),
        "passwords": Limits(2 * threads + 2, min(waiting, QUEUE_PER_THREAD * threads), patience, patience),
        "storage": Limits(max(settings.store.max_connections, LEAST_STORAGE_PLACES), waiting, patience),
    }
    for lane, database in _databases(settings):
        found[lane] = Limits(database.pool_size + PLACES_MORE, waiting, patience)
    return found


def trace_headers(settings: Settings) -> dict[str, str]:
    """For those databases that have one."""
    return {lane: one.trace_header for lane, one in _databases(settings) if one.trace_header is not None}


def _databases(settings: Settings) -> Iterator[tuple[str, StageDatabase]]:
    """Each with its lane."""
    for stage_name, stage in settings.stages.items():
        for name, database in stage.databases.items():
            yield f"tables:{stage_name}/{name}", database
