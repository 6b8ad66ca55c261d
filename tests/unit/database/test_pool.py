"""The connection pool, with a clock of the test's own: it lends, grows, recovers, times out and drains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pool import FIRST_PAUSE_SECONDS, Pool
from project_service.database.quickness import Quickness
from project_service.errors import ApiError
from project_service.lifecycle import start
from tests.captured_log import captured_logs


class FakeConnection:
    """A connection that answers when a test says so. ``state`` is its transaction status."""

    def __init__(self) -> None:
        self.state = "idle"
        self.closed = False
        self.altered = False
        self.on_lost: Callable[[Any], None] | None = None
        self.asked: list[str] = []
        self.answer: Deferred[list[Any]] | None = None

    @property
    def usable(self) -> bool:
        return self.state == "idle" and not self.closed

    @property
    def in_transaction(self) -> bool:
        return self.state == "in transaction"

    async def query(self, sql: str, params: Any = None) -> list[Any]:
        self.asked.append(sql)
        if sql == "begin":
            self.state = "in transaction"
        elif sql == "rollback":
            self.state = "idle"
        elif sql == "wait":
            self.answer = Deferred()
            return await self.answer
        return [(sql,)]

    async def execute(self, sql: str, params: Any = None) -> Any:
        await self.query(sql)
        tag = "ROLLBACK" if self.state == "failed transaction" else "COMMIT"
        self.state = "idle"
        return type("Cursor", (), {"statusmessage": tag})()

    def close(self) -> None:
        self.closed = True


class Case(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.made: list[FakeConnection] = []
        self.away = False
        self.pool = Pool(self.connect, 2, 5.0, self.clock)

    async def connect(self) -> Connection:
        if self.away:
            raise DatabaseGone("refused")
        self.made.append(FakeConnection())
        return cast(Connection, self.made[-1])

    @property
    def busy(self) -> int:
        return len(self.pool._busy)

    def answer_all(self) -> None:
        for connection in self.made:
            if connection.answer is not None and not connection.answer.called:
                connection.answer.callback([])

    def failure(self, waiting: Deferred[Any], kind: type[Exception]) -> Exception:
        failed: Exception = self.failureResultOf(waiting, kind).value
        return failed


class Lending(Case):
    def test_a_long_queue_answered_at_once_does_not_exhaust_the_stack(self) -> None:
        first = [start(self.pool.query("wait")) for _ in range(2)]
        queued = [start(self.pool.query("a")) for _ in range(2000)]
        self.answer_all()
        for done in (*first, *queued):
            self.successResultOf(done)
        self.assertEqual(self.busy, 0)

    def test_connections_are_made_on_demand_and_reused(self) -> None:
        self.assertEqual(self.made, [])
        for _ in range(3):
            self.assertEqual(self.successResultOf(start(self.pool.query("a"))), [("a",)])
        self.assertEqual(len(self.made), 1)

    def test_a_connection_is_not_made_in_the_trace_of_the_request_that_needed_it(self) -> None:
        request, seen = ContextVar("request", default=""), list[str]()

        async def connect() -> Connection:
            seen.append(request.get())
            return await self.connect()

        pool = Pool(connect, 2, 5.0, self.clock)
        request.set("a")
        self.successResultOf(start(pool.query("a")))
        self.assertEqual((seen, request.get()), ([""], "a"))

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

    def slow_reads(self, count: int) -> list[Deferred[Any]]:
        """Reads that a shared connection has ended, and that are run again in a pool of ten."""
        self.pool = Pool(self.connect, 10, 5.0, self.clock)
        slow = Quickness()
        slow.exceeded()
        return [start(self.pool.use_again(lambda one: one.query("wait"), slow)) for _ in range(count)]

    def test_slow_reads_that_are_run_again_leave_connections_to_others(self) -> None:
        slow = self.slow_reads(10)
        self.assertEqual((self.busy, self.pool.free), (8, 2))
        quick = start(self.pool.use_again(lambda one: one.query("a"), Quickness.known()))
        self.assertEqual(self.successResultOf(quick), [("a",)])
        for number in range(8):
            answer = self.made[number].answer
            assert answer is not None
            answer.callback([])
        self.assertEqual([one.called for one in slow], [True] * 8 + [False] * 2)
        self.assertEqual(self.busy, 2)
        self.answer_all()
        self.assertEqual([self.successResultOf(one) for one in slow], [[]] * 10)
        self.assertEqual(self.busy, 0)
        self.assertEqual(self.pool._room_for_slow, 8)

    def test_slow_reads_wait_no_longer_than_others(self) -> None:
        slow = self.slow_reads(9)
        self.clock.advance(5)
        error = self.failure(slow[-1], ApiError)
        assert isinstance(error, ApiError)
        self.assertEqual((error.status, error.code), (503, "database_unavailable"))
        self.assertEqual(self.busy, 8)

    def test_a_slow_read_that_comes_when_the_pool_has_closed_is_refused_at_once(self) -> None:
        running = self.slow_reads(8)
        closing = start(self.pool.close())
        slow = Quickness()
        slow.exceeded()
        late = start(self.pool.use_again(lambda one: one.query("wait"), slow))
        error = self.failure(late, ApiError)
        assert isinstance(error, ApiError)
        self.assertEqual((error.status, error.code), (503, "shutting_down"))
        self.answer_all()
        self.assertEqual([self.successResultOf(one) for one in running], [[]] * 8)
        self.successResultOf(closing)

    def test_a_slow_read_that_gets_no_connection_or_is_given_up_keeps_no_place(self) -> None:
        *running, given_up = self.slow_reads(9)
        given_up.cancel()
        self.failureResultOf(given_up, CancelledError)
        self.answer_all()
        self.assertEqual([self.successResultOf(one) for one in running], [[]] * 8)
        self.assertEqual(self.pool._room_for_slow, 8)
        self.away = True
        (refused,) = self.slow_reads(1)
        self.assertEqual(self.pool._room_for_slow, 7)
        self.clock.advance(5)
        self.failure(refused, ApiError)
        self.assertEqual(self.pool._room_for_slow, 8)

    def test_how_long_the_first_has_been_waiting(self) -> None:
        self.assertEqual(self.pool.longest_wait, 0.0)
        connections = [self.successResultOf(start(self.pool.acquire())) for _ in range(2)]
        waiting = start(self.pool.acquire())
        self.clock.advance(1.0)
        start(self.pool.acquire()).addErrback(lambda failure: failure.trap(ApiError))
        self.assertEqual(self.pool.longest_wait, 1.0)
        self.pool.release(connections[0])
        self.successResultOf(waiting)
        self.assertEqual(self.pool.longest_wait, 0.0)

    def test_a_kind_that_is_doubted_shares_while_no_connection_is_free(self) -> None:
        doubted, unknown = Quickness.known(), Quickness()
        doubted.doubt()
        kinds = (Quickness.known(), doubted, unknown)
        self.successResultOf(start(self.pool.acquire()))
        self.assertEqual([self.pool.may_share(kind) for kind in kinds], [True, False, False])
        self.successResultOf(start(self.pool.acquire()))
        self.assertEqual([self.pool.may_share(kind) for kind in kinds], [True, True, False])

    def test_waiting_too_long_is_503(self) -> None:
        for _ in range(2):
            self.successResultOf(start(self.pool.acquire()))
        waiting = start(self.pool.query("a"))
        self.clock.advance(5.1)
        error = self.failure(waiting, ApiError)
        assert isinstance(error, ApiError)
        self.assertEqual((error.status, error.code), (503, "database_unavailable"))
        self.assertEqual(len(self.pool._waiting), 0)

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
        self.assertEqual((len(self.pool._waiting), self.busy), (0, 1))


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
        self.assertEqual(self.busy, 0)

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


class Growing(Case):
    def test_simultaneous_waiters_each_get_a_connection(self) -> None:
        connecting: list[Deferred[None]] = []

        async def slow() -> Connection:
            connecting.append(Deferred())
            await connecting[-1]
            return await self.connect()

        self.pool = Pool(slow, 5, 5.0, self.clock)
        waiting = [start(self.pool.query("a")) for _ in range(3)]
        self.assertEqual(len(connecting), 3)
        for one in connecting:
            one.callback(None)
        for answered in waiting:
            self.successResultOf(answered)

    def test_connections_being_made_count_towards_the_size(self) -> None:
        gates: list[Deferred[None]] = []

        async def refused() -> Connection:
            gates.append(Deferred())
            await gates[-1]
            raise DatabaseGone("refused")

        self.pool = Pool(refused, 2, 5.0, self.clock)
        waiting = [start(self.pool.query("a")) for _ in range(5)]
        self.assertEqual(len(gates), 2, "no more than its size")
        for gate in gates:
            gate.callback(None)
        self.assertEqual(len(self.clock.getDelayedCalls()), 2, "failing together counts once; and the line's")
        self.clock.advance(FIRST_PAUSE_SECONDS)
        waiting.append(start(self.pool.query("a")))
        self.assertEqual(len(gates), 3, "one tries again")
        self.successResultOf(start(self.pool.close()))
        for one in waiting:
            self.failure(one, ApiError)

    def test_a_waiter_gets_a_new_connection_for_a_discarded_one(self) -> None:
        for throw_away in ("altered", "closed"):
            self.setUp()
            held = [self.successResultOf(start(self.pool.acquire())) for _ in range(2)]
            waiting = start(self.pool.acquire())
            setattr(held[0], throw_away, True)
            self.pool.release(held[0])
            self.assertIs(self.successResultOf(waiting), self.made[2], throw_away)
            self.assertEqual((len(self.made), self.busy), (3, 2), throw_away)

    def test_a_failure_to_connect_is_logged_without_libpqs_words(self) -> None:
        full = DatabaseGone("too many connections")
        faults = iter([full, full, OSError("no route to 10.0.0.1"), full, full])

        async def broken() -> Connection:
            raise next(faults)

        self.pool = Pool(broken, 1, 5.0, self.clock)
        with captured_logs() as events:
            waiting = start(self.pool.query("a"))
            for pause in (0.1, 0.2, 0.4, 0.8):
                self.clock.advance(pause)
        messages = [formatEvent(event) for event in events]
        self.assertEqual(
            messages,
            [
                f"cannot connect to the database: {why}"
                for why in ("too many connections", "OSError", "too many connections")
            ],
        )
        self.successResultOf(start(self.pool.close()))
        self.failure(waiting, ApiError)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class Healing(Case):
    """The database is away."""

    def test_it_is_tried_again_after_growing_pauses_while_somebody_waits(self) -> None:
        self.away = True
        waiting = start(self.pool.query("a"))
        self.clock.advance(0.1)
        self.clock.advance(0.2)
        self.assertNoResult(waiting)
        self.away = False
        self.clock.advance(0.4)
        self.assertEqual(self.successResultOf(waiting), [("a",)])

    def test_once_it_is_back_each_waiter_gets_a_connection(self) -> None:
        self.away = True
        waiting = [start(self.pool.acquire()) for _ in range(2)]
        self.away = False
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertEqual([self.successResultOf(one) for one in waiting], self.made)

    def test_once_it_was_back_the_pauses_begin_with_the_first(self) -> None:
        self.away = True
        waiting = start(self.pool.query("a"))
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.away = False
        self.clock.advance(2 * FIRST_PAUSE_SECONDS)
        self.successResultOf(waiting)
        self.made[-1].close()
        self.away = True
        waiting = start(self.pool.query("a"))
        self.away = False
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.successResultOf(waiting)

    def test_no_waiter_waits_longer_than_the_timeout(self) -> None:
        self.away = True
        waiting = start(self.pool.query("a"))
        self.clock.pump([0.1] * 51)
        self.failure(waiting, ApiError)

    def test_a_single_connection_tries_whether_it_is_back(self) -> None:
        self.away = True
        tried: list[float] = []
        connect = self.connect

        async def counted() -> Connection:
            tried.append(self.clock.seconds())
            return await connect()

        self.pool = Pool(counted, 10, 60.0, self.clock)
        waiting = [start(self.pool.query("a")) for _ in range(10)]
        self.assertEqual(len(self.clock.getDelayedCalls()), 2, "one who tries again, one who tells the time")
        self.clock.advance(0.1)
        self.clock.advance(0.2)
        self.assertEqual(tried.count(0.1), 1)
        self.assertEqual(len([moment for moment in tried if moment > 0.1]), 1)
        self.away = False
        self.clock.advance(0.4)
        for one in waiting:
            self.successResultOf(one)

    def test_an_unexpected_failure_to_connect_is_not_retried_in_a_tight_loop(self) -> None:
        tried: list[int] = []

        async def broken() -> Connection:
            tried.append(1)
            raise OSError("too many open files")

        self.pool = Pool(broken, 2, 5.0, self.clock)
        waiting = start(self.pool.query("a"))
        self.clock.pump([0.1] * 51)
        self.failure(waiting, ApiError)
        self.assertLess(len(tried), 10)


class Ending(Case):
    def test_a_query_that_does_not_end_in_time_loses_its_connection(self) -> None:
        asking = start(self.pool.query("wait"))
        closing = start(self.pool.close(2.0))
        self.clock.advance(1.9)
        self.assertFalse(self.made[0].closed)
        self.clock.advance(0.2)
        self.assertTrue(self.made[0].closed)
        assert self.made[0].answer is not None
        self.made[0].answer.errback(DatabaseGone("closed"))
        self.failure(asking, DatabaseGone)
        self.successResultOf(closing)

    def test_connecting_and_waiting_callers_are_refused(self) -> None:
        connecting: Deferred[None] = Deferred()

        async def slow() -> Connection:
            await connecting
            raise AssertionError

        self.pool = Pool(slow, 2, 5.0, self.clock)
        waiting = start(self.pool.query("a"))
        with captured_logs() as events:
            self.successResultOf(start(self.pool.close()))
        error = self.failure(waiting, ApiError)
        assert isinstance(error, ApiError)
        self.assertEqual((error.code, events), ("shutting_down", []))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_connection_made_after_closing_is_closed(self) -> None:
        for ending in ("made", "refused"):
            self.setUp()
            cancelled, later = Deferred[None](), Deferred[None]()

            async def stubborn(
                cancelled: Deferred[None] = cancelled, later: Deferred[None] = later
            ) -> Connection:
                with contextlib.suppress(CancelledError):
                    await cancelled
                await later
                return await self.connect()

            self.pool = Pool(stubborn, 2, 5.0, self.clock)
            waiting = start(self.pool.query("a"))
            self.successResultOf(start(self.pool.close()))
            self.failure(waiting, ApiError)
            self.away = ending == "refused"
            later.callback(None)
            self.assertEqual([connection.closed for connection in self.made], [True] * (ending == "made"))
            self.assertEqual(self.clock.getDelayedCalls(), [], "nobody tries again")

    def test_a_connection_made_while_closing_is_closed(self) -> None:
        gate: Deferred[None] = Deferred(lambda going: going.callback(None))

        async def stubborn() -> Connection:
            await gate
            return await self.connect()

        self.pool = Pool(stubborn, 2, 5.0, self.clock)
        waiting = start(self.pool.query("a"))
        self.successResultOf(start(self.pool.close()))
        self.failure(waiting, ApiError)
        self.assertEqual([connection.closed for connection in self.made], [True])

    def test_close_waits_for_users_and_refuses_new_ones(self) -> None:
        for grace in (2.0, None):
            self.setUp()
            held, last = (self.successResultOf(start(self.pool.acquire())) for _ in range(2))
            closing = start(self.pool.close(grace))
            self.assertNoResult(closing)
            error = self.failure(start(self.pool.query("a")), ApiError)
            assert isinstance(error, ApiError)
            self.assertEqual(error.status, 503)
            self.pool.release(held)
            self.assertNoResult(closing)
            self.pool.release(last)
            self.successResultOf(closing)
            self.assertTrue(all(connection.closed for connection in self.made))
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_idle_connections_are_closed(self) -> None:
        for one in [self.successResultOf(start(self.pool.acquire())) for _ in range(2)]:
            self.pool.release(one)
        self.successResultOf(start(self.pool.close()))
        self.assertEqual([connection.closed for connection in self.made], [True, True])

    def test_a_waiter_that_gives_a_connection_back_makes_no_new_one(self) -> None:
        async def another(held: Connection) -> None:
            try:
                await self.pool.acquire()
            finally:
                self.pool.release(held)

        held = [self.successResultOf(start(self.pool.acquire())) for _ in range(2)]
        both = [start(another(one)) for one in held]
        self.successResultOf(start(self.pool.close()))
        for one in both:
            self.failure(one, ApiError)
        self.assertEqual([connection.closed for connection in self.made], [True, True])
