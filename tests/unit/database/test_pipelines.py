"""Prepared statements, and the connections that quick reads share: opening, accepting runs, and giving back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import psycopg2
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service import errors
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pipeline import Run, Statements, Step, may_be_stale
from project_service.database.pool import (
    CHECK_SECONDS,
    IDLE_SECONDS,
    MAX_AGE_SECONDS,
    MAX_WAITING,
    Pipelines,
)

SETUP = [Step("select 'setup'", once=True)]
ASKED = [Step("select 1")]


class FakeConnection:
    """A connection in pipeline mode, its own pipeline, whose runs are answered when a test says so."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.pipeline: FakeConnection | None = None
        self.statements = Statements()
        self.waiting: deque[Run] = deque()
        self.typical = 0.0
        self.submitted: list[tuple[int, Sequence[Step]]] = []
        self.flushed = 0
        self.on_lost: Callable[[Any], None] | None = None
        self.answer_seconds: float | None = 10.0
        self.expired = self.silent = self.discarded = False

    def enter_pipeline(self) -> FakeConnection:
        self.pipeline = self
        return self

    def submit(self, version: int, steps: Sequence[Step]) -> Run:
        if steps and steps is not SETUP:
            self.statements.version = version
        self.submitted.append((version, steps))
        run = Run(cast(Any, None), self.clock.seconds())
        self.waiting.append(run)
        return run

    def flush_soon(self) -> None:
        self.flushed += 1

    @property
    def awaiting_since(self) -> float | None:
        return self.waiting[0].sent if self.waiting else None

    def answer(self, fault: Exception | None = None) -> None:
        run = self.waiting.popleft()
        if fault is None:
            run.done.callback(None)
        else:
            run.done.errback(fault)

    def discard(self) -> None:
        self.discarded = True

    def timed_out(self) -> None:
        self.silent = True
        self.lose()

    def lose(self) -> None:
        self.pipeline = None
        while self.waiting:
            self.answer(DatabaseGone("lost"))
        if self.on_lost is not None:
            self.on_lost(self)


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.asked: list[Deferred[Connection]] = []
        self.made: list[FakeConnection] = []
        self.back: list[Any] = []
        self.shared = self.pipelines()

    def pipelines(self, size: int = 2, setup: Sequence[Step] = ()) -> Pipelines:
        return Pipelines(cast(Any, self), size, self.clock, setup)

    # The pool.

    async def acquire(self) -> Connection:
        waiting: Deferred[Connection] = Deferred()
        self.asked.append(waiting)
        return await waiting

    def release(self, connection: Connection) -> None:
        self.back.append(connection)

    def connect(self) -> FakeConnection:
        self.made.append(FakeConnection(self.clock))
        self.asked.pop(0).callback(cast(Any, self.made[-1]))
        return self.made[-1]

    def submit(self, version: int = 1) -> Run | None:
        run = self.shared.submit(version, ASKED)
        if run is not None:
            run.done.addErrback(lambda failure: failure.trap(DatabaseGone, psycopg2.Error))
        return run

    def opened(self) -> FakeConnection:
        self.assertIsNone(self.submit())
        return self.connect()


class Opening(Case):
    def test_the_first_goes_elsewhere_and_makes_one_connection(self) -> None:
        for _ in range(3):
            self.assertIsNone(self.submit())
        self.assertEqual(len(self.asked), 1)
        connection = self.connect()
        self.assertIsNotNone(self.submit())
        self.assertEqual((connection.submitted, connection.flushed), ([(1, ASKED)], 1))

    def test_no_connection_is_kept_for_pools_that_are_too_small(self) -> None:
        self.shared = self.pipelines(0)
        self.assertIsNone(self.submit())
        self.assertEqual(self.asked, [])

    def test_what_opens_a_connection_goes_first(self) -> None:
        self.shared = self.pipelines(setup=SETUP)
        connection = self.opened()
        self.assertIsNotNone(self.submit())
        self.assertEqual([steps for _, steps in connection.submitted], [SETUP, ASKED])

    def test_a_connection_that_cannot_be_opened_is_given_back(self) -> None:
        self.shared = self.pipelines(setup=SETUP)
        connection = self.opened()
        connection.answer(psycopg2.ProgrammingError("no such setting"))
        self.assertIsNone(self.submit())
        connection.answer()
        self.assertEqual((self.back, connection.discarded), ([connection], True))

    def test_while_the_database_is_away_all_go_elsewhere(self) -> None:
        for fault in (errors.database_unavailable(), DatabaseGone("away")):
            self.assertIsNone(self.submit())
            self.asked.pop().errback(fault)
        self.assertEqual((self.submit(), len(self.asked)), (None, 1))


class Taking(Case):
    def test_a_full_pipeline_takes_no_more_and_another_is_opened(self) -> None:
        connection = self.opened()
        for _ in range(MAX_WAITING):
            self.assertIsNotNone(self.submit())
        self.assertIsNone(self.submit())
        other = self.connect()
        self.assertIsNotNone(self.submit())
        self.assertEqual((len(connection.waiting), len(other.waiting)), (MAX_WAITING, 1))
        connection.answer()
        self.submit()
        self.assertEqual(len(connection.waiting), MAX_WAITING)

    def test_nobody_comes_behind_one_that_takes_long(self) -> None:
        connection = self.opened()
        self.submit()
        self.clock.advance(MAX_AGE_SECONDS * 1.01)
        self.assertIsNone(self.submit())
        connection.answer()
        self.assertIsNotNone(self.submit())

    def test_there_are_never_more_than_allowed(self) -> None:
        for _ in range(2):
            self.opened()
            self.submit()
            self.clock.advance(MAX_AGE_SECONDS * 1.01)
        self.assertIsNone(self.submit())
        self.assertEqual(self.asked, [])

    def test_a_connection_is_for_one_version_of_the_schema_cache(self) -> None:
        connection = self.opened()
        self.submit(version=2)
        self.assertIsNone(self.submit(version=1), "planned before the schema changed")
        self.asked.pop().errback(DatabaseGone("away"))
        self.assertIsNotNone(self.submit(version=2))
        self.assertIsNone(self.submit(version=3))
        self.assertEqual(self.back, [])
        for _ in range(3):
            connection.answer()
        self.assertEqual((self.back, connection.discarded), ([connection], True))
        self.connect()
        self.assertIsNotNone(self.submit(version=3))


