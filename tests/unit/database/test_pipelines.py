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
from project_service.database.connection import Connection, DatabaseGone, DatabaseSilent
from project_service.database.pipeline import SLOW_SECONDS, Run, Statements, Step, may_be_stale
from project_service.database.quickness import (
    QUICK_RUNS,
    QUICK_SECONDS,
    RUNS_AFTER_LIMIT,
    SMALL_BYTES,
    Quickness,
)
from project_service.database.sharing import (
    CHECK_SECONDS,
    IDLE_SECONDS,
    LIMIT_SECONDS,
    MAX_AGE_SECONDS,
    MAX_WAITING,
    Pipelines,
    answered,
)
from project_service.lifecycle import start

SETUP = [Step("select 'setup'", once=True)]
ASKED = [Step("select 1")]


LATE_SECONDS = LIMIT_SECONDS + SLOW_SECONDS


class FakeConnection:
    """A connection in pipeline mode, its own pipeline, whose runs are answered when a test says so."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.pipeline: FakeConnection | None = None
        self.statements = Statements()
        self.waiting: deque[Run] = deque()
        self.typical, self.usual = 0.0, SLOW_SECONDS
        self.since = 0.0
        self.submitted: list[tuple[int, Sequence[Step]]] = []
        self.flushed = 0
        self.on_lost: Callable[[Any], None] | None = None
        self.answer_seconds: float | None = 10.0
        self.expired = self.silent = self.discarded = self.abandoned = False

    def enter_pipeline(self) -> FakeConnection:
        self.pipeline = self
        return self

    def submit(self, version: int, steps: Sequence[Step]) -> Run:
        if steps == ASKED:
            self.statements.version = version
        if not self.waiting:
            self.since = self.clock.seconds()
        self.submitted.append((version, steps))
        run = Run(cast(Any, None), self.clock.seconds())
        self.waiting.append(run)
        return run

    def flush_soon(self) -> None:
        self.flushed += 1

    @property
    def awaiting_since(self) -> float | None:
        return self.waiting[0].sent if self.waiting else None

    def waited(self, now: float) -> float:
        return now - self.since

    def answer(self, fault: Exception | None = None) -> None:
        self.since = self.clock.seconds()
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

    def abandon(self) -> None:
        self.abandoned = True
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
        self.free, self.longest_wait = 3, 0.0
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

    def connect(self, opens: bool = True) -> FakeConnection:
        self.made.append(FakeConnection(self.clock))
        self.asked.pop(0).callback(cast(Any, self.made[-1]))
        if opens:
            self.made[-1].answer()
        return self.made[-1]

    def submit(self, version: int = 1) -> Run | None:
        run = self.shared.submit(version, ASKED)
        if run is not None:
            run.done.addErrback(lambda failure: failure.trap(DatabaseGone, psycopg2.Error))
        return run

    def opened(self, opens: bool = True) -> FakeConnection:
        self.assertIsNone(self.submit())
        return self.connect(opens)


class Opening(Case):
    def test_the_first_goes_elsewhere_and_makes_one_connection(self) -> None:
        for _ in range(3):
            self.assertIsNone(self.submit())
        self.assertEqual(len(self.asked), 1)
        connection = self.connect()
        self.assertIsNotNone(self.submit())
        self.assertEqual((connection.submitted[1:], connection.flushed), ([(1, ASKED)], 2))

    def test_no_connection_is_kept_for_pools_that_are_too_small(self) -> None:
        self.shared = self.pipelines(0)
        for self.free in (3, 0):
            self.assertIsNone(self.submit())
            self.assertEqual(self.asked, [])

    def test_what_opens_a_connection_goes_first(self) -> None:
        """The limit above all, also where nothing else is set."""
        for setup in ((), SETUP):
            self.shared = self.pipelines(setup=setup)
            connection = self.opened(opens=False)
            self.assertIsNotNone(self.submit())
            (limit, *others), asked = (steps for _, steps in connection.submitted)
            self.assertIn("least(50, ", limit.text)
            self.assertEqual((others, asked), (list(setup), ASKED))

    def test_a_connection_that_cannot_be_opened_is_given_back(self) -> None:
        connection = self.opened(opens=False)
        connection.answer(psycopg2.ProgrammingError("no such setting"))
        self.assertIsNone(self.submit())
        connection.answer()
        self.assertEqual((self.back, connection.discarded), ([connection], True))

    def test_a_connection_that_is_lost_before_it_is_opened_is_given_back(self) -> None:
        def lost() -> FakeConnection:
            raise DatabaseGone("lost")

        self.patch(FakeConnection, "enter_pipeline", lambda self: lost())
        connection = self.opened(opens=False)
        self.assertEqual((self.back, connection.discarded), ([connection], True))
        self.assertIsNone(self.submit())

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

    def test_while_no_other_is_free_one_comes_behind_those_that_take_long(self) -> None:
        """Unless nothing is heard of the server, although it should have ended them."""
        connection = self.opened()
        self.free = 0
        for _ in range(3):
            self.submit()
        for _ in range(2):
            self.clock.advance(LIMIT_SECONDS)
            self.assertIsNotNone(self.submit())
            connection.answer()
        self.clock.advance(LIMIT_SECONDS + SLOW_SECONDS + 0.001)
        self.assertIsNone(self.submit())

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

    def test_while_no_other_is_free_a_second_is_not_opened(self) -> None:
        self.opened()
        self.submit()
        self.clock.advance(MAX_AGE_SECONDS * 10)
        for free, asked in ((0, 0), (1, 1)):
            self.free = free
            self.assertIsNone(self.submit())
            self.assertEqual(len(self.asked), asked)


class Sparing(Case):
    """Of the connections that are shared one remains while others wait for a connection."""

    def setUp(self) -> None:
        super().setUp()
        self.opened()
        self.submit()
        self.clock.advance(MAX_AGE_SECONDS * 1.01)
        self.opened()
        self.made[0].answer()

    def wait(self, seconds: float) -> None:
        """Somebody has been waiting for so long when the time has passed."""
        self.free = -1
        self.shared.wanted()
        self.longest_wait = seconds
        self.clock.advance(LATE_SECONDS)

    def test_others_are_given_back_when_somebody_has_waited(self) -> None:
        self.wait(LATE_SECONDS)
        self.made[1].answer()
        self.assertEqual(self.back, [self.made[1]])
        self.assertIsNotNone(self.submit())
        self.wait(LATE_SECONDS)
        self.made[0].answer()
        self.assertEqual(self.back, [self.made[1]])

    def test_whoever_has_waited_for_less_is_looked_at_again(self) -> None:
        self.wait(LATE_SECONDS / 2)
        self.assertEqual(len(self.made[1].waiting), 0)
        self.longest_wait = LATE_SECONDS
        self.clock.advance(LATE_SECONDS)
        self.made[1].answer()
        self.assertEqual(self.back, [self.made[1]])

    def test_while_nobody_waits_none_is_given_back(self) -> None:
        self.wait(0.0)
        self.free = 0
        self.clock.advance(LATE_SECONDS)
        self.clock.advance(LATE_SECONDS)
        self.assertEqual((self.back, len(self.made[1].waiting)), ([], 0))

    def test_closing_ends_the_waiting(self) -> None:
        self.shared.wanted()
        self.shared.close()
        for connection in self.made:
            connection.answer()
        self.assertEqual(self.clock.getDelayedCalls(), [])


class Doubting(SynchronousTestCase):
    def test_a_kind_that_was_quick_is_doubted_until_its_runs_are_measured(self) -> None:
        for measured, doubted in ((0.0, True), (1.0, False)):
            kind = Quickness.known()
            kind.doubt()
            self.assertEqual((kind.is_quick, kind.doubted), (False, True))
            kind.ran(measured)
            self.assertEqual((kind.is_quick, kind.doubted), (False, doubted))

    def test_a_kind_that_was_ended_is_not_doubted_but_slow(self) -> None:
        kind = Quickness.known()
        kind.exceeded()
        kind.doubt()
        self.assertEqual((kind.doubted, kind.is_slow), (False, True))


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

    def test_one_that_is_left_and_does_not_answer_is_given_up_as_well(self) -> None:
        connection = self.opened()
        self.submit()
        self.submit(version=2)
        self.assertEqual(self.back, [])
        self.clock.pump([CHECK_SECONDS] * 12)
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
        self.clock.advance(CHECK_SECONDS)
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
            connection = self.connect(opens=False)
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


class Canceled(psycopg2.extensions.QueryCanceledError):
    pgcode = "57014"


class Refused(psycopg2.ProgrammingError):
    pgcode = "42501"


class Moving(Case):
    """What waits behind slow neighbours is run elsewhere."""

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.opened()
        self.kinds: dict[str, Quickness] = {}
        # Who was told to use a connection of its own, and who has been answered.
        self.elsewhere: list[str] = []
        self.answered: list[str] = []

    def ask(self, *names: str) -> None:
        """Submits reads, each of the kind that its name begins with."""
        for name in names:
            kind = self.kinds.setdefault(name[0], Quickness.known())
            run = self.shared.submit(1, ASKED, kind)
            assert run is not None
            start(self.waits(name, run, kind))

    async def waits(self, name: str, run: Run, kind: Quickness) -> None:
        if await answered(run, kind):
            self.answered.append(name)
        else:
            self.free -= 1
            self.elsewhere.append(name)

    def pass_(self, seconds: float) -> None:
        """A while in which others are busy; what has arrived is read before anything is moved."""
        self.clock.pump([0.001] * round(seconds * 1000))

    def ended(self) -> None:
        """PostgreSQL has ended the oldest."""
        self.connection.answer(Canceled())

    def test_what_was_ended_is_run_elsewhere_and_its_kind_shares_no_more(self) -> None:
        self.ask("a")
        self.pass_(LIMIT_SECONDS)
        self.ended()
        self.assertEqual(self.elsewhere, ["a"])
        for number in range(RUNS_AFTER_LIMIT + QUICK_RUNS):
            self.assertFalse(self.kinds["a"].is_quick, number)
            self.kinds["a"].ran(0.0)
        self.assertTrue(self.kinds["a"].is_quick)

    def test_who_waits_behind_one_that_was_ended_is_answered_and_not_moved(self) -> None:
        self.ask("a", "b1", "b2")
        self.pass_(LIMIT_SECONDS)
        self.ended()
        self.pass_(SLOW_SECONDS / 2)
        for _ in range(2):
            self.connection.answer()
        self.pass_(1.0)
        self.assertEqual((self.elsewhere, self.answered), (["a"], ["b1", "b2"]))

    def test_who_waits_behind_several_is_moved_as_far_as_connections_are_free(self) -> None:
        """The kinds that were quick most often go first."""
        self.ask("a1", "d1", "b1", "c1", "b2")
        self.kinds["b"].quick_runs += 1
        self.kinds["c"].quick_runs += 2
        self.pass_(LIMIT_SECONDS)
        self.ended()
        self.pass_(2 * SLOW_SECONDS)
        self.assertEqual(self.elsewhere, ["a1", "c1", "b1"])
        # One of them is done.
        for _ in range(2):
            self.free += 1
            self.shared.freed()
        self.assertEqual(self.elsewhere, ["a1", "c1", "b1", "b2", "d1"])
        self.assertFalse(self.connection.abandoned)

    def test_a_kind_that_was_slow_is_moved_last(self) -> None:
        self.free = 10
        self.ask("a1", "a2", "b1", "c1")
        self.pass_(LIMIT_SECONDS)
        self.ended()
        self.pass_(2 * SLOW_SECONDS)
        self.assertEqual(self.elsewhere, ["a1", "b1", "c1", "a2"])
        self.assertFalse(self.connection.abandoned)

    def test_a_connection_that_only_slow_ones_hold_is_given_up_if_no_other_is_free(self) -> None:
        """What waits there gets the place that it had."""
        for free in (1, 3):
            self.free = free
            self.ask("a1", "a2", "a3", "b1", "b2", "b3")
            self.pass_(LIMIT_SECONDS)
            self.ended()
            self.assertEqual((self.elsewhere, self.connection.abandoned), (["a1"], False))
            self.pass_(2 * SLOW_SECONDS)
            self.assertEqual(sorted(self.elsewhere), ["a1", "a2", "a3", "b1", "b2", "b3"])
            self.assertTrue(self.connection.abandoned)
            self.assertIs(self.back[-1], self.connection)
            self.elsewhere.clear()
            self.kinds.clear()
            self.connection = self.opened()
        self.assertEqual(self.answered, [])

    def test_a_connection_of_a_silent_server_is_not_given_up(self) -> None:
        self.free = 1
        self.ask("a1", "b1")
        self.kinds["a"].exceeded()
        self.pass_(1.0)
        self.assertEqual((self.elsewhere, self.connection.abandoned), (["b1"], False))

    def test_a_moved_read_is_answered_once(self) -> None:
        """What the shared connection answers is not used; but its kind shares no more, if it was ended there too."""
        self.ask("a", "d", "b", "c")
        self.kinds["d"].quick_runs -= 1
        self.pass_(LIMIT_SECONDS)
        self.ended()
        self.pass_(2 * SLOW_SECONDS)
        self.assertEqual(self.elsewhere, ["a", "b", "c"])
        self.connection.answer()
        self.ended()
        self.connection.answer()
        self.assertEqual((self.elsewhere, self.answered), (["a", "b", "c"], ["d"]))
        quick = [name for name, kind in self.kinds.items() if kind.is_quick]
        self.assertEqual(quick, ["d", "c"])

    def test_while_no_connection_is_free_nothing_is_moved(self) -> None:
        self.free = 0
        self.ask("a", "b", "c")
        self.pass_(LIMIT_SECONDS)
        self.ended()
        self.pass_(1.0)
        self.assertEqual(self.elsewhere, ["a"])
        self.connection.answer()
        self.connection.answer()
        self.assertEqual(self.answered, ["b", "c"])

    def test_of_a_silent_server_one_read_is_asked_again(self) -> None:
        """And the others when that is answered."""
        self.ask("a", "b", "c")
        self.pass_(1.0)
        self.assertEqual(self.elsewhere, ["a"])
        self.free += 1
        self.shared.freed()
        self.assertEqual(self.elsewhere, ["a", "b", "c"])

    def test_a_server_that_is_slow_as_a_whole_is_asked_for_nothing_twice(self) -> None:
        """Something is answered all the time, or what comes takes long as usual."""
        for usual, pause in ((SLOW_SECONDS, SLOW_SECONDS / 2), (0.2, 0.1)):
            self.connection.usual = usual
            self.ask(*["a"] * 40)
            for _ in range(40):
                self.pass_(pause)
                self.connection.answer()
            self.assertEqual((self.elsewhere, len(self.answered)), ([], 40))
            self.answered.clear()

    def test_a_process_that_is_late_itself_reads_first_what_has_come(self) -> None:
        self.ask("a", "b")
        for _ in range(2):
            self.clock.callLater(1.0, self.connection.answer)
        self.clock.advance(1.0)
        self.assertEqual((self.elsewhere, self.answered), ([], ["a", "b"]))

    def test_who_has_left_is_not_moved(self) -> None:
        run = self.shared.submit(1, ASKED, Quickness.known())
        assert run is not None
        run.done.addErrback(lambda failure: None)
        run.done.cancel()
        self.pass_(1.0)
        self.assertIsNotNone(run.quickness)
        self.connection.answer()

    def test_who_waits_on_a_connection_that_is_being_left_is_moved_as_well(self) -> None:
        self.ask("a", "b")
        self.submit(version=2)
        self.pass_(LIMIT_SECONDS)
        self.ended()
        self.pass_(2 * SLOW_SECONDS)
        self.assertEqual(self.elsewhere, ["a", "b"])

    def test_a_lost_connection_is_another_matter_than_a_silent_one(self) -> None:
        self.ask("a")
        self.connection.lose()
        self.assertEqual(self.elsewhere, ["a"])
        run, kind = Run(cast(Any, None), 0.0), Quickness.known()
        waiting = start(answered(run, kind))
        run.done.errback(DatabaseSilent("it does not answer"))
        self.failureResultOf(waiting, DatabaseSilent)

    def test_what_the_server_refuses_is_refused(self) -> None:
        run, kind = Run(cast(Any, None), 0.0), Quickness.known()
        waiting = start(answered(run, kind))
        run.done.errback(Refused())
        self.failureResultOf(waiting, Refused)
        self.assertFalse(kind.is_quick)

    def test_when_nothing_waits_nothing_is_looked_at(self) -> None:
        self.ask("a")
        self.connection.answer()
        self.pass_(LATE_SECONDS + 0.01)
        self.assertEqual(len(self.clock.getDelayedCalls()), 1, "that of silent connections")


class Quick(SynchronousTestCase):
    def test_a_kind_is_quick_after_so_many_in_a_row(self) -> None:
        kind = Quickness()
        for seconds, size, quick in (
            *[(QUICK_SECONDS, SMALL_BYTES, False)] * (QUICK_RUNS - 1),
            (0.0, 0, True),
            (QUICK_SECONDS * 1.01, 0, False),
            *[(0.0, 0, False)] * (QUICK_RUNS - 1),
            (0.0, 0, True),
            (0.0, SMALL_BYTES + 1, False),
        ):
            kind.ran(seconds, size)
            self.assertIs(kind.is_quick, quick)

    def test_a_failure_does_not_shorten_how_long_a_kind_does_not_share(self) -> None:
        kind = Quickness()
        kind.exceeded()
        kind.failed()
        self.assertEqual(kind.quick_runs, -RUNS_AFTER_LIMIT)


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
