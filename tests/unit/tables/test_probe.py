"""The probe: how many rows are read at once to see whether a result is large, and how many queries that takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import psycopg2
from attrs import evolve, frozen
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.pipeline import Statements as Prepared
from project_service.http.admission import Slot
from project_service.lifecycle import start
from project_service.tables.errors import TableError
from project_service.tables.execution import Executor
from project_service.tables.outcome import MAX_PROBED_ROWS, UNKNOWN_ROWS, Outcome, Probe
from project_service.tables.planner import Planner
from tests.unit.tables.planning import CONFIG, planned, preamble, waited

UNPREPARED = evolve(CONFIG, prepare=False)


class Database:
    """A database with rows that are all of one size."""

    def __init__(self, rows: int, size_of_row: int) -> None:
        self.rows, self.size_of_row, self.statements = rows, size_of_row, Prepared()
        self.asked: list[int] = []

    async def query(self, sql: str, params: Sequence[str]) -> list[tuple[Any, ...]]:
        self.asked.append(int(params[-1]))
        rows = min(self.rows, self.asked[-1])
        size = rows * self.size_of_row
        if size > 2**30:
            raise TooLarge
        return [(None, rows, b"[]" if size <= CONFIG.stream_threshold_bytes else None, None, None, size)]


class TooLarge(psycopg2.OperationalError):
    pgcode = "54000"


class Refusing:
    """A database that refuses everything."""

    in_transaction = False

    def __init__(self, fault: type[Exception]) -> None:
        self.fault, self.statements = fault, Prepared()
        self.asked: list[int] = []

    async def query(self, sql: str, params: Sequence[str]) -> list[tuple[Any, ...]]:
        self.asked.append(int(params[-1]))
        raise self.fault


@frozen
class Lender:
    """A pool of one connection."""

    session: Any

    async def use(self, work: Callable[[Any], Awaitable[Outcome]]) -> Outcome:
        return await work(self.session)


class Statements(SynchronousTestCase):
    """How often PostgreSQL is asked for the rows of a view, whose size is not known."""

    def test_rows_that_fit_take_one_query_once_their_size_is_known(self) -> None:
        planner = Planner(CONFIG)
        statements: list[int] = []
        for asked in ("0", "1", "2"):
            found = planned("GET", "works", ("id", f"gt.{asked}"), planner=planner)
            session = Database(rows=3000, size_of_row=50)
            pool = cast(Any, Lender(session))
            executor = Executor(UNPREPARED, pool)
            outcome = self.successResultOf(
                start(waited(executor.execute(found, preamble(), "/works", Slot())))
            )
            self.assertEqual((outcome.whole, outcome.rows), (True, 3000))
            statements.append(len(session.asked))
        self.assertEqual(statements, [2, 1, 1])

    def test_rows_too_large_for_one_postgresql_value_are_streamed(self) -> None:
        found = planned("GET", "works", planner=Planner(CONFIG))
        session = Database(rows=3000, size_of_row=20_000_000)
        executor = Executor(UNPREPARED, cast(Any, Lender(session)))
        outcome = self.successResultOf(start(waited(executor.execute(found, preamble(), "/works", Slot()))))
        self.assertEqual((outcome.whole, session.asked), (False, [101, 2]))
        assert found.compiled.probe is not None
        self.assertEqual(found.compiled.probe.rows, 1)

    def test_other_failures_and_failures_for_a_single_row_are_not_retried(self) -> None:
        """A probe of 100 rows asks for one row more than that, the smallest probe for one more than one."""
        for fault, rows in ((psycopg2.OperationalError, UNKNOWN_ROWS), (TooLarge, 1)):
            found = planned("GET", "works", planner=Planner(CONFIG))
            assert found.compiled.probe is not None
            found.compiled.probe.rows = rows
            session = Refusing(fault)
            executor = Executor(UNPREPARED, cast(Any, Lender(session)))
            refused = start(waited(executor.execute(found, preamble(), "/works", Slot())))
            self.failureResultOf(refused, TableError)
            self.assertEqual(session.asked, [rows + 1])


class Probes(SynchronousTestCase):
    def test_the_first_probe_uses_the_row_size_of_the_catalogue(self) -> None:
        for row_bytes, rows in ((0, UNKNOWN_ROWS), (1, MAX_PROBED_ROWS), (1000, 100), (1_000_000, 1)):
            self.assertEqual(Probe.first(row_bytes, 100_000).rows, rows)

    def test_which_outcomes_fit(self) -> None:
        probe = Probe(100, 100_000)
        self.assertTrue(probe.fits(Outcome(rows=100, size=100_000), 100))
        self.assertFalse(probe.fits(Outcome(rows=101, size=1), 100))
        self.assertFalse(probe.fits(Outcome(rows=1, size=100_001), 100))

    def test_many_small_rows_are_probed_again_at_once_with_more(self) -> None:
        probe = Probe(100, 100_000)
        self.assertTrue(probe.again(Outcome(rows=101, size=1010), 100))
        self.assertEqual(probe.rows, MAX_PROBED_ROWS)
        self.assertFalse(probe.again(Outcome(rows=MAX_PROBED_ROWS + 1, size=99_999), MAX_PROBED_ROWS))

    def test_rows_that_would_not_fit_are_not_probed_again(self) -> None:
        probe = Probe(100, 100_000)
        self.assertFalse(probe.again(Outcome(rows=101, size=90_000), 100))
        self.assertFalse(probe.again(Outcome(rows=101, size=10_000_000), 100))
        self.assertEqual(probe.rows, 1)
