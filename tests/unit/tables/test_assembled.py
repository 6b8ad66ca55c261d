"""What assembling the table API sets up: which notifications reload the schema cache, and what pools answer if there
is no connection."""

from __future__ import annotations

from typing import Any

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.pool import Pool
from project_service.errors import RETRY_AFTER
from project_service.lifecycle import start
from project_service.settings.model import Secret, Settings, Stage, StageDatabase
from project_service.tables import assemble as assembling
from project_service.tables.assemble import assemble
from project_service.tables.errors import TableError
from project_service.tables.schema_cache.holder import CacheHolder
from project_service.tables.values import SchemaCache


class Heard(SynchronousTestCase):
    def test_only_postgrests_reload_notifications_reload_the_schema_cache(self) -> None:
        read: list[int] = []

        async def load(version: int) -> SchemaCache:
            read.append(version)
            return SchemaCache(version)

        holder = CacheHolder(load, MemoryReactorClock())
        for payload, expected in {
            "": 1,
            "reload schema": 2,
            "reload config": 3,
            "reload": 3,
            "something else": 3,
        }.items():
            holder.notified(payload)
            self.assertEqual(len(read), expected, payload)


class Connection:
    """A fake with all that the pool uses of a connection."""

    usable, altered = True, False

    def close(self) -> None:
        self.usable = False


class Waiting(SynchronousTestCase):
    """Errors of requests that get no connection from one of the pools."""

    def test_no_free_connection_in_time_is_504_pgrst003(self) -> None:
        async def connected() -> Any:
            return Connection()

        self.patch(assembling, "raw", lambda connector: connected)
        for size in (1, 2):
            clock, pools = self.pools(size)
            for pool in pools:
                held = [self.successResultOf(start(pool.acquire())) for _ in range(pool.size)]
                self.assertEqual(self.told(clock, pool), (504, "PGRST003"))
                for connection in held:
                    pool.release(connection)
                self.successResultOf(start(pool.close()))

    def test_no_connection_can_be_made_is_503_pgrst000(self) -> None:
        for size in (1, 2):
            clock, pools = self.pools(size)
            self.assertEqual(len(pools), 3 - size)
            for pool in pools:
                self.assertEqual(self.told(clock, pool), (503, "PGRST000"))
                self.successResultOf(start(pool.close()))

    def pools(self, size: int) -> tuple[MemoryReactorClock, list[Pool]]:
        clock = MemoryReactorClock()
        database = StageDatabase(dsn=Secret("postgresql://x@127.0.0.1:1/x"), pool_size=size)
        settings = Settings(stages={"dev": Stage(databases={"main": database})})
        return clock, list(assemble(clock, settings, None, lambda: 0.0).pools)

    def told(self, clock: MemoryReactorClock, pool: Pool) -> tuple[int, str]:
        waiting = start(pool.acquire())
        clock.advance(Settings().database.acquire_timeout_seconds)
        error = self.failureResultOf(waiting, TableError).value
        self.assertIn(RETRY_AFTER, error.headers)
        return error.status, error.code
