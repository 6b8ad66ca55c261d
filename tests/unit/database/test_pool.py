"""The connection pool, with a clock of the test's own: it recovers, times out, discards doubtful connections, and
drains."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import CancelledError, Deferred

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pool import Pool
from project_service.errors import ApiError
from project_service.lifecycle import start
from tests.unit.database.pool_case import Case, FakeConnection


class Lending(Case):
    def test_a_long_queue_answered_at_once_does_not_exhaust_the_stack(self) -> None:
        first = [start(self.pool.query("wait")) for _ in range(2)]
        queued = [start(self.pool.query("a")) for _ in range(2000)]
        for connection in self.made:
            assert connection.answer is not None
            connection.answer.callback([])
        for done in (*first, *queued):
            self.successResultOf(done)
        self.assertEqual(self.pool.in_use, 0)

    def test_connections_are_made_on_demand_and_reused(self) -> None:
        self.assertEqual(self.made, [])
        for _ in range(3):
            self.assertEqual(self.successResultOf(start(self.pool.query("a"))), [("a",)])
        self.assertEqual(len(self.made), 1)

    def test_extra_time_given_to_one_caller_does_not_pass_to_the_next(self) -> None:
        connection = self.successResultOf(start(self.pool.acquire()))
        connection.extra_seconds = None
        self.pool.release(connection)
        again = self.successResultOf(start(self.pool.acquire()))
        self.assertEqual((again is connection, again.extra_seconds), (True, 0.0))

    def test_at_most_size_connections_are_lent_and_waiters_get_them_in_turn(self) -> None:
        held = [self.successResultOf(start(self.pool.acquire())) for _ in range(2)]
        waiting = [start(self.pool.acquire()) for _ in range(2)]
        self.assertNoResult(waiting[0])
        self.pool.release(held[0])
        self.assertIs(self.successResultOf(waiting[0]), held[0])
        self.assertNoResult(waiting[1])
        self.assertEqual(len(self.made), 2)

    def test_waiting_too_long_is_503(self) -> None:
        for _ in range(2):
            self.successResultOf(start(self.pool.acquire()))
        waiting = start(self.pool.query("a"))
        self.clock.advance(5.1)
        error = self.failure(waiting, ApiError)
        assert isinstance(error, ApiError)
        self.assertEqual((error.status, error.code), (503, "database_unavailable"))
        self.assertEqual(self.pool.waiting, 0)

    def test_errors_for_late_and_for_no_connection_are_configurable(self) -> None:
        pool = Pool(self.connect, 1, 5.0, self.clock, late=TimeoutError, away=ConnectionError)
        held = self.successResultOf(start(pool.acquire()))
        waiting = start(pool.acquire())
        self.clock.advance(5.1)
        self.failure(waiting, TimeoutError)
        # The other error is for callers when no connection exists and none can be made.
        self.away, cast(Any, held).closed = True, True
        pool.release(held)
        waiting = start(pool.acquire())
        self.clock.advance(5.1)
        self.failure(waiting, ConnectionError)

    def test_a_cancelled_waiter_takes_no_connection(self) -> None:
        held = [self.successResultOf(start(self.pool.acquire())) for _ in range(2)]
        waiting = start(self.pool.query("a"))
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.pool.release(held[0])
        self.assertEqual((self.pool.waiting, self.pool.in_use), (0, 1))


class Doubt(Case):
    """Connections in a doubtful state are never lent again."""

    def test_a_connection_that_is_not_idle_is_discarded(self) -> None:
        for state in ("active", "in transaction", "failed transaction", "unknown"):
            connection = cast(FakeConnection, self.successResultOf(start(self.pool.acquire())))
            connection.state = state
            self.pool.release(cast(Connection, connection))
            self.assertTrue(connection.closed, state)
        fresh = cast(FakeConnection, self.successResultOf(start(self.pool.acquire())))
        self.assertFalse(fresh.closed)

    def test_a_connection_with_altered_settings_is_discarded(self) -> None:
        connection = cast(FakeConnection, self.successResultOf(start(self.pool.acquire())))
        connection.altered = True
        self.pool.release(cast(Connection, connection))
        self.assertTrue(connection.closed)
        self.assertIsNot(self.successResultOf(start(self.pool.acquire())), connection)

    def test_a_query_goes_on_when_its_caller_is_cancelled(self) -> None:
        asking = start(self.pool.query("wait"))
        connection = self.made[0]
        asking.cancel()
        self.failureResultOf(asking, CancelledError)
        # The connection is still busy, so nobody else may have it.
        other = start(self.pool.query("other"))
        self.successResultOf(other)
        self.assertEqual(connection.asked, ["wait"])
        assert connection.answer is not None
        connection.answer.callback([])
        self.assertEqual(self.pool.in_use, 0)

    def test_a_transaction_commits_though_its_caller_was_cancelled(self) -> None:
        gate: Deferred[None] = Deferred()

        async def work(transaction: Any) -> int:
            await gate
            await transaction.query("insert")
            return 7

        doing = start(self.pool.transaction(work))
        doing.cancel()
        self.failureResultOf(doing, CancelledError)
        gate.callback(None)
        self.assertEqual(self.made[0].asked, ["begin", "insert", "commit"])
        self.assertEqual(self.successResultOf(start(self.pool.transaction(work))), 7)

    def test_a_failing_transaction_is_rolled_back(self) -> None:
        async def work(transaction: Any) -> None:
            raise KeyError("x")

        self.failure(start(self.pool.transaction(work)), KeyError)
        self.assertEqual(self.made[0].asked, ["begin", "rollback"])
        self.assertEqual(self.successResultOf(start(self.pool.query("a"))), [("a",)])

    def test_a_commit_that_rolled_back_is_an_error(self) -> None:
        async def work(transaction: Any) -> None:
            self.made[0].state = "failed transaction"

        self.failure(start(self.pool.transaction(work)), DatabaseGone)

    def test_an_idle_connection_that_dies_is_replaced(self) -> None:
        self.successResultOf(start(self.pool.query("a")))
        first = self.made[0]
        assert first.on_lost is not None
        first.on_lost(first)
        self.successResultOf(start(self.pool.query("a")))
        self.assertEqual((len(self.made), first.closed), (2, True))

    def test_a_connection_found_dead_is_not_lent(self) -> None:
        self.successResultOf(start(self.pool.query("a")))
        self.made[0].state = "unknown"
        self.successResultOf(start(self.pool.query("b")))
        self.assertEqual((self.made[0].closed, self.made[0].asked, self.made[1].asked), (True, ["a"], ["b"]))

    def test_a_transaction_whose_connection_is_lost_keeps_its_own_error(self) -> None:
        async def work(transaction: Any) -> None:
            self.made[0].state = "unknown"
            raise KeyError("x")

        self.failure(start(self.pool.transaction(work)), KeyError)
        self.assertEqual((self.made[0].asked, self.made[0].closed), (["begin"], True))
