"""How a transaction ends, what is left on its connection, estimated counts, and how many rows are probed."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import psycopg2
from attrs import define, evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.acting import Actor
from project_service.database.pipeline import Statements
from project_service.database.quickness import Quickness
from project_service.http.admission import Slot
from project_service.lifecycle import start
from project_service.tables.errors import TableError
from project_service.tables.planner import Planned, Planner
from project_service.tables.reply.outcome import MAX_PROBED_ROWS, UNKNOWN_ROWS, Outcome, Probe
from project_service.tables.run.execution import Executor
from project_service.tables.values import TablesConfig
from tests.unit.tables.planning import CONFIG, planned, preamble, waited

UNPREPARED = evolve(CONFIG, prepare=False)
ROW = b'{"id": 1, "title": "a", "author_id": 1, "editor_id": 1, "data": {}}'


@define
class Lender:
    """A pool of one connection."""

    session: Any
    recycler: Any = None

    def may_share(self, quickness: Quickness) -> bool:
        return False

    async def use(self, function: Callable[[Any], Awaitable[Outcome]]) -> Outcome:
        return await function(self.session)


def executing(result: Planned, session: object, config: TablesConfig = UNPREPARED) -> Deferred[Outcome]:
    executor = Executor(config, Actor(cast(Any, Lender(session))))
    return start(waited(executor.execute(result, preamble(), "/works", Slot())))


class FakeConnection:
    """A connection that returns ``row``, and for an EXPLAIN a plan of ``likely`` rows."""

    usable, in_transaction = True, True
    plans_of: object = None
    pooled = False
    own: str = ""

    def __init__(self, row: tuple[Any, ...], likely: int = 0) -> None:
        self.row, self.likely, self.statements = row, likely, Statements()
        self.sent: list[str] = []

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        self.sent.append(sql)
        explained = json.dumps([{"Plan": {"Plan Rows": self.likely}}])
        return [(explained,) if "EXPLAIN" in sql else self.row]

    async def execute(self, sql: str) -> None:
        self.sent.append(sql)


class Case(SynchronousTestCase):
    def executed(self, result: Planned, connection: FakeConnection, **settings: Any) -> Outcome:
        return self.successResultOf(executing(result, connection, evolve(UNPREPARED, **settings)))


class Endings(Case):
    """Transactions end with the message itself, by a commit after the outcome was checked, or by a rollback."""

    def ending(self, result: Planned, row: tuple[Any, ...], **settings: Any) -> str:
        connection = FakeConnection(row)
        self.executed(result, connection, **settings)
        first, *rest = connection.sent
        self.assertEqual(first.startswith("BEGIN"), bool(rest))
        return rest[-1] if rest else "implicit"

    written = (None, 1, None, None, None, None)
    read = (None, 1, b"[]", None, None, 2)

    def test_db_tx_end_and_prefer_tx_decide_between_commit_and_rollback(self) -> None:
        for tx_end, prefer, expected in (
            ("commit", "", "implicit"),
            ("commit", "tx=rollback", "implicit"),
            ("commit-allow-override", "", "implicit"),
            ("commit-allow-override", "tx=commit", "implicit"),
            ("commit-allow-override", "tx=rollback", "ROLLBACK"),
            ("rollback", "", "ROLLBACK"),
            ("rollback", "tx=commit", "ROLLBACK"),
            ("rollback-allow-override", "", "ROLLBACK"),
            ("rollback-allow-override", "tx=rollback", "ROLLBACK"),
            ("rollback-allow-override", "tx=commit", "implicit"),
        ):
            config = evolve(CONFIG, tx_end=cast(Any, tx_end))
            result = planned("POST", "works", body=ROW, prefer=prefer, config=config)
            self.assertEqual(self.ending(result, self.written, tx_end=tx_end), expected, (tx_end, prefer))
            result = planned("GET", "works", prefer=prefer, config=config)
            self.assertEqual(self.ending(result, self.read, tx_end=tx_end), "implicit")

    def test_outcomes_that_may_be_refused_are_checked_before_the_commit(self) -> None:
        for result in (
            planned("POST", "works", body=ROW, accept="application/vnd.pgrst.object+json"),
            planned("PUT", "works", ("id", "eq.1"), body=ROW),
            planned("PATCH", "works", body=b'{"title": "a"}', prefer="handling=strict, max-affected=1"),
        ):
            self.assertEqual(self.ending(result, self.written), "COMMIT", result.request.head)
        result = planned("PATCH", "works", body=b'{"title": "a"}')
        self.assertEqual(self.ending(result, self.written), "implicit")
        # The range of a function's rows may begin after the last of them.
        for offset, prefer, expected in (
            ("0", "count=exact", "implicit"),
            ("1", "", "implicit"),
            ("1", "count=exact", "COMMIT"),
        ):
            result = planned("POST", "rpc/whole", ("offset", offset), body=b"{}", prefer=prefer)
            self.assertEqual(self.ending(result, self.read), expected, (offset, prefer))


class Estimates(Case):
    def total(self, count: str, exact: int | None, max_rows: int) -> tuple[int | None, bool]:
        """The total if the planner estimates 40 rows, and whether it was asked."""
        result = planned("GET", "works", prefer=f"count={count}", config=evolve(CONFIG, max_rows=max_rows))
        connection = FakeConnection((exact, 1, b"[]", None, None, 2), likely=40)
        outcome = self.executed(result, connection, max_rows=max_rows)
        return outcome.total, len(connection.sent) > 1

    def test_the_planner_is_asked_instead_of_counting_many_rows(self) -> None:
        """An estimate is exact up to ``max_rows``, and never less than the rows that were read."""
        for count, exact, max_rows, expected in (
            ("exact", 50, 0, (50, False)),
            ("planned", None, 0, (40, True)),
            ("planned", None, 10, (40, True)),
            ("estimated", 0, 0, (40, True)),
            ("estimated", 3, 0, (40, True)),
            ("estimated", 50, 0, (50, True)),
            ("estimated", 10, 10, (10, False)),
            ("estimated", 11, 10, (40, True)),
        ):
            self.assertEqual(self.total(count, exact, max_rows), expected, (count, exact, max_rows))

    def test_an_estimated_count_counts_at_most_one_row_more_than_max_rows(self) -> None:
        for count, max_rows, expected in (("exact", 10, []), ("estimated", 10, ["11"]), ("estimated", 0, [])):
            config = evolve(CONFIG, max_rows=max_rows)
            for select in ("title", "title,count()"):
                result = planned("GET", "works", ("select", select), prefer=f"count={count}", config=config)
                # The limit of the rows themselves is a parameter.
                limits = re.findall(r"LIMIT (\d+)", result.compiled.statement.sql.text)
                self.assertEqual(limits, expected, (count, max_rows, select))

    def test_a_write_is_never_estimated(self) -> None:
        result = planned("PATCH", "works", body=b'{"title": "a"}', prefer="count=planned")
        connection = FakeConnection((None, 1, None, None, None, None))
        self.executed(result, connection)
        self.assertEqual(len(connection.sent), 1)


class Database:
    """A database with rows that are all of one size."""

    plans_of: object = None
    pooled = False
    own: str = ""

    def __init__(self, rows: int, size_of_row: int) -> None:
        self.rows, self.size_of_row, self.statements = rows, size_of_row, Statements()
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
    plans_of: object = None
    pooled = False
    own: str = ""

    def __init__(self, fault: type[Exception]) -> None:
        self.fault, self.statements = fault, Statements()
        self.asked: list[int] = []

    async def query(self, sql: str, params: Sequence[str]) -> list[tuple[Any, ...]]:
        self.asked.append(int(params[-1]))
        raise self.fault


class Runs(SynchronousTestCase):
    """How often PostgreSQL is asked for the rows of a view, whose size is not known."""

    def test_rows_that_fit_take_one_query_once_their_size_is_known(self) -> None:
        planner = Planner(CONFIG)
        statements: list[int] = []
        for asked in ("0", "1", "2"):
            result = planned("GET", "works", ("id", f"gt.{asked}"), planner=planner)
            session = Database(rows=3000, size_of_row=50)
            outcome = self.successResultOf(executing(result, session))
            self.assertEqual((outcome.whole, outcome.rows), (True, 3000))
            statements.append(len(session.asked))
        self.assertEqual(statements, [2, 1, 1])

    def test_rows_too_large_for_one_postgresql_value_are_streamed(self) -> None:
        result = planned("GET", "works", planner=Planner(CONFIG))
        session = Database(rows=3000, size_of_row=20_000_000)
        outcome = self.successResultOf(executing(result, session))
        self.assertEqual((outcome.whole, session.asked), (False, [101, 2]))
        assert result.compiled.probe is not None
        self.assertEqual(result.compiled.probe.rows, 1)

    def test_other_failures_and_failures_for_a_single_row_are_not_retried(self) -> None:
        """A probe of 100 rows asks for one row more than that, the smallest probe for one more than one."""
        for fault, rows in ((psycopg2.OperationalError, UNKNOWN_ROWS), (TooLarge, 1)):
            result = planned("GET", "works", planner=Planner(CONFIG))
            assert result.compiled.probe is not None
            result.compiled.probe.rows = rows
            session = Refusing(fault)
            self.failureResultOf(executing(result, session), TableError)
            self.assertEqual(session.asked, [rows + 1])


class Probes(SynchronousTestCase):
    def test_the_first_probe_uses_the_row_size_of_the_catalog(self) -> None:
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
