"""How many requests of each part one process serves at once, from its settings."""

from __future__ import annotations

from project_service.auth.hashing import QUEUE_PER_THREAD
from project_service.http.admission import Limits
from project_service.settings import Settings

# Each place beyond the connections is a request that is being read or answered meanwhile.
PLACES_PER_CONNECTION = 2
PLACES_MORE = 16


def lanes(settings: Settings, threads: int) -> dict[str, Limits]:
    """``settings`` are one process's share; ``threads`` hash its passwords."""
    # A login takes a quarter of a second by itself: a queue of some is in order, as long as it ends.
    waiting, patience = settings.server.max_waiting, settings.database.acquire_timeout_seconds
    found = {
        "auth": Limits(_places(settings.database.pool_size), waiting, patience),
        "passwords": Limits(2 * threads + 2, min(waiting, QUEUE_PER_THREAD * threads), patience, patience),
        "storage": Limits(max(settings.store.max_connections, PLACES_MORE), waiting, patience),
    }
    for stage_name, stage in settings.stages.items():
        for name, database in stage.databases.items():
            found[f"tables:{stage_name}/{name}"] = Limits(_places(database.pool_size), waiting, patience)
    return found


def _places(connections: int) -> int:
    return PLACES_PER_CONNECTION * connections + PLACES_MORE
