"""How the configured totals (connections to the database and to the store) are divided among several processes."""

from __future__ import annotations

from attrs import evolve

from project_service.process import cpus
from project_service.settings.model import Settings, Stage


class TooManyWorkers(Exception):
    """More processes than there are connections to share out; the message names the setting."""


def totals(settings: Settings) -> dict[str, int]:
    """What is divided, by the name of its setting."""
    found = {
        "database.pool_size": settings.database.pool_size,
        "store.max_connections": settings.store.max_connections,
    }
    for stage, name, database in settings.stage_databases():
        found[f"stages.{stage}.databases.{name}.pool_size"] = database.pool_size
    return found


def worker_count(settings: Settings) -> int:
    """How many processes serve. ``auto`` means one for each CPU that this process may use, but no more than the
    smallest of the totals.

    Raises ``TooManyWorkers`` for a configured number above the smallest total: a worker without a connection could do
    nothing, and with one connection too many the total would be exceeded, which may be all that the server has room
    for.
    """
    scarcest, total = min(totals(settings).items(), key=lambda item: item[1])
    if settings.server.workers == "auto":
        return max(1, min(cpus(), total))
    count = int(settings.server.workers)
    if count > max(1, total):
        raise TooManyWorkers(
            f"server.workers is {count} and {scarcest} is {total}: each worker needs a connection of its own"
        )
    return count


def share(settings: Settings, processes: int) -> Settings:
    """``settings`` for one of ``processes``, so that all together stay within the configured totals."""
    if processes == 1:
        return settings
    return evolve(
        settings,
        database=evolve(settings.database, pool_size=settings.database.pool_size // processes),
        store=evolve(settings.store, max_connections=settings.store.max_connections // processes),
        stages={name: _share(stage, processes) for name, stage in settings.stages.items()},
    )


def _share(stage: Stage, processes: int) -> Stage:
    shared = {
        name: evolve(database, pool_size=database.pool_size // processes)
        for name, database in stage.databases.items()
    }
    return evolve(stage, databases=shared)
