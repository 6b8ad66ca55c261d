"""How the schema cache is kept current: one reading at a time, and looking for changes that nobody announced."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.connection import DatabaseGone
from project_service.database.trust import UNKNOWN, Trust
from project_service.lifecycle import start
from project_service.tables.errors import TableError
from project_service.tables.schema_cache.holder import (
    CHANNEL,
    LOOK_SECONDS,
    ROUND_SECONDS,
    WAIT_SECONDS,
    CacheHolder,
    CatalogWatch,
    Echo,
    Freshness,
)
from project_service.tables.schema_cache.queries import sections
from project_service.tables.values import SchemaCache


class Loads:
    """Readings of the catalog that end when a test ends them."""

    def __init__(self) -> None:
        self.readings: list[Deferred[SchemaCache]] = []

    async def load(self, version: int) -> SchemaCache:
        waiting: Deferred[SchemaCache] = Deferred()
        self.readings.append(waiting)
        return await waiting


class Holding(SynchronousTestCase):
    def setUp(self) -> None:
        self.loads = Loads()
        self.clock = Clock()
        self.holder = CacheHolder(self.loads.load, self.clock)
        self.holder.startService()

    def succeed(self, version: int) -> None:
        self.loads.readings[-1].callback(SchemaCache(version))

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
                self.loads.readings[-1].callback(SchemaCache(1, trust=Trust(1, false_constants=names)))
            stated = [str(formatEvent(event)) for event in events]
            self.assertEqual(len(stated), expected, stated)
            self.assertTrue(
                all(line.startswith(f"declared IMMUTABLE: {', '.join(names)}") for line in stated)
            )

    def test_what_its_sql_may_do_is_unknown_from_the_announcement_of_a_change(self) -> None:
        def succeed(number: int) -> None:
            self.loads.readings[-1].callback(SchemaCache(number, trust=Trust(number)))

        self.assertIs(self.holder.trust(), UNKNOWN)
        self.holder.announce()
        succeed(1)
        self.assertEqual(self.holder.trust(), Trust(1))
        self.holder.announce()
        self.assertIs(self.holder.trust(), UNKNOWN)
        self.assertEqual(self.holder.current.version, 1)
        self.holder.announce()
        succeed(2)
        self.assertIs(self.holder.trust(), UNKNOWN)
        succeed(3)
        self.assertEqual(self.holder.trust(), Trust(3))

    def test_reloads_announced_during_a_load_become_one_more_load(self) -> None:
        reloading = start(self.holder.reload())
        for _ in range(5):
            self.holder.announce()
        self.succeed(1)
        self.successResultOf(reloading)
        self.assertEqual(len(self.loads.readings), 2)
        self.succeed(2)
        self.assertEqual((len(self.loads.readings), self.holder.current.version), (2, 2))

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
        self.loads.readings[-1].errback(OSError("away"))
        self.assertEqual(self.holder.current.version, 1)
        self.clock.advance(1)
        self.assertEqual(len(self.loads.readings), 3)
        self.succeed(3)
        self.assertEqual(self.holder.current.version, 3)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_no_load_is_tried_again_after_the_service_has_stopped(self) -> None:
        self.holder.announce()
        self.loads.readings[-1].errback(OSError("away"))
        self.holder.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_several_failed_loads_are_tried_again_once(self) -> None:
        self.holder.announce()
        self.holder.announce()
        for _ in range(2):
            self.loads.readings[-1].errback(OSError("away"))
        self.assertEqual((len(self.loads.readings), len(self.clock.getDelayedCalls())), (2, 1))

    def test_a_load_that_fails_after_the_stop_is_not_tried_again(self) -> None:
        self.holder.announce()
        self.holder.stopService()
        self.loads.readings[-1].errback(OSError("the pool is closed"))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_cancelled_reload_does_not_stop_the_load(self) -> None:
        reloading = start(self.holder.reload())
        reloading.cancel()
        self.failureResultOf(reloading)
        self.succeed(1)
        self.assertEqual(self.holder.current.version, 1)


class Sending:
    """A pool that records the marks sent through it."""

    def __init__(self) -> None:
        self.sent = 0

    async def query(self, sql: str, params: object) -> list[tuple[bytes]]:
        self.sent += 1
        return [(str(self.sent).encode(),)]


class Echoes(SynchronousTestCase):
    """A notification that the service sends to itself: once it is heard, all earlier ones have been heard."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.sending = Sending()
        self.echo = Echo(cast(Any, self.sending), self.clock)

    def asked(self) -> Deferred[None]:
        return start(self.echo.come_back())

    def test_the_wait_ends_when_the_echo_is_heard(self) -> None:
        waiting = self.asked()
        self.assertNoResult(waiting)
        self.echo.heard("1")
        self.successResultOf(waiting)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_echo_may_be_heard_before_the_wait_begins(self) -> None:
        self.echo.heard("1")
        self.successResultOf(self.asked())

    def miss_one(self) -> None:
        waiting = self.asked()
        self.clock.advance(WAIT_SECONDS)
        self.successResultOf(waiting)

    def test_after_one_lost_echo_nobody_waits_until_something_is_heard_again(self) -> None:
        self.miss_one()
        self.successResultOf(self.asked())
        self.echo.heard("2")
        self.assertNoResult(self.asked())

    def test_a_new_listening_connection_makes_requests_wait_again(self) -> None:
        self.miss_one()
        self.successResultOf(start(self.echo.listening()))
        self.assertNoResult(self.asked())

    def test_a_cancelled_wait_does_not_count_as_a_lost_echo(self) -> None:
        leaving = self.asked()
        leaving.cancel()
        self.failureResultOf(leaving)
        self.assertNoResult(self.asked())

    def test_at_most_20_requests_wait_for_an_echo(self) -> None:
        for _ in range(20):
            self.assertNoResult(self.asked())
        self.successResultOf(self.asked())
        self.assertEqual(self.sending.sent, 20)
        # A request that has given up no longer counts.
        self.clock.advance(WAIT_SECONDS)
        self.echo.heard("another")
        self.assertNoResult(self.asked())
        self.assertEqual(self.sending.sent, 21)


