"""Acting as somebody: whose plans are used, when connections are made as new, and how current the trust is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

import orjson
import psycopg2
from attrs import define, evolve, field
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase, TestCase

from project_service.database.acting import Actor, Preamble, Recycler, Session, TrustReader
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pipeline import Run, Step
from project_service.database.pool import Pool
from project_service.database.quickness import Quickness
from project_service.database.slow import NOT_WATCHED, SlowStatements
from project_service.database.trust import UNKNOWN, Trust
from project_service.lifecycle import start
from tests.captured_log import captured_logs
from tests.unit.tables.schema import TRUST

TRUSTED = Trust(1)
GUARDED = Trust(1, guarded=True)
UNSAFE = Trust(1, leaves=True)


@define(eq=False)
class FakeConnection:
    """Keeps what is sent to it. ``prepared`` is whether SQL is said to have prepared statements itself."""

    plans_of: object = None
    recycled: int | None = None
    own: str = "set_config('search_path', '', false)"
    usable: bool = True
    altered: bool = False
    pooled: bool = False
    discarded: bool = False
    prepared: bool = False
    fault: Exception | None = None
    extra_seconds: float | None = 0.0
    role: str = ""
    slow: SlowStatements = NOT_WATCHED
    on_lost: Any = None
    waiting: Deferred[None] | None = None
    sent: list[Any] = field(factory=list)

    async def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        self.sent.append(sql)
        if self.fault is not None:
            raise self.fault
        if self.waiting is not None:
            await self.waiting
        return [("", True, self.prepared)]

    async def query_prepared(self, sql: str, params: Any) -> list[tuple[Any, ...]]:
        return await self.query(sql)

    async def execute(self, sql: str) -> None:
        await self.query(sql)

    async def run(self, steps: Sequence[Step], version: int = 0, timed: bool = False) -> Run:
        self.sent.append([step.text for step in steps])
        return Run(cast(Any, None), 0.0)

    def discard(self) -> None:
        self.discarded, self.usable = True, False

    def close(self) -> None:
        self.usable = False


def preamble(role: str = "reader", trust: Trust = TRUSTED, **more: Any) -> Preamble:
    return Preamble((("role", role),), role, trust=trust, has_no_path=True, **more)


class Plans(SynchronousTestCase):
    def run_as(self, connection: FakeConnection, reported: Preamble) -> list[Any]:
        """What is sent before the statement's own run."""
        connection.sent.clear()
        session = Session(cast(Connection, connection), reported)
        self.successResultOf(start(session.run(Step("select 1"))))
        self.assertEqual(connection.sent[-1][-1], "select 1")
        return connection.sent[:-1]

    def test_a_new_connection_has_nobodys_plans(self) -> None:
        self.assertEqual(self.run_as(FakeConnection(), preamble(trust=GUARDED)), [])

    def test_plans_pass_to_another_role_only_where_they_hold_nothing_of_the_first(self) -> None:
        for trust, forgets in ((TRUSTED, False), (GUARDED, True)):
            connection = FakeConnection()
            self.run_as(connection, preamble("one", trust))
            self.assertEqual(self.run_as(connection, preamble("one", trust)), [])
            self.assertEqual(self.run_as(connection, preamble("other", trust)), ["DISCARD PLANS"] * forgets)
            self.assertEqual(self.run_as(connection, preamble("other", trust)), [])

    def test_all_forms_of_statements_take_the_plans(self) -> None:
        asks: tuple[Callable[[Session], Coroutine[Any, Any, object]], ...] = (
            lambda session: session.run(Step("select 1")),
            lambda session: session.text("select 1"),
            lambda session: session.own("select 1", ()),
        )
        for ask in asks:
            connection = FakeConnection(plans_of="somebody")
            session = Session(cast(Connection, connection), preamble(trust=GUARDED))
            self.successResultOf(start(ask(session)))
            self.assertEqual(connection.sent[0], "DISCARD PLANS")


def recycler(trust: Trust, changes_role: bool = False) -> Recycler:
    return Recycler(lambda: trust, changes_role)


