"""A pool makes connections on demand, and recovers by itself after the database was away."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.logger import formatEvent

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pool import FIRST_PAUSE_SECONDS, Pool
from project_service.errors import ApiError
from project_service.lifecycle import start
from tests.captured_log import captured_logs
from tests.unit.database.pool_case import Case


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
            self.assertEqual((len(self.made), self.pool.in_use), (3, 2), throw_away)

    def test_a_failure_to_connect_is_logged_without_libpqs_words(self) -> None:
        faults = iter([DatabaseGone("too many connections"), OSError("no route to 10.0.0.1")])

        async def broken() -> Connection:
            raise next(faults)

        self.pool = Pool(broken, 1, 5.0, self.clock)
        with captured_logs() as events:
            waiting = start(self.pool.query("a"))
            self.clock.advance(0.1)
        said = [formatEvent(event) for event in events]
        self.assertEqual(
            said, [f"cannot connect to the database: {why}" for why in ("too many connections", "OSError")]
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
