"""What each parameter of the query applies to, and how its value is read."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.request.filters import Operands, parse_filter, parse_logic
from project_service.tables.request.query import is_argument, parse_order, parse_query, parse_select
from project_service.tables.request.syntax import (
    OPERATORS,
    Compare,
    Condition,
    Field,
    Filter,
    In,
    JsonStep,
    Logic,
    Operand,
    OrderTerm,
    Query,
    SelectAll,
    SelectColumn,
    SelectEmbed,
    SelectItem,
)
from tests.unit.tables.planning import planned


def equal(name: str, text: str = "1") -> Filter:
    return Filter(Field(name), Compare("eq", Operand(text)))


def query(name: str, value: str) -> Query:
    return parse_query([(name, value)])


class Paths(SynchronousTestCase):
    def test_filters_and_logic_trees_may_be_on_embedded_relations(self) -> None:
        terms = (equal("x"),)
        asked: tuple[tuple[str, str, tuple[str, ...], Condition], ...] = (
            ("x", "eq.1", (), equal("x")),
            ("a.b.x", "eq.1", ("a", "b"), equal("x")),
            ("and", "(x.eq.1)", (), Logic("and", terms)),
            ("not.or", "(x.eq.1)", (), Logic("or", terms, negated=True)),
            ("a.b.or", "(x.eq.1)", ("a", "b"), Logic("or", terms)),
            ("a.b.not.and", "(x.eq.1)", ("a", "b"), Logic("and", terms, negated=True)),
            ('"a.b".x', "eq.1", ("a.b",), equal("x")),
        )
        for name, value, path, condition in asked:
            self.assertEqual(query(name, value).filters, ((path, condition),), name)
        field = Field("x", (JsonStep("k", False), JsonStep(0, True)))
        ((path, found),) = query("a.x->k->>0", "is.null").filters
        self.assertEqual((path, found.field if isinstance(found, Filter) else None), (("a",), field))

    def test_filters_may_be_written_with_list_indexes(self) -> None:
        for names in (("x[0]", "x[1]"), ("x[]", "x[]"), ("x", "x")):
            found = parse_query([(name, "eq.1") for name in names]).filters
            self.assertEqual(found, (((), equal("x")),) * 2, names)
        self.assertEqual(query("a.b.x[10]", "eq.1").filters, ((("a", "b"), equal("x")),))
        for name, field in (('"x[0]"', Field("x[0]")), ("x->k[0]", Field("x", (JsonStep("k[0]", False),)))):
            ((_, found_),) = query(name, "is.null").filters
            self.assertEqual(found_.field if isinstance(found_, Filter) else None, field)

    def test_orders_and_limits_may_be_on_embedded_relations(self) -> None:
        for name in ("order", "a.order", "a.b.order"):
            ((path, _),) = query(name, "1").orders
            self.assertEqual(path, tuple(name.split(".")[:-1]))
        self.assertEqual(query("a.b.limit", "1").ranges[0][0], ("a", "b"))

    def test_malformed_paths_are_refused(self) -> None:
        for name, value in (
            ("a,b.limit", "1"),
            ("a..order", "id"),
            ("a->b.limit", "1"),
            (".x", "eq.1"),
            ("a,x", "eq.1"),
            ("x->y,z", "eq.1"),
            ("x[a]", "eq.1"),
            ("x[-1]", "eq.1"),
            ("x[0", "eq.1"),
            ("x[0][1]", "eq.1"),
            ("x[0].y", "eq.1"),
            ("x[0]\n", "eq.1"),
        ):
            error = self.assertRaises(TableError, query, name, value)
            self.assertEqual(error.code, "PGRST100", name)
            self.assertIn("failed to parse tree path", error.message)

    def test_a_nul_in_a_parameter_is_refused(self) -> None:
        for name, value in (("\0", "eq.1"), ("x", "eq.\0"), ("select", "\0")):
            self.assertEqual(self.assertRaises(TableError, query, name, value).code, "PGRST100")


class Names(SynchronousTestCase):
    def test_columns_and_on_conflict_are_lists_of_names(self) -> None:
        for text, expected in (("a", ("a",)), ('a, b ,"c,d"', ("a", "b", "c,d"))):
            self.assertEqual(query("columns", text).columns, expected)
            self.assertEqual(query("on_conflict", text).on_conflict, expected)
        for name in ("columns", "on_conflict"):
            for text in ("", "a,", "a.b", "a->b", "a)"):
                error = self.assertRaises(TableError, query, name, text)
                self.assertIn(f"failed to parse {name} parameter", error.message, text)


class Arguments(SynchronousTestCase):
    def test_arguments_of_a_function_are_told_from_filters_on_its_rows(self) -> None:
        for name, value, expected in (
            ("q", "x", True),
            ("q", "", True),
            ("q", "eq", True),
            ("q", "eq.x", False),
            ("q", "not.x", False),
            ("q", "fts(english).x", False),
            ("q", "example.org", True),
            ("and", "x", True),
            ("or", "(x.eq.1)", False),
            ("a.and", "(x.eq.1)", False),
            ("q", "(x)", True),
            ("order", "x", False),
            ("limit", "1", False),
            ("a.b", "x", False),
            ("a->b", "x", False),
        ):
            self.assertIs(is_argument(name, value), expected, (name, value))


class Operators(SynchronousTestCase):
    """The table of operators is the only one: it agrees with the page, the parser and the statement."""

    def test_the_page_names_every_operator(self) -> None:
        page = (Path(__file__).parents[3] / "docs" / "tables.rst").read_text("utf-8")
        table = page.partition("``column=operator.value``")[2].partition("``or`` and ``and`` combine")[0]
        rows = re.findall(r"^``([a-z ]+)`` {2,}", table, re.MULTILINE)
        named = [name for row in rows for name in row.split()]
        self.assertEqual(sorted(named), sorted([*OPERATORS, "not"]))
        (quantifiable,) = re.findall(r"^ +``([a-z ]+)``$", table, re.MULTILINE)
        self.assertEqual(
            sorted(quantifiable.split()),
            sorted(name for name, one in OPERATORS.items() if one.quantified_sql is not None),
        )

    def test_each_operator_becomes_its_sql(self) -> None:
        given = {"list": "(a,b)", "keyword": "not_null"}
        for name, operator in OPERATORS.items():
            for negation in ("", "not."):
                value = f"{negation}{name}.{given.get(operator.operand, 'a*')}"
                for parameter in (("title", value), ("or", f"(title.{value})")):
                    statement = planned("GET", "works", parameter).compiled.statement.sql
                    self.assertIn(operator.sql, statement.text, value)
                    self.assertEqual("NOT " in statement.text.replace("IS NOT", ""), bool(negation), value)
                    expected = {"pattern": ["a%"], "list": ['{"a","b"}'], "keyword": []}
                    values = [
                        one.text
                        for one in statement.parameters
                        if isinstance(one, Operand) and one.slot >= -1
                    ]
                    self.assertEqual(values, expected.get(operator.operand, ["a*"]), value)

    def test_any_and_all_are_for_the_operators_that_have_sql_for_them(self) -> None:
        for name, operator in OPERATORS.items():
            for quantifier in ("any", "all"):
                value = f"{name}({quantifier}).{{a,b}}"
                if operator.quantified_sql is not None:
                    statement = planned("GET", "works", ("title", value)).compiled.statement.sql.text
                    self.assertIn(f'"title" {operator.quantified_sql} {quantifier.upper()} (', statement)
                elif operator.operand != "search":
                    error = self.assertRaises(TableError, planned, "GET", "works", ("title", value))
                    self.assertEqual(error.code, "PGRST100", value)


class Values(SynchronousTestCase):
    """Outside of logic trees an operand is all that follows; inside them quotes and braces delimit it."""

    def test_operands_in_a_logic_tree(self) -> None:
        for text, expected in (
            ("{a,b}", "{a,b}"),
            ("{a,b} ", "{a,b}"),
            ("{a)}", "{a)}"),
            ('"a,b)"', "a,b)"),
            ('"\\"a\\\\"', '"a\\'),
            ("a b", "a b"),
            ("{a}b", "{a}b"),
            ('"a"b', '"a"b'),
            ("", ""),
        ):
            tree = parse_logic("or", False, f"(x.eq.{text},y.eq.1)")
            self.assertEqual(tree.terms, (equal("x", expected), equal("y")), text)
        error = self.assertRaises(TableError, parse_logic, "or", False, "(x.eq.{a,b}c)")
        self.assertEqual(error.code, "PGRST100")

    def test_operands_of_a_single_filter(self) -> None:
        for text in ("{a,b}", '"a"', "a,b)", " a ", "", "not.eq.1"):
            found = parse_filter(Field("x"), f"eq.{text}", Operands())
            self.assertEqual(found, equal("x", text))

    def test_a_star_is_a_wildcard_only_for_like_and_ilike(self) -> None:
        for operator, expected in (("like", "a%%"), ("ilike", "a%%"), ("match", "a*%"), ("eq", "a*%")):
            comparison = Compare(operator, Operand(expected))
            for found in (
                parse_filter(Field("x"), f"{operator}.a*%", Operands()),
                parse_logic("and", False, f"(x.{operator}.a*%)").terms[0],
            ):
                self.assertEqual(found, Filter(Field("x"), comparison), operator)
        quantified = parse_filter(Field("x"), "like(any).{a*,b}", Operands())
        self.assertEqual(quantified.operation, Compare("like", Operand("{a%,b}"), "any"))

    def test_operands_of_in(self) -> None:
        for text, expected in (
            ("()", "{}"),
            ("( )", "{}"),
            ("(a)", '{"a"}'),
            ('(a, "b,c")', '{"a","b,c"}'),
            ("(,)", '{"",""}'),
            ('("a"b,c d)', '{"\\"a\\"b","c d"}'),
            ('(""")', '{"\\"\\"\\""}'),
            (r'("a\"\\")', r'{"a\"\\"}'),
        ):
            found = parse_filter(Field("x"), f"in.{text}", Operands())
            self.assertEqual(found.operation, In(Operand(expected)), text)


