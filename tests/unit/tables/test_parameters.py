"""Values from requests reach PostgreSQL as parameters only, names as quoted identifiers, and NUL not at all."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.quoting import literal
from project_service.tables.errors import TableError
from project_service.tables.plan.nodes import sql_alias
from project_service.tables.planner import Planner
from project_service.tables.sql.fragment import cast_type, ident
from tests.unit.tables.planning import CONFIG, planned, text
from tests.unit.tables.rendered import anything


class NoValueInTheText(SynchronousTestCase):
    """Operands, arguments and bodies are parameters; they never become part of the SQL."""

    marked = anything.map(lambda value: f"<~{value}~>")

    @given(marked, st.sampled_from(["eq", "like", "not.match", "fts", "plfts(english)", "isdistinct", "cs"]))
    def test_operands_are_parameters(self, value: str, operator: str) -> None:
        sql = planned("GET", "works", ("title", f"{operator}.{value}"))
        self.assertNotIn("<~", text(sql))
        values = sql.compiled.statement.sql.values(sql.operands, sql.body)
        self.assertTrue(any(isinstance(one, str) and "<~" in one for one in values))

    @given(marked.filter(lambda value: '"' not in value and "\\" not in value))
    def test_operands_in_lists_and_logic_trees_are_parameters(self, value: str) -> None:
        sql = planned(
            "GET", "works", ("title", f'in.("{value}")'), ("or", f'(title.eq."{value}",id.is.null)')
        )
        self.assertNotIn("<~", text(sql))

    @given(marked)
    def test_function_arguments_are_parameters(self, value: str) -> None:
        sql = planned("GET", "rpc/find", ("q", value))
        self.assertNotIn("<~", text(sql))

    @given(marked)
    def test_bodies_are_parameters(self, value: str) -> None:

        sql = planned("POST", "works", body=json.dumps({"title": value}).encode())
        self.assertNotIn("<~", text(sql))
        self.assertIn("<~", sql.body)

    @given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
    def test_identifiers_and_literals_cannot_be_broken_out_of(self, name: str) -> None:
        self.assertEqual((ident(name)[0], ident(name)[-1]), ('"', '"'))
        self.assertNotIn('"', ident(name)[1:-1].replace('""', ""))
        self.assertNotIn("\0", ident(name))
        self.assertNotIn("'", literal(name).strip().removeprefix("E")[1:-1].replace("''", ""))
        self.assertLessEqual(len(sql_alias(name, 12345).encode()), 63)

    def test_a_cast_can_only_name_a_type(self) -> None:
        self.assertEqual(cast_type("double  precision"), "double precision")
        self.assertEqual(cast_type("int[]"), "int[]")
        self.assertEqual(cast_type("mine"), '"mine"')


class NoNul(SynchronousTestCase):
    """A NUL is refused, because PostgreSQL has no text with one; also if there was a valid request of the same shape
    before."""

    def refused(self, planner: Planner, path: str, *pairs: tuple[str, str], **more: Any) -> None:
        method = "POST" if more else "GET"
        error = self.assertRaises(TableError, planned, method, path, *pairs, planner=planner, **more)
        self.assertEqual(error.status, 400)

    def test_nul_in_the_path_is_404(self) -> None:
        for method, path in (("GET", "works\0"), ("GET", "\0"), ("GET", "rpc/find\0"), ("POST", "works\0")):
            self.assertEqual(self.assertRaises(TableError, planned, method, path, body=b"[]").status, 404)

    def test_nul_in_the_query_is_refused(self) -> None:
        planner = Planner(CONFIG)
        planned("GET", "works", ("title", "eq.a"), planner=planner)
        planned("GET", "works", ("id", "in.(1)"), planner=planner)
        planned("GET", "rpc/find", ("q", "a"), planner=planner)
        self.refused(planner, "works", ("title", "eq.\0"))
        self.refused(planner, "works", ("id", "in.(\0)"))
        self.refused(planner, "rpc/find", ("q", "\0"))

    def test_nul_in_a_text_body_is_refused_and_kept_in_a_binary_one(self) -> None:
        planner = Planner(CONFIG)
        self.refused(planner, "rpc/whole_text", body=b"a\0", media="text/plain")
        self.refused(planner, "rpc/whole_xml", body=b"<a/>\0", media="text/xml")
        for form in (b"q=%00", b"%00=1"):
            self.refused(planner, "rpc/find", body=form, media="application/x-www-form-urlencoded")
        octets = planned("POST", "rpc/whole_bytea", body=b"\0", media="application/octet-stream")
        self.assertEqual(octets.raw, b"\0")
