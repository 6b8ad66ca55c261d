"""Which statements are prepared where, on a connection that only remembers what it was asked."""

from __future__ import annotations

from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from project_service.database.session import Session
from project_service.tables.errors import TableError
from project_service.tables.prepared_statements import PreparedStatements
from project_service.tables.run import Preamble, Runner, Work
from project_service.tables.sql.fragment import Sql


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


class Nul(SynchronousTestCase):
    def test_what_the_driver_will_not_send_is_the_clients_fault(self) -> None:
        class Driver:
            async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
                raise ValueError("A string literal cannot contain NUL (0x00) characters.")

        running = Runner(None).run(cast(Session, Driver()), Work(Preamble("SELECT 1", []), Sql("SELECT 2")))
        error = self.assertRaises(TableError, running.send, None)
        self.assertEqual((error.status, error.code), (400, "22021"))
