"""The connection pool, with a clock of the test's own: it recovers, times out, discards doubtful connections, and
drains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.database.pool import WAITERS_PER_CONNECTION, Pool
from project_service.database.session import DatabaseGone, Session
from project_service.deferreds import start
from project_service.errors import ApiError


class FakeSession:
    """A session that answers when a test says so. ``state`` is its transaction status."""

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
        self.made: list[FakeSession] = []
        self.away = False
        self.pool = Pool(self.connect, 2, 5.0, self.clock)

    async def connect(self) -> Session:
        if self.away:
            raise DatabaseGone("refused")
        self.made.append(FakeSession())
        return cast(Session, self.made[-1])

    def failure(self, waiting: Deferred[Any], kind: type[Exception]) -> Exception:
        failed: Exception = self.failureResultOf(waiting, kind).value
        return failed


class Lending(Case):
    def test_a_long_queue_that_is_answered_at_once_does_not_outgrow_the_stack(self) -> None:
        first = [start(self.pool.query("wait")) for _ in range(2)]
        queued = [start(self.pool.query("a")) for _ in range(2 * WAITERS_PER_CONNECTION)]
        for session in self.made:
            assert session.answer is not None
            session.answer.callback([])
        for done in (*first, *queued):
            self.successResultOf(done)
        self.assertEqual(self.pool.in_use, 0)

    def test_connections_are_made_when_needed_and_used_again(self) -> None:
        self.assertEqual(self.made, [])
        for _ in range(3):
            self.assertEqual(self.successResultOf(start(self.pool.query("a"))), [("a",)])
        self.assertEqual(len(self.made), 1)

    def test_what_one_caller_was_allowed_the_next_is_not(self) -> None:
        session = self.successResultOf(start(self.pool.take()))
        session.extra_seconds = None
        self.pool.give_back(session)
        again = self.successResultOf(start(self.pool.take()))
        self.assertEqual((again is session, again.extra_seconds), (True, 0.0))

    def test_no_more_than_size_and_then_in_turn(self) -> None:
        held = [self.successResultOf(start(self.pool.take())) for _ in range(2)]
        waiting = [start(self.pool.take()) for _ in range(2)]
        self.assertNoResult(waiting[0])
        self.pool.give_back(held[0])
        self.assertIs(self.successResultOf(waiting[0]), held[0])
        self.assertNoResult(waiting[1])
        self.assertEqual(len(self.made), 2)

    def test_who_waits_too_long_is_told(self) -> None:
        for _ in range(2):
            self.successResultOf(start(self.pool.take()))
        waiting = start(self.pool.query("a"))
        self.clock.advance(5.1)
        error = self.failure(waiting, ApiError)
        assert isinstance(error, ApiError)
        self.assertEqual((error.status, error.code), (503, "database_unavailable"))
        self.assertEqual(self.pool.waiting, 0)

    def test_what_he_is_told_is_for_the_pools_owner_to_say(self) -> None:
        pool = Pool(self.connect, 1, 5.0, self.clock, late=TimeoutError, away=ConnectionError)
        held = self.successResultOf(start(pool.take()))
        waiting = start(pool.take())
        self.clock.advance(5.1)
        self.failure(waiting, TimeoutError)
        # The others are told how it is once nobody has a connection, and none can be made.
        self.away, cast(Any, held).closed = True, True
        pool.give_back(held)
        waiting = start(pool.take())
        self.clock.advance(5.1)
        self.failure(waiting, ConnectionError)

    def test_who_leaves_while_waiting_leaves_nothing(self) -> None:
        held = [self.successResultOf(start(self.pool.take())) for _ in range(2)]
        waiting = start(self.pool.query("a"))
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.pool.give_back(held[0])
        self.assertEqual((self.pool.waiting, self.pool.in_use), (0, 1))

    def test_too_many_waiters_are_refused_at_once(self) -> None:
        for _ in range(2):
            self.successResultOf(start(self.pool.take()))
        for _ in range(2 * WAITERS_PER_CONNECTION):
            start(self.pool.take()).addErrback(lambda _: None)
        error = self.failure(start(self.pool.take()), ApiError)
        assert isinstance(error, ApiError)
        self.assertEqual(error.code, "overloaded")


class Doubt(Case):
    def test_a_connection_that_is_not_idle_is_thrown_away(self) -> None:
        for state in ("active", "in transaction", "failed transaction", "unknown"):
            session = cast(FakeSession, self.successResultOf(start(self.pool.take())))
            session.state = state
            self.pool.give_back(cast(Session, session))
            self.assertTrue(session.closed, state)
        fresh = cast(FakeSession, self.successResultOf(start(self.pool.take())))
        self.assertFalse(fresh.closed)

    def test_a_connection_that_is_not_as_it_was_set_up_is_thrown_away(self) -> None:
        session = cast(FakeSession, self.successResultOf(start(self.pool.take())))
        session.altered = True
        self.pool.give_back(cast(Session, session))
        self.assertTrue(session.closed)
        self.assertIsNot(self.successResultOf(start(self.pool.take())), session)

    def test_use_goes_on_when_the_caller_is_cancelled(self) -> None:
        asking = start(self.pool.query("wait"))
        session = self.made[0]
        asking.cancel()
        self.failureResultOf(asking, CancelledError)
        # The connection is still at work: nobody else may have it.
        other = start(self.pool.query("other"))
        self.successResultOf(other)
        self.assertEqual(session.asked, ["wait"])
        assert session.answer is not None
        session.answer.callback([])
        self.assertEqual(self.pool.in_use, 0)

    def test_a_transaction_commits_although_its_caller_left(self) -> None:
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

    def test_a_commit_that_rolled_back_is_no_success(self) -> None:
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

    def test_one_that_is_found_dead_is_not_lent(self) -> None:
        self.successResultOf(start(self.pool.query("a")))
        self.made[0].state = "unknown"
        self.successResultOf(start(self.pool.query("b")))
        self.assertEqual((self.made[0].closed, self.made[0].asked, self.made[1].asked), (True, ["a"], ["b"]))

    def test_a_transaction_whose_connection_is_lost_fails_as_it_did(self) -> None:
        async def work(transaction: Any) -> None:
            self.made[0].state = "unknown"
            raise KeyError("x")

        self.failure(start(self.pool.transaction(work)), KeyError)
        self.assertEqual((self.made[0].asked, self.made[0].closed), (["begin"], True))
