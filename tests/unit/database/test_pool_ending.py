"""Closing a pool: users finish or are cut off, waiters are refused, and no connection stays open."""

from __future__ import annotations

import contextlib

from twisted.internet.defer import CancelledError, Deferred

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pool import Pool
from project_service.errors import ApiError
from project_service.lifecycle import start
from tests.captured_log import captured_logs
from tests.unit.database.pool_case import Case


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
        with captured_logs() as said:
            self.successResultOf(start(self.pool.close()))
        error = self.failure(waiting, ApiError)
        assert isinstance(error, ApiError)
        self.assertEqual((error.code, said), ("shutting_down", []))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_connection_made_after_closing_is_closed(self) -> None:
        for ending in ("made", "refused"):
            self.setUp()
            told, later = Deferred[None](), Deferred[None]()

            async def stubborn(told: Deferred[None] = told, later: Deferred[None] = later) -> Connection:
                with contextlib.suppress(CancelledError):
                    await told
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