class Ending(Case):
    def test_a_lost_connection_is_given_back_and_replaced(self) -> None:
        connection = self.opened()
        self.submit()
        connection.lose()
        self.assertEqual(self.back, [connection])
        self.assertIsNone(self.submit())
        self.connect()
        self.assertIsNotNone(self.submit())

    def test_a_server_that_does_not_answer_is_given_up(self) -> None:
        connection = self.opened()
        self.submit()
        self.clock.pump([CHECK_SECONDS] * 9)
        self.assertFalse(connection.silent)
        self.clock.pump([CHECK_SECONDS] * 3)
        self.assertEqual((connection.silent, self.back), (True, [connection]))

    def test_without_a_limit_it_is_waited_for(self) -> None:
        connection = self.opened()
        connection.answer_seconds = None
        self.submit()
        self.clock.pump([CHECK_SECONDS] * 20)
        self.assertFalse(connection.silent)

    def test_one_that_nobody_uses_is_given_back(self) -> None:
        connection = self.opened()
        self.submit()
        connection.answer()
        self.clock.pump([CHECK_SECONDS] * int(IDLE_SECONDS / CHECK_SECONDS))
        self.assertEqual(len(connection.waiting), 0)
        self.clock.pump([CHECK_SECONDS] * 3)
        connection.answer()
        self.assertEqual((self.back, connection.discarded), ([connection], True))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_one_that_is_to_be_left_is_given_back_when_all_on_it_is_done(self) -> None:
        connection = self.opened()
        self.submit()
        connection.expired = True
        self.clock.advance(CHECK_SECONDS)
        connection.answer()
        self.assertEqual(self.back, [])
        connection.answer()
        self.assertEqual(self.back, [connection])

    def test_closing_gives_all_back_and_opens_none(self) -> None:
        connection = self.opened()
        self.submit()
        self.shared.close()
        self.assertIsNone(self.submit())
        self.assertEqual((self.asked, self.back), ([], []))
        connection.answer()
        connection.answer()
        self.assertEqual((self.back, self.clock.getDelayedCalls()), ([connection], []))

    def test_one_that_is_being_opened_when_all_close_is_given_back(self) -> None:
        for setup in ((), SETUP):
            self.shared = self.pipelines(setup=setup)
            self.submit()
            self.shared.close()
            connection = self.connect()
            while connection.waiting:
                connection.answer()
            self.assertEqual(self.back.pop(), connection)
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_one_that_is_lost_while_it_is_given_back_is_given_back_once(self) -> None:
        connection = self.opened()
        self.submit()
        self.shared.close()
        connection.lose()
        self.assertEqual(self.back, [connection])


class Preparing(SynchronousTestCase):
    def setUp(self) -> None:
        self.statements = Statements(3)

    def prepared(self, text: str, role: str = "anon") -> str:
        """The name under which ``text`` is prepared, now or before."""
        known = self.statements.known.get((role, text)) or self.statements.add(role, text)
        return known.name.decode()

    def test_a_statement_is_prepared_once_for_each_role(self) -> None:
        """Where PostgreSQL inlines a function, it checks rights when it plans."""
        names = [self.prepared(text, role) for text, role in (("a", "x"), ("a", "y"), ("b", "x"), ("a", "x"))]
        self.assertEqual(names, ["service_1", "service_2", "service_3", "service_1"])
        self.assertEqual(self.statements.unwanted, [])

    def test_a_new_schema_cache_version_drops_all_statements(self) -> None:
        self.prepared("a")
        self.prepared("b")
        self.statements.use_version(2)
        self.assertEqual((self.statements.known, self.statements.version), ({}, 2))
        self.assertEqual(self.statements.take_unwanted(), [b"service_1", b"service_2"])
        self.assertEqual(self.statements.take_unwanted(), [], "each is dropped once")
        self.assertEqual(self.prepared("a"), "service_3", "a name is never used again")

    def test_the_oldest_statement_makes_room(self) -> None:
        for text in "abcd":
            self.prepared(text)
        self.assertEqual([text for _, text in self.statements.known], ["b", "c", "d"])
        self.assertEqual(self.statements.take_unwanted(), [b"service_1"])

    def test_a_forgotten_statement_is_dropped_once_and_prepared_anew(self) -> None:
        self.prepared("a")
        stale = self.statements.known["anon", "a"]
        for _ in range(2):
            self.statements.forget(stale)
        self.assertEqual(self.prepared("a"), "service_2")
        self.assertEqual(self.statements.take_unwanted(), [b"service_1"])

    def test_which_errors_may_be_due_to_preparing(self) -> None:
        for code, stale in (
            ("26000", True),
            ("0A000", True),
            ("42883", True),
            ("XX000", True),
            ("23505", False),
            ("42501", False),
            ("57014", False),
            (None, False),
        ):
            self.assertIs(may_be_stale(code), stale, code)