class Selects(SynchronousTestCase):
    def test_valid_selects(self) -> None:
        a, b = SelectColumn(Field("a")), SelectColumn(Field("b"))
        total = SelectColumn(None, aggregate="count")
        asked: tuple[tuple[str, tuple[SelectItem, ...]], ...] = (
            ("", (SelectAll(),)),
            ('"*",*', (SelectColumn(Field("*")), SelectAll())),
            (" a , b ", (a, b)),
            ("a))", (a,)),
            ("x: a", (SelectColumn(Field("a"), "x"),)),
            ("a:: double precision ", (SelectColumn(Field("a"), cast="double precision"),)),
            ("a::text.max()::int[]", (SelectColumn(Field("a"), None, "text", "max", "int[]"),)),
            ("count()", (total,)),
            ("x:count()::text", (SelectColumn(None, "x", None, "count", "text"),)),
            ("count!fk(a)", (SelectEmbed("count", (a,), None, "fk"),)),
            ("count!fk()", (SelectEmbed("count", (), None, "fk"),)),
            ("count!inner()", (SelectEmbed("count", (), None, None, "inner"),)),
            ("t( a , b )", (SelectEmbed("t", (a, b)),)),
            ("x:t!fk!left()", (SelectEmbed("t", (), "x", "fk", "left"),)),
            ("t!inner!fk(a)", (SelectEmbed("t", (a,), None, "fk", "inner"),)),
            ("t!inner!left(a)", (SelectEmbed("t", (a,), None, "left", "inner"),)),
            ("...t(a), b", (SelectEmbed("t", (a,), spread=True), b)),
        )
        for text, expected in asked:
            self.assertEqual(parse_select(text), expected, text)

    def test_invalid_selects(self) -> None:
        for text in (
            "a)b",
            "count(a)",
            "a::",
            "a:: ",
            "a::,b",
            "t(a",
            "t!(a)",
            "...t",
            "x:...t(a)",
            "a.max()b",
            "x:",
            "a b:",
        ):
            error = self.assertRaises(TableError, parse_select, text)
            self.assertEqual((error.status, error.code), (400, "PGRST100"), text)


class Orders(SynchronousTestCase):
    def test_orders(self) -> None:
        a, b = Field("a"), Field("b", (JsonStep("k", True),))
        asked: tuple[tuple[str, tuple[OrderTerm, ...]], ...] = (
            ("a", (OrderTerm(a),)),
            (" a.asc , b->>k.desc.nullsfirst", (OrderTerm(a, "asc"), OrderTerm(b, "desc", "nullsfirst"))),
            ("a.nullslast", (OrderTerm(a, None, "nullslast"),)),
            ("t(a).desc,t(b->>k)", (OrderTerm(a, "desc", None, "t"), OrderTerm(b, None, None, "t"))),
        )
        for text, expected in asked:
            self.assertEqual(parse_order(text), expected, text)
        for text in ("", "a,", "t()", "t(a", "t(a)b", "a->k(b)", "a.asc.desc", "a)"):
            self.assertEqual(self.assertRaises(TableError, parse_order, text).code, "PGRST100", text)
