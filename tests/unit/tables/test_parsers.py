"""All parsers of the table API: random input is parsed or refused, what is written is read back, and errors say
where."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service import tables
from project_service.tables.errors import TableError
from project_service.tables.request import headers
from project_service.tables.request.body import parse_payload
from project_service.tables.request.filters import parse_logic
from project_service.tables.request.headers import parse_preferences
from project_service.tables.request.query import (
    intersect,
    parse_order,
    parse_query,
    parse_range,
    parse_select,
    shape_of_query,
)
from project_service.tables.request.request import parse_head
from project_service.tables.request.syntax import (
    Compare,
    Field,
    Filter,
    In,
    Logic,
    Operand,
    OrderTerm,
    Range,
    SelectItem,
)
from tests.unit.tables import rendered

text = st.text(st.characters(exclude_categories=()), max_size=60)
grammar = st.text(st.sampled_from('abcor12 ._-,:!*"\\()[]{}>-<$eqinotandlikesumcount'), max_size=60)
words = st.sampled_from(
    ["select", "order", "limit", "offset", "columns", "and", "or", "not.or", "a.order", "id"]
)
pairs = st.lists(st.tuples(st.one_of(words, grammar, text), st.one_of(grammar, text)), max_size=5)


class Anything(SynchronousTestCase):
    @given(pairs, st.booleans())
    def test_any_query_is_parsed_or_refused(
        self, given_pairs: list[tuple[str, str]], arguments: bool
    ) -> None:
        try:
            parse_query(given_pairs, arguments)
        except TableError as refused:
            self.assertIn(refused.status, (400, 416))

    @given(pairs, st.booleans())
    def test_the_shape_of_a_query_numbers_operands_as_the_parsed_query_does(
        self, given_pairs: list[tuple[str, str]], arguments: bool
    ) -> None:
        try:
            query = parse_query(given_pairs, arguments)
        except TableError:
            return
        _, operands = shape_of_query(given_pairs, arguments)
        parsed = {operand.slot: operand.text for operand in _operands(query.filters, query.arguments)}
        self.assertEqual(
            {slot: value for slot, value in parsed.items() if slot >= 0}, dict(enumerate(operands))
        )

    @given(
        st.sampled_from(["GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS", "TRACE"]),
        st.lists(text, max_size=3),
        st.lists(
            st.tuples(
                st.sampled_from(["accept", "prefer", "range", "accept-profile", "content-profile"]), text
            ),
            max_size=4,
        ),
    )
    def test_any_method_path_and_headers_are_parsed_or_refused(
        self, method: str, segments: list[str], headers: list[tuple[str, str]]
    ) -> None:
        try:
            parse_head(method, segments, headers, ("one", "two"))
        except TableError as refused:
            self.assertIn(refused.status, (400, 404, 405, 406, 416))

    @given(
        st.sampled_from(
            [None, "application/json", "text/csv", "application/x-www-form-urlencoded", "text/plain"]
        ),
        st.one_of(st.binary(max_size=80), text.map(lambda parsed: parsed.encode("utf-8", "replace"))),
        st.booleans(),
    )
    def test_any_body_is_parsed_or_refused(self, kind: str | None, body: bytes, routine: bool) -> None:
        try:
            parse_payload(kind, body, None, routine)
        except TableError as refused:
            self.assertEqual((refused.status, refused.code), (400, "PGRST102"))


def _operands(filters: object, arguments: Sequence[tuple[str, Operand]]) -> list[Operand]:
    parsed = [operand for _, operand in arguments]

    def visit(condition: object) -> None:
        if isinstance(condition, Logic):
            for term in condition.terms:
                visit(term)
        elif isinstance(condition, Filter) and isinstance(condition.operation, Compare | In):
            parsed.append(condition.operation.operand)

    assert isinstance(filters, tuple)
    for _, condition in filters:
        visit(condition)
    return parsed


class RoundTrips(SynchronousTestCase):
    @given(rendered.logic)
    def test_logic_trees(self, tree: Logic) -> None:
        self.assertEqual(parse_logic(tree.operator, tree.negated, rendered.logic_text(tree)), tree)

    @given(rendered.orders)
    def test_orders(self, terms: tuple[OrderTerm, ...]) -> None:
        self.assertEqual(parse_order(rendered.order_text(terms)), terms)

    @given(rendered.selects)
    def test_selects(self, items: tuple[SelectItem, ...]) -> None:
        self.assertEqual(parse_select(rendered.select_text(items)), items)

    @given(rendered.names, rendered.anything, st.booleans())
    def test_a_plain_filter_keeps_its_operand(self, name: str, value: str, negated: bool) -> None:
        query = parse_query([(rendered.quoted(name), ("not." if negated else "") + "eq." + value)])
        ((path, parsed),) = query.filters
        self.assertEqual((path, parsed), ((), Filter(Field(name), Compare("eq", Operand(value)), negated)))


class Pipeline(SynchronousTestCase):
    def test_each_stage_imports_only_earlier_ones(self) -> None:
        folder = Path(tables.__file__).parent
        stages = ("request", "plan", "sql", "reply")
        for number, stage in enumerate(stages):
            later = stages[number + 1 :]
            for file in sorted((folder / stage).glob("*.py")):
                for name in _imported(file.read_text("utf-8")):
                    self.assertFalse(
                        name.startswith(tuple(f"{tables.__name__}.{one}" for one in later)), file
                    )


def _imported(source: str) -> list[str]:
    parsed: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            parsed.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            parsed.append(node.module)
    return parsed


class Messages(SynchronousTestCase):
    """The positions and texts of PGRST100, which clients show."""

    def refused(self, name: str, value: str) -> tuple[str, object]:
        error = self.assertRaises(TableError, parse_query, [(name, value)])
        self.assertEqual((error.status, error.code), (400, "PGRST100"))
        return error.message, error.json_details

    def test_a_missing_operator(self) -> None:
        self.assertEqual(
            self.refused("id", "0"),
            (
                '"failed to parse filter (0)" (line 1, column 1)',
                'unexpected "0" expecting "not" or operator (eq, gt, ...)',
            ),
        )

    def test_an_empty_logic_tree(self) -> None:
        self.assertEqual(
            self.refused("or", "()"),
            (
                '"failed to parse logic tree (())" (line 1, column 4)',
                'unexpected ")" expecting field name (* or [a..z0..9_$]), negation operator (not) '
                "or logic operator (and, or)",
            ),
        )

    def test_an_unclosed_logic_tree(self) -> None:
        self.assertEqual(
            self.refused("or", "(id.eq.1"),
            (
                '"failed to parse logic tree ((id.eq.1)" (line 1, column 11)',
                'unexpected end of input expecting "," or ")"',
            ),
        )

    def test_text_after_the_end_is_refused(self) -> None:
        for value in ("in.(A (x),B)", "not.in.(A (x),B)", "in.(1)2", "is.null,1"):
            self.assertRaises(TableError, parse_query, [("name", value)])
        for value in ("(name.eq.A (x),id.eq.2)", "(id.eq.1)),id.eq.2)", "(id.eq.1)&"):
            self.assertRaises(TableError, parse_query, [("or", value)])
        for name, value in (("id", "in.(1) "), ("id", "is.null "), ("or", "(id.eq.1) ))"), ("name", "eq.) ")):
            self.assertEqual(len(parse_query([(name, value)]).filters), 1, value)

    def test_an_unknown_order_direction(self) -> None:
        message, details = self.refused("order", "id.up")
        self.assertEqual(message, '"failed to parse order (id.up)" (line 1, column 4)')
        self.assertEqual(details, 'unexpected "u" expecting "asc", "desc", "nullsfirst" or "nullslast"')

    def test_nesting_is_limited(self) -> None:
        deep = "(" + "and(" * 60 + "id.eq.1" + ")" * 61
        _, details = self.refused("and", deep)
        self.assertIn("nested deeper", str(details))


class Headers(SynchronousTestCase):
    def test_accept_sorts_by_weight_then_by_position(self) -> None:
        parsed = headers.parse_accept("text/csv;q=0.5, application/json, text/plain;q=0, */*;q=0.1")
        self.assertEqual([one.name for one in parsed], ["application/json", "text/csv", "*/*", "text/plain"])
        self.assertEqual([one.refused for one in parsed], [False, False, False, True])

    def test_accept_sorts_equal_weights_by_specificity(self) -> None:
        parsed = headers.parse_accept("*/*, text/*, text/csv;q=1.0, text/xml, text/csv;header=present")
        self.assertEqual(
            [one.shown for one in parsed],
            ["text/csv;header=present", "text/csv", "text/xml", "text/*", "*/*"],
        )

    def test_vendored_media_types_have_a_short_name(self) -> None:
        (parsed,) = headers.parse_accept("application/vnd.pgrst.object; nulls=stripped")
        self.assertEqual(
            parsed.content_type, "application/vnd.pgrst.object+json;nulls=stripped; charset=utf-8"
        )

    def test_the_plan_media_type_names_what_it_explains(self) -> None:
        (parsed,) = headers.parse_accept(
            'application/vnd.pgrst.plan; for="text/csv"; options=verbose|analyze'
        )
        self.assertEqual(
            parsed.content_type,
            'application/vnd.pgrst.plan+text; for="text/csv"; options=analyze|verbose; charset=utf-8',
        )

    def test_preference_applied_has_a_fixed_order(self) -> None:
        parsed = parse_preferences(["tx=commit, count=exact", "return=minimal, whatever"])
        self.assertEqual(
            parsed.applied(["return", "count", "tx"]),
            (("Preference-Applied", "return=minimal, count=exact, tx=commit"),),
        )

    def test_strict_handling_names_what_is_unknown(self) -> None:
        error = self.assertRaises(TableError, parse_preferences, ["handling=strict, a, b=c"])
        self.assertEqual((error.code, error.json_details), ("PGRST122", "Invalid preferences: a, b=c"))

    def test_max_affected_needs_strict_handling(self) -> None:
        self.assertIsNone(parse_preferences(["max-affected=3"]).max_affected)
        self.assertEqual(parse_preferences(["max-affected=3, handling=strict"]).max_affected, 3)

    @given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
    def test_ranges_intersect_as_sets_of_rows(self, a: int, b: int, c: int, d: int) -> None:
        def rows(offset: int, limit: int) -> set[int]:
            return set(range(offset, offset + limit))

        try:
            parsed = intersect(Range(a, b), Range(c, d))
        except TableError:
            self.assertEqual(rows(a, b) & rows(c, d), set())
            return
        assert parsed.limit is not None
        self.assertEqual(rows(parsed.offset, parsed.limit), rows(a, b) & rows(c, d))

    def test_range_header(self) -> None:
        self.assertEqual(self.assertRaises(TableError, parse_range, "5-1").status, 416)
        self.assertEqual(parse_range("5-"), Range(5))
        self.assertEqual(parse_range("bytes=0-1"), Range())


class Bodies(SynchronousTestCase):
    def test_objects_must_have_the_same_keys_unless_columns_are_given(self) -> None:
        body = b'[{"a": 1}, {"b": 2}]'
        self.assertRaises(TableError, parse_payload, None, body, None, False)
        self.assertEqual(parse_payload(None, body, ("a",), False).keys, ("a",))

    def test_csv_becomes_objects(self) -> None:
        parsed = parse_payload("text/csv", b'a,b\n1,NULL\n"x,y",\n', None, False)
        self.assertEqual(parsed.text, '[{"a":"1","b":null},{"a":"x,y","b":""}]')
        self.assertEqual(parsed.keys, ("a", "b"))

    def test_json_that_is_no_object_or_array_of_objects_is_for_functions_only(self) -> None:
        for body in (b"5", b'"{}"', b"null", b"true", b'[{"a": 1}, 5]'):
            refused = self.assertRaises(TableError, parse_payload, None, body, None, False)
            self.assertEqual((refused.status, refused.code), (400, "PGRST102"), body)
        self.assertTrue(parse_payload(None, b"5", None, True).is_empty)
