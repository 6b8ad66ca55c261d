"""Errors of the query grammar (PGRST100): their position and what they say was expected, as PostgREST says it."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.request.filters import Operands, parse_filter, parse_logic
from project_service.tables.request.query import parse_order, parse_select
from project_service.tables.request.syntax import Field, Filter, JsonStep, SelectColumn

# What a name could have gone on with, and what ends a column of a select.
LONGER = 'letter, digit, "-", "->>", "->"'
ENDS = '"::", ".", ")", "," or end of input'


class Refusals(SynchronousTestCase):
    def refused(self, parser: Any, *given: Any) -> tuple[int, str]:
        """The column, counted from 1, and the details."""
        error = self.assertRaises(TableError, parser, *given)
        self.assertEqual(error.code, "PGRST100")
        where = error.message.rpartition("(line 1, column ")[2]
        return int(where.rstrip(")")), error.json_details

    def test_a_dash_begins_a_json_index(self) -> None:
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

    def test_a_dash_within_a_json_key_is_part_of_it(self) -> None:
        found = parse_select("data->2-b->-2")
        steps = (JsonStep("2-b", False), JsonStep(-2, False))
        self.assertEqual(found, (SelectColumn(Field("data", steps)),))

    def test_a_negation_needs_a_logic_operator(self) -> None:
        found = self.refused(parse_logic, "or", False, "(id.eq.1,not.xor(id.eq.2,id.eq.3))")
        self.assertEqual(found, (16, 'unexpected "x" expecting logic operator (and, or)'))
        found = self.refused(parse_logic, "or", False, "(not.order.eq.1)")
        self.assertEqual(found, (10, 'unexpected "d" expecting "("'))

    def test_a_logic_operator_needs_a_parenthesis(self) -> None:
        found = self.refused(parse_logic, "and", False, "(ord(id.eq.1,id.eq.1),id.eq.2)")
        self.assertEqual(found, (7, 'unexpected "d" expecting "("'))

    def test_column_names_may_begin_like_logic_operators(self) -> None:
        tree = parse_logic("or", False, "(order.eq.1,android.is.null,not.eq.2)")
        names = [term.field.name for term in tree.terms if isinstance(term, Filter)]
        self.assertEqual(names, ["order", "android", "not"])

    def test_an_unknown_operator_is_refused_where_it_stops_matching(self) -> None:
        operator = "expecting operator (eq, gt, ...)"
        for text, column, details in (
            ("foo.x", 1, f'unexpected "f" expecting "not" or {operator.removeprefix("expecting ")}'),
            ("not.foo.x", 5, f'unexpected "f" {operator}'),
            ("eqx.x", 3, f'unexpected "x" {operator}'),
            ("eq", 3, f"unexpected end of input {operator}"),
            ("neq(any).{a}", 4, f'unexpected "(" {operator}'),
            ("eq(some).{a}", 4, f'unexpected "s" {operator}'),
            ("plfts(a.b).x", 8, f'unexpected "." {operator}'),
            ("in.1,2", 4, 'unexpected "1" expecting "("'),
            ("notable", 4, 'unexpected "a" expecting delimiter (.)'),
        ):
            self.assertEqual(
                self.refused(parse_filter, Field("a"), text, Operands()), (column, details), text
            )

    def test_invalid_operands_of_is(self) -> None:
        values = "expecting isVal: (null, not_null, true, false, unknown)"
        for text, column, found in (
            ("is.not.null", 7, '"."'),
            ("is.nil", 5, '"i"'),
            ("is.NUL", 7, "end of input"),
            ("is.ok", 4, '"o"'),
        ):
            expected = (column, f"unexpected {found} {values}")
            self.assertEqual(self.refused(parse_filter, Field("a"), text, Operands()), expected, text)

    def test_a_wrong_character_after_a_name(self) -> None:
        found = self.refused(parse_logic, "or", False, "(title.ilike.%a,b%,c.eq.1)")
        self.assertEqual(found, (20, f'unexpected "%" expecting {LONGER} or delimiter (.)'))
        found = self.refused(parse_order, "coalesce(a, b).desc")
        self.assertEqual(
            found, (9, f"unexpected '(' expecting {LONGER}, delimiter (.), \",\" or end of input")
        )
        found = self.refused(parse_select, "id,clients(name[])")
        self.assertEqual(found, (16, f"unexpected '[' expecting {LONGER}, {ENDS}"))
        self.assertEqual(self.refused(parse_select, "id-,b"), (4, 'unexpected "," expecting letter or digit'))

    def test_invalid_orders(self) -> None:
        ways = '"asc", "desc", "nullsfirst" or "nullslast"'
        for text, column, details in (
            ("id.ac", 4, f'unexpected "c" expecting {ways}'),
            ("id.nulsfist", 4, f'unexpected "n" expecting {ways}'),
            ("id.descc", 8, "unexpected 'c' expecting delimiter (.), \",\" or end of input"),
            ("id.nullslasttt", 13, "unexpected 't' expecting \",\" or end of input"),
            ("id.desc.nlast", 9, 'unexpected "l" expecting "nullsfirst" or "nullslast"'),
        ):
            self.assertEqual(self.refused(parse_order, text), (column, details), text)

    def test_invalid_selects(self) -> None:
        items = '"...", field name (* or [a..z0..9_$]), "*" or "count()"'
        key = '"-", digit or any non reserved character different from: .,>()'
        for text, column, details in (
            ("id,", 4, f"unexpected end of input expecting {items}"),
            ("id,\n", 5, f"unexpected end of input expecting {items}"),
            ("a:auth.users!b(id)", 8, 'unexpected "u" expecting "sum", "avg", "count", "max" or "min"'),
            ("id.sum", 7, 'unexpected end of input expecting "()"'),
            ("count(*)", 6, f"unexpected '(' expecting {LONGER}, {ENDS}"),
            ('id,"', 4, f'unexpected "\\"" expecting {items}'),
            ("a->,b", 4, f'unexpected "," expecting {key}'),
            ('a->"k"b', 7, 'unexpected \'b\' expecting "->>", "->", "::", ".", ")", "," or end of input'),
        ):
            self.assertEqual(self.refused(parse_select, text), (column, details), text)