class Database:
    """A database that hears marks at once. A test sets the fingerprint of its catalogue."""

    def __init__(self) -> None:
        self.echo = Echo(cast(Any, self), Clock())
        self.fingerprint = "1"
        self.slow: Deferred[None] | None = None
        self.looked_at = 0
        self.away = False
        self.quiet = False

    async def query(self, sql: str, params: list[str]) -> list[tuple[bytes]]:
        if self.away:
            raise OSError("away")
        if params == [CHANNEL]:
            if not self.quiet:
                self.echo.heard("mark")
            return [(b"mark",)]
        self.looked_at += 1
        if self.slow is not None:
            await self.slow
        return [(self.fingerprint.encode(),)]

    async def load(self, version: int) -> SchemaCache:
        if self.slow is not None:
            await self.slow
        return SchemaCache(version, fingerprint=self.fingerprint)


class Misses(SynchronousTestCase):
    """Requests that name something the schema cache does not have."""

    def setUp(self) -> None:
        self.database = Database()
        self.holder = CacheHolder(self.database.load, Clock())
        self.holder.announce()
        self.old = self.holder.current
        self.freshness = Freshness(self.holder, cast(Any, self.database), self.database.echo)

    def newer(self) -> Deferred[SchemaCache | None]:
        return start(self.freshness.newer(self.old))

    def test_a_changed_catalog_is_loaded(self) -> None:
        self.assertIsNone(self.successResultOf(self.newer()))
        self.assertIs(self.holder.current, self.old)
        self.database.fingerprint = "2"
        result = self.successResultOf(self.newer())
        assert result is not None
        self.assertEqual((result.version, result.fingerprint), (self.old.version + 1, "2"))

    def test_a_reload_that_was_announced_before_the_miss_is_waited_for(self) -> None:
        self.database.quiet = True
        waiting = self.newer()
        self.assertNoResult(waiting)
        self.holder.announce()
        self.database.echo.heard("mark")
        self.assertIs(self.successResultOf(waiting), self.holder.current)

    def test_if_the_database_is_away_the_old_cache_stays_the_answer(self) -> None:
        self.database.away = True
        self.assertIsNone(self.successResultOf(self.newer()))

    def test_a_reload_under_way_is_awaited_and_suffices_if_it_has_the_newest_fingerprint(self) -> None:
        self.database.slow = Deferred()
        self.holder.announce()
        waiting = self.newer()
        self.assertNoResult(waiting)
        self.database.slow.callback(None)
        self.assertIs(self.successResultOf(waiting), self.holder.current)
        self.assertEqual((self.database.looked_at, self.holder.current.version), (1, self.old.version + 1))

    def test_an_unannounced_change_is_noticed_even_if_an_older_reload_is_under_way(self) -> None:
        readings: list[Deferred[SchemaCache]] = []

        async def load(version: int) -> SchemaCache:
            readings.append(Deferred())
            return await readings[-1]

        self.patch(self.holder, "_load", load)
        self.holder.announce()
        self.database.fingerprint = "2"
        waiting = self.newer()
        readings[0].callback(SchemaCache(2, fingerprint="1"))
        self.assertNoResult(waiting)
        readings[1].callback(SchemaCache(3, fingerprint="2"))
        self.assertIs(self.successResultOf(waiting), self.holder.current)
        self.assertEqual(self.holder.current.fingerprint, "2")

    def test_requests_that_miss_at_the_same_time_share_one_look_at_the_catalog(self) -> None:
        self.database.slow = Deferred()
        waiting = [self.newer() for _ in range(100)]
        self.assertEqual(self.database.looked_at, 1)
        self.database.fingerprint = "2"
        self.database.slow.callback(None)
        for one in waiting:
            self.assertIs(self.successResultOf(one), self.holder.current)
        self.assertEqual(self.database.looked_at, 2)

    def test_a_cancelled_request_does_not_cancel_the_look_for_others(self) -> None:
        self.database.slow = Deferred()
        leaving, first, later = self.newer(), self.newer(), self.newer()
        for one in (leaving, later):
            one.cancel()
            self.failureResultOf(one)
        self.assertNoResult(first)
        self.database.slow.callback(None)
        self.assertIsNone(self.successResultOf(first))
        self.assertIsNone(self.successResultOf(self.newer()))


