"""Whole statements: what they count, and what EXPLAIN shows of them."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.reply.outcome import Outcome
from project_service.tables.reply.response import check_outcome
from project_service.tables.request.headers import MediaType
from tests.unit.tables.planning import CONFIG, planned, text


class Counted(SynchronousTestCase):
    def test_an_exact_or_estimated_count_of_a_functions_rows_is_counted(self) -> None:
        for count, expected in (("exact", True), ("estimated", True), ("planned", False)):
            statement = text(planned("GET", "rpc/add", ("a", "1"), prefer=f"count={count}"))
            self.assertEqual("pgrst_count" in statement, expected, count)

    def test_rows_without_a_range_are_counted_once(self) -> None:
        whole = text(planned("GET", "rpc/find", ("q", "x"), prefer="count=exact"))
        self.assertIn(
            "SELECT pg_catalog.count(_t.*) AS total_result_set, pg_catalog.count(_t.*) AS page_total", whole
        )
        for cut in (("limit", "2"), ("offset", "1")):
            statement = text(planned("GET", "rpc/find", ("q", "x"), cut, prefer="count=exact"))
            self.assertIn("pgrst_count", statement)

    def test_an_estimated_count_of_a_functions_rows_is_exact_whatever_max_rows(self) -> None:
        for config in (CONFIG, evolve(CONFIG, max_rows=2)):
            statement = [
                text(planned("GET", "rpc/find", ("q", "x"), prefer=f"count={count}", config=config))
                for count in ("exact", "estimated")
            ]
            self.assertEqual(*statement)

    def test_a_scalar_result_is_not_counted(self) -> None:
        self.assertIn("1::bigint AS page_total", text(planned("GET", "rpc/add", ("a", "1"))))
        self.assertIn("count(_t.*) AS page_total", text(planned("GET", "rpc/find", ("q", "x"))))

    def test_columns_of_a_write_keep_their_order_for_explain(self) -> None:
        written = text(planned("DELETE", "works", ("id", "eq.1"), prefer="return=representation"))
        columns = ("updated", "page_total", "location", "body", "response_headers", "response_status")
        places = [written.index(f" AS {name}") for name in columns]
        self.assertEqual(places, sorted(places))


class Explained(SynchronousTestCase):
    def test_explain_of_a_write_skips_the_check_of_its_outcome(self) -> None:
        statement = planned("PUT", "tags", ("id", "eq.1"), body=b'{"id":1}')
        self.assertRaises(TableError, check_outcome, statement.request, statement.compiled, Outcome())
        explain = MediaType("application/vnd.pgrst.plan+json")
        rendering = evolve(statement.compiled.rendering, explain=explain)
        check_outcome(statement.request, evolve(statement.compiled, rendering=rendering), Outcome())
