"""How statements are sent to PostgreSQL: on a connection that reads share, prepared, or as text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import psycopg2
from attrs import define, evolve, field
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.acting import Actor, Preamble
from project_service.database.connection import DatabaseGone, DatabaseSilent
from project_service.database.pipeline import Run, Statements, Step
from project_service.database.quickness import QUICK_RUNS, SMALL_BYTES, Quickness
from project_service.database.trust import Trust
from project_service.http.admission import Slot
from project_service.lifecycle import start
from project_service.tables.errors import TableError
from project_service.tables.planner import Planned, Planner
from project_service.tables.reply.outcome import Outcome
from project_service.tables.request.headers import MediaType
from project_service.tables.run.execution import Executor, Row
from tests.unit.tables.planning import CONFIG, planned, preamble, text, waited

ROW = b'{"id": 1, "title": "a", "author_id": 1, "editor_id": 1, "data": {}}'
READ = (None, 1, b"[]", None, None, 2)
WRITTEN = (None, 1, None, None, None, None)


class Unknown(psycopg2.ProgrammingError):
    pgcode = "42883"


class Denied(psycopg2.ProgrammingError):
    pgcode = "42501"


class TooLarge(psycopg2.OperationalError):
    pgcode = "54000"


class Shutdown(psycopg2.OperationalError):
    pgcode = "57P01"


class Duplicate(psycopg2.IntegrityError):
    pgcode = "23505"


class Canceled(psycopg2.extensions.QueryCanceledError):
    pgcode = "57014"


class Taken(Slot):
    def __init__(self) -> None:
        self.changes: list[str] = []

    def release(self) -> None:
        self.changes.append("released")

    def retake(self) -> None:
        self.changes.append("retaken")


@define(eq=False)
class HeldUp:
    """The connection of a run on a shared one: ``reported`` are the runs that held up others."""

    reported: list[Run] = field(factory=list)

    def report_slow(self, run: Run) -> None:
        self.reported.append(run)


@define(eq=False)
class Pipelines:
    """Shared connections that take all or nothing, and keep what was submitted."""

    free: bool = True
    connection: HeldUp = field(factory=HeldUp)
    submitted: list[tuple[int, Sequence[Step]]] = field(factory=list)
    runs: list[Run] = field(factory=list)

    def submit(self, version: int, steps: Sequence[Step], quickness: Quickness) -> Run | None:
        if not self.free:
            return None
        self.submitted.append((version, steps))
        self.runs.append(Run(cast(Any, self.connection), 0.0))
        return self.runs[-1]


@define(eq=False)
class Connection:
    """A pool of one connection, which answers everything with ``row``, but raises ``faults`` first: by ``run``, or by
    what a message begins with. ``sent`` are messages; those of ``run`` are lists of the texts of steps."""

    row: Row = READ
    faults: dict[str, Exception] = field(factory=dict)
    in_transaction: bool = False
    extra_seconds: float | None = 0.0
    role: str = ""
    plans_of: object = None
    pooled = False
    own: str = ""
    recycler: object = None
    statements: Statements = field(factory=Statements)
    pipelines: Pipelines = field(factory=lambda: Pipelines(free=False))
    sent: list[Any] = field(factory=list)
    steps: list[Step] = field(factory=list)
    # What reads that are run again wait for.
    busy: Deferred[None] = field(factory=lambda: succeed(None))

    def may_share(self, quickness: Quickness) -> bool:
        return quickness.is_quick

    async def use(self, used: Callable[[Any], Awaitable[Outcome]]) -> Outcome:
        return await used(self)

    async def use_again(self, used: Callable[[Any], Awaitable[Outcome]], quickness: Quickness) -> Outcome:
        await self.busy
        return await used(self)

    async def run(self, steps: Sequence[Step], version: int = 0, timed: bool = False) -> Run:
        self.sent.append([step.text for step in steps])
        self.steps.extend(steps)
        self.raised("run")
        as_text = [value if isinstance(value, bytes) else str(value).encode() for value in self.row]
        run = Run(cast(Any, None), 0.0)
        run.rows = [[None if value is None else sent for value, sent in zip(self.row, as_text, strict=True)]]
        return run

    async def query(self, sql: str, params: object = None) -> list[Row]:
        self.sent.append(sql)
        self.raised(sql)
        return [self.row]

    async def execute(self, sql: str) -> None:
        self.sent.append(sql)
        self.raised(sql)

    def raised(self, sql: str) -> None:
        for begins in list(self.faults):
            if sql.startswith(begins):
                raise self.faults.pop(begins)


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.planner = Planner(CONFIG)
        self.connection = Connection()
        # Whether the connection has been used with this version of the schema cache.
        self.known = True

    def again(self, method: str = "GET", *pairs: tuple[str, str], **more: Any) -> Planned:
        """A request of a shape that has come before."""
        planned(method, "works", *pairs, planner=self.planner, **more)
        return planned(method, "works", *pairs, planner=self.planner, **more)

    def asking(self, result: Planned, reported: Preamble | None = None, **config: Any) -> Deferred[Outcome]:
        self.connection.statements.version = result.version if self.known else 0
        executor = Executor(evolve(CONFIG, **config), Actor(cast(Any, self.connection)))
        return start(waited(executor.execute(result, reported or preamble(), "/works", Slot())))

    def refused(self, result: Planned, **config: Any) -> TableError:
        return cast(TableError, self.failureResultOf(self.asking(result, **config), TableError).value)


class Worth(Case):
    """Which statements are prepared."""

    def test_only_repeated_statements_are_prepared_and_never_explain(self) -> None:
        first, again = (planned("GET", "works", planner=self.planner) for _ in range(2))
        plan = evolve(again.compiled.rendering, explain=MediaType("application/vnd.pgrst.plan+json"))
        explained = evolve(again, compiled=evolve(again.compiled, rendering=plan, probe=None))
        level = preamble(("default_transaction_isolation", "serializable"))
        for result, reported, prepare, expected in (
            (first, preamble(), True, False),
            (explained, preamble(), True, False),
            (again, level, True, False),
            (again, preamble(), False, False),
            (again, preamble(), True, True),
        ):
            self.connection.sent.clear()
            self.successResultOf(self.asking(result, reported, prepare=prepare))
            (sent,) = self.connection.sent
            self.assertEqual(isinstance(sent, list), expected)

    def test_the_first_of_a_version_of_the_schema_cache_is_sent_as_text(self) -> None:
        """It resets what SQL has left on the connection, of which the new version may not know any more."""
        self.known = False
        self.successResultOf(self.asking(self.again()))
        (sent,) = self.connection.sent
        self.assertTrue(sent.startswith("RESET ALL; "))
        self.assertEqual(self.connection.statements.version, self.again().version)


class Prepared(Case):
    def test_no_text_that_is_prepared_has_a_value_of_the_request(self) -> None:
        result = self.again("GET", ("title", "eq.secret"))
        self.successResultOf(self.asking(result, preamble(("request.headers", "secret"))))
        for step in self.connection.steps:
            self.assertNotIn("secret", step.text)
        settings, statement = self.connection.steps
        self.assertIn(b"secret", settings.values)
        self.assertIn(b"secret", statement.values)

    def test_the_statement_is_prepared_for_its_role_and_the_settings_for_all(self) -> None:
        for role in ("one", "other"):
            self.successResultOf(self.asking(self.again(), preamble(role=role)))
        roles = [step.role for step in self.connection.steps]
        self.assertEqual(roles, ["", "one", "", "other"])

    def test_a_rollback_checks_deferred_constraints_first(self) -> None:
        self.connection.row, self.connection.in_transaction = WRITTEN, True
        self.planner = Planner(evolve(CONFIG, tx_end="rollback"))
        result = self.again("POST", body=ROW)
        self.successResultOf(self.asking(result))
        begun, *ends = self.connection.sent
        self.assertEqual((begun[0], begun[-1]), ("BEGIN", text(result)))
        self.assertEqual(ends, ["SET CONSTRAINTS ALL IMMEDIATE", "ROLLBACK"])

    def test_a_stale_statement_is_run_once_more_as_text(self) -> None:
        self.connection.faults["run"] = Unknown()
        self.successResultOf(self.asking(self.again()))
        _, sent = self.connection.sent
        self.assertTrue(sent.startswith("RESET ALL; SELECT "))
        self.assertTrue(sent.endswith(self.again().compiled.statement.sql.for_driver))

    def test_a_stale_write_is_rolled_back_before_it_is_run_as_text(self) -> None:
        self.connection.row, self.connection.in_transaction = WRITTEN, True
        self.connection.faults["run"] = Unknown()
        self.successResultOf(self.asking(self.again("PUT", ("id", "eq.1"), body=ROW)))
        _, rolled_back, sent, ended = self.connection.sent
        self.assertEqual((rolled_back, ended), ("ROLLBACK", "COMMIT"))
        self.assertTrue(sent.startswith("BEGIN; RESET ALL; "))

    def test_what_is_refused_is_not_repeated(self) -> None:
        for fault, status in ((Duplicate(), 409), (Denied(), 403)):
            self.connection = Connection(WRITTEN, {"run": fault})
            self.assertEqual(self.refused(self.again("POST", body=ROW)).status, status)
            self.assertEqual(len(self.connection.sent), 1)

    def test_text_is_sent_once(self) -> None:
        """That is so even if the error is one that makes a prepared statement stale."""
        self.connection.faults["RESET"] = Unknown()
        self.assertEqual(self.refused(self.again(), prepare=False).code, "42883")
        self.assertEqual(len(self.connection.sent), 1)

    def test_nothing_more_is_sent_on_a_lost_connection(self) -> None:
        for lost in (psycopg2.OperationalError(), DatabaseGone("lost")):
            for method, more in (("GET", {}), ("PUT", {"body": ROW})):
                pairs = [("id", "eq.1")] if method == "PUT" else []
                self.connection = Connection(WRITTEN, {"run": lost})
                error = self.refused(self.again(method, *pairs, **more))
                self.assertEqual((error.status, error.code), (503, "PGRST001"))
                self.assertEqual(len(self.connection.sent), 1)

    def test_the_outcome_of_a_rolled_back_transaction_is_not_the_reply(self) -> None:
        """A deferred trigger can fail at the commit as a stale statement does: then the write is made once more."""
        self.connection.row = WRITTEN
        self.connection.faults["COMMIT"] = Unknown()
        self.successResultOf(self.asking(self.again("PUT", ("id", "eq.1"), body=ROW)))
        _, first, as_text, second = self.connection.sent
        self.assertEqual((first, second), ("COMMIT", "COMMIT"))
        self.assertTrue(as_text.startswith("BEGIN; "))

    def test_plans_count_as_another_roles_until_discarding_them_succeeded(self) -> None:
        apart = preamble(trust=Trust(guarded=True))
        self.connection.plans_of = "somebody"
        self.connection.faults["DISCARD PLANS"] = Denied()
        self.failureResultOf(self.asking(self.again(), apart), TableError)
        for _ in range(2):
            self.successResultOf(self.asking(self.again(), apart))
        self.assertEqual(self.connection.sent[:2], ["DISCARD PLANS"] * 2)
        self.assertEqual([sent for sent in self.connection.sent[2:] if isinstance(sent, str)], [])
        self.successResultOf(self.asking(self.again(), preamble(role="other", trust=Trust(guarded=True))))
        self.assertEqual(self.connection.sent[-2], "DISCARD PLANS")


class Shared(Case):
    """Quick reads run on connections that they share."""

    def setUp(self) -> None:
        super().setUp()
        self.pipelines = self.connection.pipelines
        self.pipelines.free = True

    def quick(self, *pairs: tuple[str, str], **more: Any) -> Planned:
        result = self.again("GET", *pairs, **more)
        for _ in range(QUICK_RUNS):
            result.compiled.history.ran(0.0, 1)
        return result

    def answer(self, row: Sequence[bytes | None] = (None, b"1", b"[]", None, None, b"2")) -> None:
        run = self.pipelines.runs[-1]
        run.rows = [list(row)]
        run.done.callback(None)

    def test_a_read_shares_once_its_plan_was_quick_often_enough(self) -> None:
        result = self.again()
        for number in range(QUICK_RUNS):
            self.assertEqual(len(self.pipelines.submitted), 0, number)
            self.successResultOf(self.asking(result))
        asked = self.asking(result)
        self.assertEqual(len(self.pipelines.submitted), 1)
        version, steps = self.pipelines.submitted[0]
        self.assertEqual((version, steps[-1].text), (result.version, text(result)))
        self.assertEqual((steps[-1].role, steps[0].role), ("anon", ""))
        self.answer()
        outcome = self.successResultOf(asked)
        self.assertEqual((outcome.rows, outcome.body, outcome.whole), (1, b"[]", True))

    def test_what_does_not_share(self) -> None:
        alone = preamble(pre_request="check")
        writes = self.again("POST", body=b'{"title": "a"}')
        called = planned("GET", "rpc/find", ("q", "x"), planner=self.planner)
        estimated = self.again("GET", prefer="count=planned")
        slow = self.again("GET", ("id", "gt.1"))
        # How long these take depends on their operands above all, which none of a shape has in common with the next.
        searching = [
            self.again("GET", ("title", f"{operator}.a"))
            for operator in (
                "like",
                "not.ilike",
                "match",
                "imatch",
                "like(any)",
                "fts",
                "plfts(english)",
                "wfts",
            )
        ]
        searching += [
            self.again("GET", ("or", "(id.eq.1,and(title.like.*a,id.eq.2))")),
            self.again("GET", ("select", "id,tags(id)"), ("tags.id", "like.a*")),
        ]
        for result in (writes, called, estimated, *searching):
            for _ in range(QUICK_RUNS):
                result.compiled.history.ran(0.0, 1)
        cases = [(self.quick(), alone), (slow, preamble())]
        cases += [(result, preamble()) for result in (writes, called, estimated, *searching)]
        for result, reported in cases:
            self.asking(result, reported).addErrback(lambda failure: None)
            self.assertEqual(self.pipelines.submitted, [])

    def test_where_none_takes_more_a_connection_of_its_own_does(self) -> None:
        self.pipelines.free = False
        self.successResultOf(self.asking(self.quick()))
        self.assertEqual(len(self.connection.sent), 1)

    def test_a_read_that_got_no_answer_is_asked_once_more_elsewhere(self) -> None:
        for fault in (DatabaseGone("lost"), psycopg2.OperationalError(), Unknown(), TooLarge(), Shutdown()):
            self.connection.sent.clear()
            asked = self.asking(self.quick())
            self.assertNoResult(asked)
            self.pipelines.runs[-1].done.errback(fault)
            self.assertEqual(self.successResultOf(asked).rows, 1)
            self.assertEqual(len(self.connection.sent), 1)

    def test_a_read_that_was_ended_where_it_shared_is_asked_once_more_with_its_own_limit(self) -> None:
        result = self.quick()
        asked = self.asking(result)
        self.pipelines.runs[-1].done.errback(Canceled())
        self.assertEqual(self.successResultOf(asked).rows, 1)
        self.assertFalse(result.compiled.history.is_quick)
        self.connection.faults["run"] = Canceled()
        self.assertEqual(self.refused(result).code, "57014")

    def test_a_read_of_a_silent_server_is_not_asked_again(self) -> None:
        """It would most likely have to wait as long once more."""
        asked = self.asking(self.quick())
        self.pipelines.runs[-1].done.errback(DatabaseSilent("it does not answer"))
        self.assertEqual(self.failureResultOf(asked, TableError).value.status, 503)
        self.assertEqual(self.connection.sent, [])

    def test_a_read_that_leaves_the_shared_connection_has_a_slot_again_with_its_own(self) -> None:
        """Not before: while it waits for one, it keeps nobody out."""
        slot, self.connection.busy = Taken(), Deferred()
        result = self.quick()
        executor = Executor(CONFIG, Actor(cast(Any, self.connection)))
        asked = start(waited(executor.execute(result, preamble(), "/works", slot)))
        self.assertEqual(slot.changes, ["released"])
        self.pipelines.runs[-1].done.errback(Canceled())
        self.assertEqual(slot.changes, ["released"])
        self.connection.busy.callback(None)
        self.successResultOf(asked)
        self.assertEqual(slot.changes, ["released", "retaken"])

    def test_once_more_is_not_again_and_again(self) -> None:
        self.connection.faults["run"] = DatabaseGone("lost too")
        asked = self.asking(self.quick())
        self.pipelines.runs[-1].done.errback(DatabaseGone("lost"))
        self.assertEqual(self.failureResultOf(asked, TableError).value.status, 503)

    def test_what_the_server_refuses_is_the_answer_and_shares_no_more(self) -> None:
        result = self.quick()
        asked = self.asking(result)
        self.pipelines.runs[-1].done.errback(Denied())
        self.assertEqual(self.failureResultOf(asked, TableError).value.code, "42501")
        self.assertEqual((self.connection.sent, result.compiled.history.is_quick), ([], False))

    def test_a_slow_run_or_a_large_reply_shares_no_more(self) -> None:
        for slow, body in ((True, b"[]"), (False, b"x" * (SMALL_BYTES + 1))):
            result = self.quick()
            asked = self.asking(result)
            self.pipelines.runs[-1].slow = slow
            self.answer((None, b"1", body, None, None, b"2"))
            self.successResultOf(asked)
            self.assertFalse(result.compiled.history.is_quick)
            reported, self.pipelines.connection.reported = self.pipelines.connection.reported, []
            self.assertEqual(reported, self.pipelines.runs[-1:] if slow else [])

    def test_a_result_that_does_not_fit_is_asked_again_alone(self) -> None:
        result = self.quick()
        assert result.compiled.probe is not None
        asked = self.asking(result)
        rows = str(result.compiled.probe.rows + 1).encode()
        self.answer((None, rows, None, None, None, b"9"))
        self.successResultOf(asked)
        self.assertEqual(len(self.connection.sent), 1)

    def test_a_single_object_is_checked(self) -> None:
        result = self.quick(accept="application/vnd.pgrst.object+json")
        asked = self.asking(result)
        self.answer((None, b"2", b"[]", None, None, b"2"))
        self.assertEqual(self.failureResultOf(asked, TableError).value.code, "PGRST116")

    def test_a_caller_who_leaves_cancels_nobody_elses_run(self) -> None:
        result = self.quick()
        asked, other = self.asking(result), self.asking(result)
        asked.addErrback(lambda failure: None)
        asked.cancel()
        self.answer()
        self.assertEqual(self.successResultOf(other).rows, 1)
