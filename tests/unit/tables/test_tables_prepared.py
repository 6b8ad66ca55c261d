"""How statements are sent to PostgreSQL, prepared or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import psycopg2
from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.session import DatabaseGone, Session
from project_service.database.statements import Statements
from project_service.deferreds import start
from project_service.tables.errors import TableError
from project_service.tables.execution.execute import Executor
from project_service.tables.execution.preamble import PreambleSql
from project_service.tables.execution.run import run
from project_service.tables.execution.work import Work
from project_service.tables.parse.media import MediaType
from project_service.tables.planning.planner import Planner
from project_service.tables.respond.outcome import Outcome
from project_service.tables.sql.fragment import Sql
from project_service.tables.sql.settings import settings_of
from tests.unit.tables.planning import CONFIG, planned, preamble

# How the work of these tests begins on a connection that has nothing prepared.
BEGUN = ["BEGIN; SELECT %s", "PREPARE service_1 AS SELECT $1"]


class Connection:
    """A connection that returns one row for everything, and refuses queries that begin with ``refuses``."""

    in_transaction = True

    def __init__(self, refuses: str | None = None, fault: type[Exception] | None = None) -> None:
        self.statements = Statements()
        self.refuses, self.fault = refuses, fault or Unknown
        self.sent: list[str] = []

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        self.sent.append(sql)
        if self.refuses is not None and sql.startswith(self.refuses):
            raise self.fault
        return [(1,)]

    async def execute(self, sql: str) -> None:
        self.sent.append(sql)


class Interrupted(Connection):
    """The first message of each kind that returns nothing is cancelled."""

    async def execute(self, sql: str) -> None:
        await super().execute(sql)
        if self.sent.count(sql) == 1:
            raise Unknown


class Reading(Connection):
    """A pool of one connection on which every query returns one row."""

    async def use(self, work: Callable[[Any], Awaitable[Outcome]]) -> Outcome:
        return await work(self)

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        await super().query(sql, params)
        return [(None, 1, b"[]", None, None, 2)]


class Messages(SynchronousTestCase):
    """Which messages are sent for one request."""

    def work(self, **more: Any) -> Work:
        return Work(preamble("SELECT %s", "secret"), Sql("SELECT 2"), kept=True, **more)

    def test_the_message_that_prepares_has_no_value_of_the_request(self) -> None:
        connection = Connection()
        for _ in range(2):
            found = run(cast(Session, connection), self.work(), list)
            self.assertEqual(self.successResultOf(start(found)), [(1,)])
        once = [*BEGUN, "PREPARE service_2 AS SELECT 2", "EXECUTE service_2", "COMMIT"]
        self.assertEqual(connection.sent, [*once, "EXECUTE service_1(%s); EXECUTE service_2"])

    def test_plans_count_as_another_roles_until_discarding_them_succeeded(self) -> None:
        connection = Interrupted()
        work = Work(preamble(plans_apart=True), Sql("SELECT 2"))
        self.failureResultOf(start(run(cast(Session, connection), work, list)), TableError)
        for _ in range(2):
            self.successResultOf(start(run(cast(Session, connection), work, list)))
        once = "SELECT 1; SELECT 2"
        self.assertEqual(connection.sent, ["DISCARD PLANS", "DISCARD PLANS", once, once])

    def test_the_preamble_is_prepared_like_the_statement(self) -> None:
        settings = settings_of((("role", "a%b"),), ("request.path",))
        sql = PreambleSql("RESET ALL; ", settings, "; SELECT before()")
        work = evolve(self.work(), preamble=evolve(preamble("", "/secret"), sql=sql))
        connection = Connection()
        for said in (work, work, evolve(work, kept=False)):
            self.successResultOf(start(run(cast(Session, connection), said, list)))
        begun, setting, *others = connection.sent
        self.assertEqual(begun, f"BEGIN; RESET ALL; {settings.text}; SELECT before()")
        self.assertIn("PREPARE service_1 AS SELECT ", setting)
        self.assertIn("set_config('role', $1, true), set_config('request.path', $2, true)", setting)
        first = ["PREPARE service_2 AS SELECT 2", "EXECUTE service_2", "COMMIT"]
        again = "RESET ALL; EXECUTE service_1('a%%b', %s); SELECT before(); EXECUTE service_2"
        self.assertEqual(others, [*first, again, f"{sql.text}; SELECT 2"])

    def test_statements_are_prepared_for_each_role_apart(self) -> None:
        """Where PostgreSQL inlines a function, it checks privileges when it plans."""
        connection = Connection("EXECUTE service_3")
        for role in ("one", "other", "one"):
            work = evolve(self.work(), preamble=preamble("SELECT %s", "secret", role=role))
            self.successResultOf(start(run(cast(Session, connection), work, list)))
        once = [*BEGUN, "PREPARE service_2 AS SELECT 2", "EXECUTE service_2", "COMMIT"]
        other = ["BEGIN; SELECT %s", "PREPARE service_3 AS SELECT 2", "EXECUTE service_3", "ROLLBACK"]
        # A statement that one role may not run stays prepared for others.
        self.assertEqual(
            connection.sent,
            [*once, *other, "SELECT %s; SELECT 2", "EXECUTE service_1(%s); EXECUTE service_2"],
        )

    def test_a_rollback_checks_deferred_constraints_first(self) -> None:
        connection = Connection()
        for _ in range(2):
            found = run(cast(Session, connection), self.work(ending="rollback"), list)
            self.successResultOf(start(found))
        ends = ["SET CONSTRAINTS ALL IMMEDIATE", "ROLLBACK"]
        first = [*BEGUN, "PREPARE service_2 AS SELECT 2", "EXECUTE service_2", *ends]
        again = ["BEGIN; EXECUTE service_1(%s); EXECUTE service_2", *ends]
        self.assertEqual(connection.sent, [*first, *again])

    def test_a_statement_that_cannot_be_prepared_is_run_unprepared(self) -> None:
        connection = Connection(refuses="PREPARE service_2")
        found = run(cast(Session, connection), self.work(), list)
        self.assertEqual(self.successResultOf(start(found)), [(1,)])
        self.assertEqual(connection.sent[-2:], ["ROLLBACK", "SELECT %s; SELECT 2"])

    def test_a_prepared_statement_takes_its_locks_first(self) -> None:
        """An unprepared one needs none."""
        locks, connection = Sql("SELECT 3"), Connection("EXECUTE service_1(%s); EXECUTE")
        for _ in range(2):
            found = run(cast(Session, connection), self.work(locks=locks), list)
            self.assertEqual(self.successResultOf(start(found)), [(1,)])
        prepared = ["PREPARE service_2 AS SELECT 3", "PREPARE service_3 AS SELECT 2"]
        first = [*BEGUN, *prepared, "EXECUTE service_2; EXECUTE service_3", "COMMIT"]
        again = ["EXECUTE service_1(%s); EXECUTE service_2; EXECUTE service_3", "SELECT %s; SELECT 2"]
        self.assertEqual(connection.sent, [*first, *again])
        # It is not known which of the two was refused, so both are prepared anew.
        self.successResultOf(start(run(cast(Session, connection), self.work(locks=locks), list)))
        dropped = "DEALLOCATE service_2; DEALLOCATE service_3; PREPARE service_4 AS SELECT 3"
        self.assertIn(dropped, connection.sent)

    def test_a_missing_privilege_of_the_locks_is_reported_by_the_statement_itself(self) -> None:
        for locks, expected in (("SELECT 3", "SELECT %s; SELECT 2"), ("", "ROLLBACK")):
            connection = Connection("EXECUTE", Denied)
            asked = start(run(cast(Session, connection), self.work(locks=Sql(locks)), list))
            asked.addErrback(lambda failure: failure.trap(TableError))
            self.successResultOf(asked)
            self.assertEqual(connection.sent[-1], expected)

    def test_operands_of_locks_and_statement_are_sent_in_order(self) -> None:
        work = self.work(locks=Sql("SELECT \0", ("a",)), operands=())
        self.assertEqual(work.values, ["a"])
        self.assertEqual(evolve(work, kept=False).values, [])

    def test_a_write_that_is_refused_is_not_repeated(self) -> None:
        connection = Connection("EXECUTE", Duplicate)
        refused = start(run(cast(Session, connection), self.work(), list))
        self.assertEqual(self.failureResultOf(refused, TableError).value.status, 409)
        self.assertEqual(connection.sent[-2:], ["EXECUTE service_2", "ROLLBACK"])

    def test_an_unprepared_statement_is_sent_once(self) -> None:
        """That is so even if the error is one that makes a prepared statement stale."""
        connection = Connection("SELECT %s; SELECT 2")
        refused = start(run(cast(Session, connection), evolve(self.work(), kept=False), list))
        self.assertEqual(self.failureResultOf(refused, TableError).value.code, "42883")
        self.assertEqual(connection.sent, ["SELECT %s; SELECT 2"])

    def test_nothing_more_is_sent_on_a_lost_connection(self) -> None:
        for lost in (psycopg2.OperationalError, DatabaseGone):
            connection = Connection("EXECUTE", lost)
            connection.in_transaction = False
            refused = start(run(cast(Session, connection), self.work(), list))
            error = self.failureResultOf(refused, TableError).value
            self.assertEqual((error.status, error.code), (503, "PGRST001"))
            self.assertEqual(connection.sent[-1], "EXECUTE service_2")


class Worth(SynchronousTestCase):
    """Which statements are prepared."""

    def test_only_repeated_statements_are_prepared_and_never_explain(self) -> None:
        planner = Planner(CONFIG)
        first, again = (planned("GET", "works", planner=planner) for _ in range(2))
        plan = evolve(again.compiled.rendering, explain=MediaType("application/vnd.pgrst.plan+json"))
        explained = evolve(again, compiled=evolve(again.compiled, rendering=plan, probe=None))
        for found, expected in ((first, False), (explained, False), (again, True)):
            connection = Reading()
            executor = Executor(CONFIG, cast(Any, connection))
            self.successResultOf(start(executor.execute(found, preamble())))
            self.assertEqual(any(sql.startswith("PREPARE") for sql in connection.sent), expected)


class Unknown(psycopg2.ProgrammingError):
    pgcode = "42883"


class Denied(psycopg2.ProgrammingError):
    pgcode = "42501"


class Duplicate(psycopg2.IntegrityError):
    pgcode = "23505"


class Writing:
    """A connection on which each attempt at a write makes another row. The first attempt's commit is refused."""

    in_transaction = False

    def __init__(self) -> None:
        self.statements = Statements()
        self.attempts = 0
        self.commits = 0

    async def use(self, work: Callable[[Any], Awaitable[Outcome]]) -> Outcome:
        return await work(self)

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        if sql == "BEGIN; SELECT 1" or sql.startswith("PREPARE"):
            return []
        self.attempts += 1
        return [(None, 1, None, f"attempt {self.attempts}", None, None)]

    async def execute(self, sql: str) -> None:
        assert sql == "COMMIT", sql
        self.commits += 1
        if self.commits == 1:
            raise Unknown


class Again(SynchronousTestCase):
    """A stale prepared statement is run once more, unprepared."""

    def test_the_outcome_of_a_rolled_back_attempt_is_not_the_reply(self) -> None:
        """A deferred trigger can fail as a stale prepared statement does: then the write is made once more."""
        connection = Writing()
        row = b'{"id": 1, "title": "a", "author_id": 1, "data": {}}'
        planner = Planner(CONFIG)
        _, found = (planned("PUT", "works", ("id", "eq.1"), body=row, planner=planner) for _ in range(2))
        executor = Executor(CONFIG, cast(Any, connection))
        outcome = self.successResultOf(start(executor.execute(found, preamble())))
        self.assertEqual((connection.attempts, outcome.body), (2, b"attempt 2"))