class Recycling(SynchronousTestCase):
    def recycled(self, connection: FakeConnection, trust: Trust) -> None:
        self.successResultOf(start(recycler(trust).recycle(cast(Connection, connection))))

    def test_when_a_connection_has_to_be_made_as_new(self) -> None:
        for trust, changes_role, due in (
            (TRUSTED, False, False),
            (GUARDED, True, False),
            (UNSAFE, False, True),
            (evolve(TRUSTED, closes=True), False, True),
            (evolve(TRUSTED, false_constants=("f()",)), False, True),
            (evolve(TRUSTED, sets_role=True), False, False),
            (evolve(TRUSTED, sets_role=True), True, True),
            (evolve(TRUSTED, version=2), False, True),
            (UNKNOWN, False, True),
        ):
            connection = cast(Connection, FakeConnection())
            recycler(TRUSTED).made(connection)
            self.assertIs(recycler(trust, changes_role).due(connection), due, trust)

    def test_it_is_made_as_new_once_after_a_change(self) -> None:
        connection = FakeConnection(recycled=1, plans_of="somebody")
        newer = evolve(TRUSTED, version=2)
        self.recycled(connection, newer)
        self.assertFalse(recycler(newer).due(cast(Connection, connection)))
        self.assertEqual((connection.plans_of, connection.discarded), (None, False))

    def test_nothing_of_a_session_is_left(self) -> None:
        connection = FakeConnection()
        self.recycled(connection, evolve(UNSAFE, clears="clear(); "))
        (sent,) = connection.sent
        for clears in (
            "clear(); ",
            *("RESET ROLE", "RESET ALL", "CLOSE ALL", "UNLISTEN *", "DISCARD TEMP", "DISCARD SEQUENCES"),
            *("DISCARD PLANS", "pg_catalog.pg_advisory_unlock_all()", connection.own),
        ):
            self.assertIn(clears, sent)
        self.assertLess(sent.index("RESET ALL"), sent.index(connection.own))
        self.assertLess(sent.index("clear(); "), sent.index("RESET ROLE"))

    def test_a_connection_that_cannot_be_made_as_new_is_discarded(self) -> None:
        for broken in (
            FakeConnection(fault=psycopg2.OperationalError()),
            FakeConnection(fault=DatabaseGone("lost")),
            FakeConnection(prepared=True),
        ):
            self.recycled(broken, UNSAFE)
            self.assertTrue(broken.discarded)

    def test_what_only_a_new_connection_is_free_of_ends_this_one(self) -> None:
        connection = FakeConnection()
        self.recycled(connection, evolve(TRUSTED, closes=True))
        self.assertEqual((connection.discarded, connection.sent), (True, []))


