"""The schema cache in use: loaded once at a time, kept if a reload fails, and loaded again after a pause."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from project_service.lifecycle import start
from project_service.tables.errors import TableError
from project_service.tables.schema_cache.holder import CacheHolder
from project_service.tables.values import SchemaCache


class Catalogue:
    """A catalogue whose readings end when a test says so."""

    def __init__(self) -> None:
        self.readings: list[Deferred[SchemaCache]] = []

    async def load(self, version: int) -> SchemaCache:
        waiting: Deferred[SchemaCache] = Deferred()
        self.readings.append(waiting)
        return await waiting


class Holding(SynchronousTestCase):
    def setUp(self) -> None:
        self.catalogue = Catalogue()
        self.clock = Clock()
        self.holder = CacheHolder(self.catalogue.load, self.clock)
        self.holder.startService()

    def succeed(self, version: int) -> None:
        self.catalogue.readings[-1].callback(SchemaCache(version))

    def test_before_the_first_load_requests_get_pgrst002(self) -> None:
        self.assertEqual(self.assertRaises(TableError, lambda: self.holder.current).code, "PGRST002")
        reloading = start(self.holder.reload())
        self.assertNoResult(reloading)
        self.succeed(1)
        self.successResultOf(reloading)
        self.assertEqual(self.holder.current.version, 1)

    def test_a_load_that_ends_at_once_does_not_stop_later_ones(self) -> None:
        """A fast database answers before the caller has got its Deferred."""

        async def at_once(version: int) -> SchemaCache:
            return SchemaCache(version)

        holder = CacheHolder(at_once, self.clock)
        for version in (1, 2, 3):
            holder.announce()
            self.assertEqual(holder.current.version, version)

    def test_functions_wrongly_declared_immutable_are_logged_once(self) -> None:
        for names, expected in (((), 0), (("f()", "g()"), 1), (("f()", "g()"), 0), ((), 0), (("f()",), 1)):
            with capturedLogs() as events:
                self.holder.announce()
                self.catalogue.readings[-1].callback(SchemaCache(1, false_constants=names))
            said = [str(formatEvent(event)) for event in events]
            self.assertEqual(len(said), expected, said)
            self.assertTrue(all(line.startswith(f"declared IMMUTABLE: {', '.join(names)}") for line in said))

    def test_reloads_announced_during_a_load_become_one_more_load(self) -> None:
        reloading = start(self.holder.reload())
        for _ in range(5):
            self.holder.announce()
        self.succeed(1)
        self.successResultOf(reloading)
        self.assertEqual(len(self.catalogue.readings), 2)
        self.succeed(2)
        self.assertEqual((len(self.catalogue.readings), self.holder.current.version), (2, 2))

    def test_a_wait_ends_with_the_load_that_began_after_it(self) -> None:
        """Where the schema changes all the time, one load follows the other without end."""
        self.holder.announce()
        for version in range(1, 4):
            under_way = start(self.holder.up_to_date())
            self.holder.announce()
            announced = start(self.holder.up_to_date())
            self.succeed(version)
            self.successResultOf(under_way)
            self.assertNoResult(announced)
            self.holder.announce()
            self.succeed(version + 1)
            self.successResultOf(announced)

    def test_a_failed_load_keeps_the_old_cache_and_is_tried_again(self) -> None:
        self.holder.announce()
        self.succeed(1)
        self.holder.announce()
        self.catalogue.readings[-1].errback(OSError("away"))
        self.assertEqual(self.holder.current.version, 1)
        self.clock.advance(1)
        self.assertEqual(len(self.catalogue.readings), 3)
        self.succeed(3)
        self.assertEqual(self.holder.current.version, 3)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_no_load_is_tried_again_after_the_service_has_stopped(self) -> None:
        self.holder.announce()
        self.catalogue.readings[-1].errback(OSError("away"))
        self.holder.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_several_failed_loads_are_tried_again_once(self) -> None:
        self.holder.announce()
        self.holder.announce()
        for _ in range(2):
            self.catalogue.readings[-1].errback(OSError("away"))
        self.assertEqual((len(self.catalogue.readings), len(self.clock.getDelayedCalls())), (2, 1))

    def test_a_load_that_fails_after_the_stop_is_not_tried_again(self) -> None:
        self.holder.announce()
        self.holder.stopService()
        self.catalogue.readings[-1].errback(OSError("the pool is closed"))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_cancelled_reload_does_not_stop_the_load(self) -> None:
        reloading = start(self.holder.reload())
        reloading.cancel()
        self.failureResultOf(reloading)
        self.succeed(1)
        self.assertEqual(self.holder.current.version, 1)
