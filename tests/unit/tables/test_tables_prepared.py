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
    """Nothing is ever asked of it here: no message fails."""

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        raise AssertionError(sql)


class Versions(SynchronousTestCase):
    def setUp(self) -> None:
        self.prepared = PreparedStatements()
        self.session = cast(Session, Connection())

    def sent(self, text: str, version: int) -> str:
        asked = self.prepared.text(self.session, Sql(text), 0, version)
        try:
            asked.send(None)
        except StopIteration as answer:
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


class Nul(SynchronousTestCase):
    def test_what_the_driver_will_not_send_is_the_clients_fault(self) -> None:
        class Driver:
            async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
                raise ValueError("A string literal cannot contain NUL (0x00) characters.")

        running = Runner(None).run(cast(Session, Driver()), Work(Preamble("SELECT 1", []), Sql("SELECT 2")))
        error = self.assertRaises(TableError, running.send, None)
        self.assertEqual((error.status, error.code), (400, "22021"))
