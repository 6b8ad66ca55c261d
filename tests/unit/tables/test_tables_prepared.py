"""Which statements are prepared where, on a connection that only remembers what it was asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import psycopg2
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.session import Session
from project_service.deferreds import start
from project_service.tables.errors import TableError
from project_service.tables.execute import Executor
from project_service.tables.prepared_statements import PreparedStatements
from project_service.tables.respond.outcome import Outcome
from project_service.tables.run import Preamble, Runner, Work
from project_service.tables.sql.fragment import Sql
from tests.unit.tables.planning import CONFIG, planned


class Connection:
    """Says what is prepared on it where a test lets it be asked."""

    def __init__(self) -> None:
        self.has: list[str] | None = None

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        assert sql == "SELECT name FROM pg_prepared_statements", sql
        assert self.has is not None, "it was asked although no message had failed"
        return [(name,) for name in self.has]


class Versions(SynchronousTestCase):
    def setUp(self) -> None:
        self.prepared = PreparedStatements(3)
        self.connection = Connection()
        self.session = cast(Session, self.connection)

    def sent(self, text: str, version: int, succeeds: bool = True) -> str:
        asked = self.prepared.text(self.session, Sql(text), 0, version)
        try:
            asked.send(None)
        except StopIteration as answer:
            if succeeds:
                self.prepared.succeeded(self.session)
            return str(answer.value)
        raise AssertionError("it waits")

    def test_it_is_prepared_once(self) -> None:
        self.assertEqual(self.sent("SELECT 1", 1), "PREPARE pgrst_1 AS SELECT 1; EXECUTE pgrst_1")
        self.assertEqual(self.sent("SELECT 1", 1), "EXECUTE pgrst_1")

    def test_another_schema_cache_prepares_anew_and_lets_go_of_the_old(self) -> None:
        self.sent("SELECT 1", 1)
        self.sent("SELECT 2", 1)
        self.assertEqual(
            self.sent("SELECT 1", 2),
            "DEALLOCATE pgrst_1; DEALLOCATE pgrst_2; PREPARE pgrst_3 AS SELECT 1; EXECUTE pgrst_3",
        )
        self.assertEqual(self.sent("SELECT 1", 2), "EXECUTE pgrst_3")

    def test_what_a_failed_message_did_not_let_go_of_is_let_go_of_by_the_next(self) -> None:
        for number in (1, 2, 3):
            self.sent(f"SELECT {number}", 1)
        self.sent("SELECT 4", 1, succeeds=False)
        self.connection.has = ["pgrst_1", "pgrst_2", "pgrst_3"]
        self.assertEqual(
            self.sent("SELECT 5", 1), "DEALLOCATE pgrst_1; PREPARE pgrst_5 AS SELECT 5; EXECUTE pgrst_5"
        )

    def test_what_a_failed_message_did_let_go_of_is_not_let_go_of_again(self) -> None:
        for number in (1, 2, 3):
            self.sent(f"SELECT {number}", 1)
        self.sent("SELECT 4", 1, succeeds=False)
        self.connection.has = ["pgrst_2", "pgrst_3", "pgrst_4"]
        self.assertEqual(self.sent("SELECT 4", 1), "EXECUTE pgrst_4")
        self.assertEqual(
            self.sent("SELECT 1", 1), "DEALLOCATE pgrst_2; PREPARE pgrst_5 AS SELECT 1; EXECUTE pgrst_5"
        )

    def test_what_sql_let_go_of_is_prepared_anew(self) -> None:
        self.sent("SELECT 1", 1)
        self.prepared.doubt(self.session)
        self.connection.has = []
        self.assertEqual(self.sent("SELECT 1", 1), "PREPARE pgrst_2 AS SELECT 1; EXECUTE pgrst_2")


class Unknown(psycopg2.ProgrammingError):
    pgcode = "42883"


class Writing:
    """Each attempt at a write makes another row; of the first one the commit is refused."""

    in_transaction = False

    def __init__(self) -> None:
        self.attempts = 0
        self.commits = 0

    async def use(self, work: Callable[[Any], Awaitable[Outcome]]) -> Outcome:
        return await work(self)

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        if sql == "SELECT name FROM pg_prepared_statements":
            return []
        self.attempts += 1
        return [("", 1, None, f"attempt {self.attempts}", None, None, None)]

    async def execute(self, sql: str) -> None:
        assert sql == "COMMIT", sql
        self.commits += 1
        if self.commits == 1:
            raise Unknown


class Again(SynchronousTestCase):
    def test_what_was_undone_is_not_what_is_answered(self) -> None:
        """A deferred trigger can fail as a stale prepared statement does: then the write is made once more."""
        connection = Writing()
        row = b'{"id": 1, "title": "a", "author_id": 1, "data": {}}'
        found = planned("PUT", "works", ("id", "eq.1"), body=row)
        executor = Executor(CONFIG, cast(Any, connection), Runner(PreparedStatements()))
        outcome = self.successResultOf(start(executor.execute(found, Preamble("SELECT 1", []), True)))
        self.assertEqual((connection.attempts, outcome.body), (2, b"attempt 2"))


class Nul(SynchronousTestCase):
    def test_what_the_driver_will_not_send_is_the_clients_fault(self) -> None:
        class Driver:
            async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
                raise ValueError("A string literal cannot contain NUL (0x00) characters.")

        running = Runner(None).run(
            cast(Session, Driver()), Work(Preamble("SELECT 1", []), Sql("SELECT 2")), list
        )
        error = self.assertRaises(TableError, running.send, None)
        self.assertEqual((error.status, error.code), (400, "22021"))