class Catalog:
    """A catalogue of one-section catalogs, whose values a test sets."""

    def __init__(self) -> None:
        self.announced = False
        self.values: dict[str, str] = {}
        self.sizes: list[tuple[str, int]] = [("pg_class", 3), ("pg_proc", 3)]
        self.asked = 0
        self.away = False
        self.snapshot = 0
        self.written = True

    async def query(self, sql: str, params: object) -> list[tuple[Any, ...]]:
        self.asked += 1
        if self.away:
            raise DatabaseGone("away")
        if "evtevent" in sql:
            self.snapshot += self.written
            return [(self.announced, f"{self.snapshot}:{self.snapshot}:")]
        if "pg_relation_size" in sql:
            return list(self.sizes)
        name = sql.partition(") from ")[2].partition(" ")[0]
        return [(self.values.get(name, "0"),)]


class Watched(SynchronousTestCase):
    """A database without event triggers, whose catalogue is looked through again and again."""

    def setUp(self) -> None:
        self.catalog = Catalog()
        self.readings = 0

        async def load(version: int) -> SchemaCache:
            self.readings += 1
            return SchemaCache(version)

        self.holder = CacheHolder(load, Clock())
        self.watch = CatalogWatch(self.holder, self.catalog.query)

    def round(self) -> None:
        for _ in range(int(ROUND_SECONDS / LOOK_SECONDS) + 1):
            self.successResultOf(start(self.watch.look()))

    def test_the_cache_is_read_after_the_first_round_and_after_each_change(self) -> None:
        self.round()
        self.round()
        self.assertEqual(self.readings, 1)
        for name in ("pg_class", "pg_proc"):
            before = self.readings
            self.catalog.values[name] = "1"
            self.round()
            self.assertEqual(self.readings, before + 1, name)
            self.round()
            self.assertEqual(self.readings, before + 1, name)

    def test_a_catalog_that_has_grown_has_changed(self) -> None:
        self.round()
        self.round()
        self.catalog.sizes[1] = ("pg_proc", 40)
        self.round()
        self.round()
        self.assertGreater(self.readings, 1)

    def test_where_changes_are_announced_only_that_is_asked(self) -> None:
        self.catalog.announced = True
        for _ in range(3):
            self.round()
        self.assertEqual(self.readings, 0)
        self.assertLessEqual(self.catalog.asked, 4)
        # If the event triggers are dropped, looking begins.
        self.catalog.announced = False
        self.round()
        self.round()
        self.assertEqual(self.readings, 1)

    def test_where_announcements_may_not_arrive_it_is_looked_for_changes_all_the_same(self) -> None:
        self.watch.hears = False
        self.catalog.announced = True
        self.round()
        self.round()
        self.catalog.values["pg_proc"] = "1"
        self.round()
        self.round()
        self.assertEqual(self.readings, 2)

    def test_where_nothing_is_written_nothing_is_looked_at(self) -> None:
        self.round()
        self.round()
        self.catalog.written = False
        self.round()
        before = self.catalog.asked
        for _ in range(3):
            self.round()
        self.assertLessEqual(self.catalog.asked - before, 20)
        self.catalog.written = True
        self.catalog.values["pg_proc"] = "1"
        self.round()
        self.round()
        self.assertEqual(self.readings, 2)

    def test_a_lost_connection_is_no_change(self) -> None:
        self.round()
        self.round()
        self.catalog.away = True
        self.round()
        self.catalog.away = False
        self.round()
        self.round()
        self.assertEqual(self.readings, 1)

    def test_the_steps_of_a_round_are_spread_over_it(self) -> None:
        self.catalog.sizes = [("pg_attribute", 32 * 200)]
        self.round()
        self.round()
        before = self.catalog.asked
        self.successResultOf(start(self.watch.look()))
        self.assertLess(self.catalog.asked - before, 20)

    def test_sections_leave_no_block_out(self) -> None:
        for blocks in (0, 1, 32, 33, 100):
            result = sections([("pg_constraint", blocks)])
            self.assertEqual(len(result), max(1, -(-blocks // 32)), blocks)
            self.assertIn("ctid >= '(0,0)'", result[0])
            self.assertNotIn("ctid <", result[-1])
            for lower, upper in pairwise(result):
                end = lower.partition("ctid < '(")[2].partition(",")[0]
                self.assertIn(f"ctid >= '({end},0)'", upper)
