"""What the grammar's refusals say, and where they point."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.parse.logic import parse_logic
from project_service.tables.parse.order import parse_order
from project_service.tables.parse.select import parse_select
from project_service.tables.syntax import Field, Filter, JsonStep, SelectColumn


class Refusals(SynchronousTestCase):
    def refused(self, parser: Any, *given: Any) -> tuple[int, str]:
        """The column, counted from 1, and the details."""
        error = self.assertRaises(TableError, parser, *given)
        self.assertEqual(error.code, "PGRST100")
        where = error.message.rpartition("(line 1, column ")[2]
        return int(where.rstrip(")")), error.payload

    def test_a_dash_begins_an_index(self) -> None:
        for text, column, details in (
            ("data->>--34", 9, 'unexpected "-" expecting digit'),
            ("data->>-xy-4", 9, 'unexpected "x" expecting digit'),
            ("data->-", 8, "unexpected end of input expecting digit"),
            (
                "data->>-78xy",
                11,
                'unexpected \'x\' expecting digit, "->", "::", ".", "," or end of input',
            ),
        ):
            self.assertEqual(self.refused(parse_select, text), (column, details))
        self.assertEqual(self.refused(parse_order, "data->>--1"), (9, 'unexpected "-" expecting digit'))

    def test_a_dash_within_a_key_is_part_of_it(self) -> None:
        found = parse_select("data->2-b->-2")
        steps = (JsonStep("2-b", False), JsonStep(-2, False))
        self.assertEqual(found, (SelectColumn(Field("data", steps)),))

    def test_a_negation_needs_an_operator(self) -> None:
        found = self.refused(parse_logic, "or", False, "(id.eq.1,not.xor(id.eq.2,id.eq.3))")
        self.assertEqual(found, (16, 'unexpected "x" expecting logic operator (and, or)'))
        found = self.refused(parse_logic, "or", False, "(not.order.eq.1)")
        self.assertEqual(found, (10, 'unexpected "d" expecting "("'))

    def test_an_operator_needs_its_bracket(self) -> None:
        found = self.refused(parse_logic, "and", False, "(ord(id.eq.1,id.eq.1),id.eq.2)")
        self.assertEqual(found, (7, 'unexpected "d" expecting "("'))

    def test_columns_may_begin_like_operators(self) -> None:
        tree = parse_logic("or", False, "(order.eq.1,android.is.null,not.eq.2)")
        names = [term.field.name for term in tree.terms if isinstance(term, Filter)]
        self.assertEqual(names, ["order", "android", "not"])
