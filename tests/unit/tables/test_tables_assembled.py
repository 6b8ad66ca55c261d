"""What the table API's parts are told when they are put together."""

from __future__ import annotations

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from project_service.deferreds import start
from project_service.settings import Secret, Settings, Stage, StageDatabase
from project_service.tables.assemble import assemble, heard
from project_service.tables.catalog.holder import CacheHolder
from project_service.tables.catalog.model import SchemaCache
from project_service.tables.errors import TableError


class Heard(SynchronousTestCase):
    def test_only_what_postgrest_listens_for_has_the_catalogue_read(self) -> None:
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
            heard(holder, payload)
            self.assertEqual(len(read), expected, payload)


class Waiting(SynchronousTestCase):
    def test_who_gets_no_connection_in_time_is_told_so_as_postgrest_does(self) -> None:
        for size in (1, 2):
            clock = MemoryReactorClock()
            database = StageDatabase(dsn=Secret("postgresql://x@127.0.0.1:1/x"), pool_size=size)
            settings = Settings(stages={"dev": Stage(databases={"main": database})})
            tables = assemble(clock, settings, None, lambda: 0.0)
            self.assertEqual(len(tables.pools), 3 - size)
            for pool in tables.pools:
                waiting = start(pool.take())
                clock.advance(settings.database.acquire_timeout_seconds)
                error = self.failureResultOf(waiting, TableError).value
                self.assertEqual((error.status, error.code), (504, "PGRST003"))
                self.successResultOf(start(pool.close()))
