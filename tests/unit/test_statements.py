"""Which statements are prepared, on a fake connection that records what it is asked."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from project_service.database.statements import Statements

THERE = "SELECT name FROM pg_prepared_statements"


class Refused(Exception):
    pass


class Connection:
    """A fake connection that says what is prepared on it. With ``fails`` it refuses to prepare."""

    def __init__(self) -> None:
        self.has: list[str] | None = None
        self.fails = False
        self.sent: list[str] = []

    async def ask(self, sql: str) -> list[tuple[Any, ...]]:
        if sql == THERE:
            assert self.has is not None, "it was asked although no message had failed"
            return [(name.encode(),) for name in self.has]
        self.sent.append(sql)
        if self.fails:
            raise Refused
        return []


class Preparing(SynchronousTestCase):
    def setUp(self) -> None:
        self.statements = Statements(3)
        self.connection = Connection()

    def prepared(self, text: str, version: int = 1) -> list[str]:
        """What is sent to prepare ``text``, and the text that then executes it."""
        self.connection.sent.clear()
        execution = self.statements.execution(text, version)
        if execution is None:
            asked = self.statements.prepare(self.connection.ask, text, f"{text} + $1", 1, version)
            try:
                asked.send(None)
            except StopIteration as answer:
                execution = str(answer.value)
        assert execution is not None, "it waits"
        return [*self.connection.sent, execution]

    def test_a_statement_is_prepared_once(self) -> None:
        found = self.prepared("SELECT 1")
        self.assertEqual(found, ["PREPARE service_1 AS SELECT 1 + $1", "EXECUTE service_1(%s)"])
        self.assertEqual(self.prepared("SELECT 1"), ["EXECUTE service_1(%s)"])

    def test_a_statement_without_parameters_is_executed_without_parentheses(self) -> None:
        with self.assertRaises(StopIteration) as ended:
            self.statements.prepare(self.connection.ask, "SELECT 1", "SELECT 1", 0).send(None)
        self.assertEqual(ended.exception.value, "EXECUTE service_1")

    def test_a_new_schema_cache_version_drops_all_statements(self) -> None:
        self.prepared("SELECT 1", 1)
        self.prepared("SELECT 2", 1)
        self.assertEqual(
            self.prepared("SELECT 1", 2)[0],
            "DEALLOCATE service_1; DEALLOCATE service_2; PREPARE service_3 AS SELECT 1 + $1",
        )
        self.assertEqual(self.prepared("SELECT 1", 2), ["EXECUTE service_3(%s)"])
        self.assertEqual(
            self.prepared("SELECT 2", 2)[0], "PREPARE service_4 AS SELECT 2 + $1", "once is enough"
        )

    def test_the_least_recently_used_statement_is_dropped(self) -> None:
        for number in (1, 2, 3, 1):
            self.prepared(f"SELECT {number}")
        self.assertEqual(
            self.prepared("SELECT 4")[0], "DEALLOCATE service_2; PREPARE service_4 AS SELECT 4 + $1"
        )
        self.assertEqual(self.prepared("SELECT 1"), ["EXECUTE service_1(%s)"])

    def refuse(self, text: str) -> None:
        self.connection.fails = True
        self.assertRaises(Refused, self.prepared, text)
        self.connection.fails = False

    def test_a_failed_prepare_does_not_affect_others(self) -> None:
        self.prepared("SELECT 1")
        self.refuse("SELECT nonsense")
        self.assertEqual(self.prepared("SELECT 1"), ["EXECUTE service_1(%s)"])

    def test_a_deallocate_that_failed_with_its_message_is_sent_again(self) -> None:
        for number in (1, 2, 3):
            self.prepared(f"SELECT {number}")
        self.refuse("SELECT 4")
        self.connection.has = ["service_1", "service_2", "service_3"]
        self.assertEqual(
            self.prepared("SELECT 5")[0], "DEALLOCATE service_1; PREPARE service_5 AS SELECT 5 + $1"
        )

    def test_a_deallocate_that_succeeded_in_a_failed_message_is_not_repeated(self) -> None:
        for number in (1, 2, 3):
            self.prepared(f"SELECT {number}")
        self.refuse("SELECT 4")
        self.connection.has = ["service_2", "service_3"]
        self.assertEqual(self.prepared("SELECT 2"), ["EXECUTE service_2(%s)"])
        self.assertEqual(self.prepared("SELECT 4")[0], "PREPARE service_5 AS SELECT 4 + $1")

    def test_a_statement_that_sql_deallocated_is_prepared_again(self) -> None:
        self.prepared("SELECT 1")
        self.assertTrue(self.statements.refused("SELECT 1", "26000"))
        self.connection.has = ["of_the_application"]
        self.assertEqual(self.prepared("SELECT 1")[0], "PREPARE service_2 AS SELECT 1 + $1")

    def test_a_stale_statement_is_prepared_again(self) -> None:
        self.prepared("SELECT 1")
        self.assertTrue(self.statements.refused("SELECT 1", "0A000"))
        self.assertEqual(
            self.prepared("SELECT 1")[0], "DEALLOCATE service_1; PREPARE service_2 AS SELECT 1 + $1"
        )

    def test_other_failures_keep_the_statement(self) -> None:
        self.prepared("SELECT 1")
        self.assertFalse(self.statements.refused("SELECT 1", "23505"))
        self.assertEqual(self.prepared("SELECT 1"), ["EXECUTE service_1(%s)"])
