"""How many processes serve, and what each gets of the connections that they share."""

from __future__ import annotations

from attrs import evolve

from project_service.process import cpus
from project_service.settings.model import Settings, Stage, StageDatabase


class TooManyWorkers(Exception):
    """More processes than there are connections to share out; the message names the setting."""


def totals(settings: Settings) -> dict[str, int]:
    """The numbers of connections that workers share, by the name of the setting."""
    pools = {
        f"stages.{stage}.databases.{name}.pool_size": database.pool_size
        for stage, name, database in settings.stage_databases()
    }
    return {
        "database.pool_size": settings.database.pool_size,
        "store.max_connections": settings.store.max_connections,
        **pools,
    }


def worker_count(settings: Settings) -> int:
    """How many processes serve. ``auto`` means one for each CPU that this process may use, but no more than the
    smallest of the totals.

    Raises ``TooManyWorkers`` for a configured number above the smallest total: a worker without a connection could do
    nothing, and with one connection too many the total would be exceeded, which may be all that the server allows.
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

    def part_of(database: StageDatabase) -> StageDatabase:
        return evolve(database, pool_size=database.pool_size // processes)

    images = settings.images.processes
    return evolve(
        settings,
        database=evolve(
            settings.database,
            pool_size=settings.database.pool_size // processes,
            policy_pool_size=max(1, settings.database.policy_pool_size // processes),
        ),
        store=evolve(settings.store, max_connections=settings.store.max_connections // processes),
        images=evolve(settings.images, processes=images and max(1, images // processes)),
        stages={
            name: Stage({name: part_of(database) for name, database in stage.databases.items()})
            for name, stage in settings.stages.items()
        },
    )