class InPool(TestCase):
    """The pool makes connections as new before anybody else gets them, and nobody waits who does not have to."""

    def setUp(self) -> None:
        self.trust = UNSAFE
        self.made: list[FakeConnection] = []
        self.pool = Pool(self.connect, 1, 5.0, Clock())
        self.actor = Actor(self.pool, lambda: self.trust)

    async def connect(self) -> Connection:
        self.made.append(FakeConnection())
        return cast(Connection, self.made[-1])

    def test_the_next_caller_waits_and_the_one_before_does_not(self) -> None:
        first = self.successResultOf(start(self.pool.acquire()))
        (connection,) = self.made
        waiting = start(self.pool.acquire())
        connection.waiting = Deferred()
        self.pool.release(first)
        self.assertEqual(len(connection.sent), 1)
        self.assertNoResult(waiting)
        connection.waiting.callback(None)
        self.assertIs(self.successResultOf(waiting), first)

    def test_it_is_made_as_new_once_between_two_callers(self) -> None:
        for _ in range(3):
            self.pool.release(self.successResultOf(start(self.pool.acquire())))
        (connection,) = self.made
        self.assertEqual(len(connection.sent), 3)

    def test_an_idle_connection_is_made_as_new_after_a_change(self) -> None:
        self.trust = TRUSTED
        self.pool.release(self.successResultOf(start(self.pool.acquire())))
        (connection,) = self.made
        self.assertEqual(connection.sent, [])
        self.trust = evolve(TRUSTED, version=2)
        self.successResultOf(start(self.pool.acquire()))
        self.assertEqual(len(connection.sent), 1)

    def test_whoever_comes_meanwhile_gets_it_and_not_another_one(self) -> None:
        self.pool = Pool(self.connect, 2, 5.0, Clock())
        self.pool.recycler = Recycler(lambda: self.trust)
        first = self.successResultOf(start(self.pool.acquire()))
        (connection,) = self.made
        connection.waiting = Deferred()
        self.pool.release(first)
        second, third = (start(self.pool.acquire()) for _ in range(2))
        self.assertEqual(len(self.made), 2, "one for the third")
        connection.waiting.callback(None)
        self.assertEqual({self.successResultOf(second), self.successResultOf(third)}, {*self.made})

    def test_one_that_is_discarded_makes_room_for_another(self) -> None:
        self.trust = evolve(TRUSTED, closes=True)
        first = self.successResultOf(start(self.pool.acquire()))
        waiting = start(self.pool.acquire())
        self.pool.release(first)
        self.assertIsNot(self.successResultOf(waiting), first)
        self.assertEqual([one.usable for one in self.made], [False, True])

    def test_closing_waits_for_it(self) -> None:
        first = self.successResultOf(start(self.pool.acquire()))
        (connection,) = self.made
        connection.waiting = Deferred()
        self.pool.release(first)
        closing = start(self.pool.close())
        self.assertNoResult(closing)
        connection.waiting.callback(None)
        self.successResultOf(closing)
        self.assertFalse(connection.usable)

    def test_what_does_not_stand_alone_shares(self) -> None:
        asked: list[tuple[int, Sequence[Step]]] = []

        class Pipelines:
            def submit(self, version: int, steps: Sequence[Step], quickness: Quickness) -> Run:
                asked.append((version, steps))
                return Run(cast(Any, None), 0.0)

        self.pool.pipelines = cast(Any, Pipelines())
        for trust, shares in ((TRUSTED, True), (UNSAFE, False), (GUARDED, False), (UNKNOWN, False)):
            run = self.actor.share(preamble(trust=trust), "", Step("select 1"), 7, Quickness.known())
            self.assertIs(run is not None, shares, trust)
        ((version, steps),) = asked
        self.assertEqual((version, steps[-1].text), (7, "select 1"))
        self.assertIsNone(self.actor.share(preamble(), "", Step("select 1"), 7, Quickness()))


class Reading(SynchronousTestCase):
    """The trust in a database that has no schema cache."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.answers: list[Deferred[list[tuple[Any, ...]]]] = []
        self.reader = TrustReader(self.query, self.at_once, self.clock)
        self.reader.startService()

    async def query(self, sql: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        self.answers.append(Deferred())
        return await self.answers[-1]

    async def at_once(self, function: Callable[[], Any]) -> Any:
        return function()

    def answer(self, number: int, **more: Any) -> None:
        self.answers[number].callback([(orjson.dumps({**TRUST, **more}),)])

    def test_it_is_unknown_until_it_has_been_read(self) -> None:
        self.assertIs(self.reader.trust(), UNKNOWN)
        reading = start(self.reader.reload())
        self.assertIs(self.reader.trust(), UNKNOWN)
        self.answer(0)
        self.successResultOf(reading)
        self.assertTrue(self.reader.trust().clean)

    def test_it_is_unknown_from_the_announcement_of_a_change(self) -> None:
        self.reader.announce()
        self.answer(0)
        before = self.reader.trust()
        self.reader.notified("reload schema")
        self.assertIs(self.reader.trust(), UNKNOWN)
        self.answer(1, expressions=True)
        after = self.reader.trust()
        self.assertTrue(after.leaves)
        self.assertGreater(after.version, before.version)

    def test_a_change_during_a_reading_is_read_once_more(self) -> None:
        self.reader.announce()
        self.reader.announce()
        self.answer(0)
        self.assertIs(self.reader.trust(), UNKNOWN)
        self.answer(1)
        self.assertTrue(self.reader.trust().clean)

    def test_a_reading_that_failed_is_tried_again(self) -> None:
        with captured_logs() as events:
            self.reader.announce()
            self.answers[0].errback(DatabaseGone("away"))
        self.assertEqual(len(events), 1)
        self.assertIs(self.reader.trust(), UNKNOWN)
        self.clock.advance(2)
        self.answer(1)
        self.assertTrue(self.reader.trust().clean)

    def test_nothing_is_tried_after_the_end(self) -> None:
        self.reader.announce()
        self.reader.stopService()
        with captured_logs():
            self.answers[0].errback(DatabaseGone("away"))
        self.assertEqual(self.clock.getDelayedCalls(), [])
