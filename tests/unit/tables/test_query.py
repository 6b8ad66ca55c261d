"""The query string: what each parameter applies to, how its value is read, what errors of its grammar say, and how
``limit``, ``offset`` and ``Range`` are combined."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.request.filters import Operands, parse_filter, parse_logic
from project_service.tables.request.query import (
    intersect,
    is_argument,
    outline_of_query,
    parse_order,
    parse_query,
    parse_range,
    parse_select,
)
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
    Range,
    SelectAll,
    SelectColumn,
    SelectEmbed,
    SelectItem,
)
from project_service.tables.sql.read import range_sql
from project_service.whole_numbers import BEYOND
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
        ((path, parsed),) = query("a.x->k->>0", "is.null").filters
        self.assertEqual((path, parsed.field if isinstance(parsed, Filter) else None), (("a",), field))

    def test_filters_may_be_written_with_list_indexes(self) -> None:
        for names in (("x[0]", "x[1]"), ("x[]", "x[]"), ("x", "x")):
            parsed = parse_query([(name, "eq.1") for name in names]).filters
            self.assertEqual(parsed, (((), equal("x")),) * 2, names)
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


class Outlines(SynchronousTestCase):
    """What the log says of a slow request."""

    def test_names_operators_and_numbers_of_rows_are_shown(self) -> None:
        for asked, shown in (
            ("id=eq.5", "id=eq.$"),
            ("a.b->>k=not.ilike(any).{a,b}", "a.b->>k=not.ilike(any).$"),
            ("id=in.(1,2)", "id=in.$"),
            ("t=fts(english).fat", "t=$"),
            ("id=eq", "id=$"),
            ("id=made.up", "id=$"),
            ("or=(id.eq.5,name.eq.Ann)", "or=$"),
            ("a.not.and=(id.eq.5)", "a.not.and=$"),
            ("select=id,name,parts(label)", "select=id,name,parts(label)"),
            ("order=id.desc", "order=id.desc"),
            ("a.limit=20", "a.limit=20"),
            ("offset=x5", "offset=$"),
            ("n=5", "n=$"),
        ):
            pair = (asked.partition("=")[0], asked.partition("=")[2])
            self.assertEqual(outline_of_query([pair]), shown, asked)
        self.assertEqual(outline_of_query([("limit", "1"), ("n", "5")]), "limit=1&n=$")

    @given(
        st.sampled_from(("id", "a.b", "x->>k", "or", "a.and", "not.or", "limit", "a.offset", "n")),
        st.sampled_from(
            (
                "eq.%s",
                "not.in.(%s,b)",
                "%s",
                "(id.eq.%s)",
                "is.%s",
                "cs.{%s}",
                "fts(%s).a",
                "eq(%s).b",
                "%s.eq",
            )
        ),
        st.text('aeq.(){},"\\ 19', max_size=12),
    )
    def test_no_operand_and_no_argument_is_shown(self, name: str, form: str, text: str) -> None:
        pair = (name, form.replace("%s", f"zqj{text}qzj"))
        shown = outline_of_query([pair])
        self.assertNotIn("zqj", shown)
        self.assertNotIn("qzj", shown)


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
                    rest = statement.text.replace("IS NOT", "").replace(operator.sql, "")
                    self.assertEqual("NOT " in rest, bool(negation), value)
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
            parsed = parse_filter(Field("x"), f"eq.{text}", Operands())
            self.assertEqual(parsed, equal("x", text))

    def test_a_star_is_a_wildcard_only_for_like_and_ilike(self) -> None:
        for operator, expected in (("like", "a%%"), ("ilike", "a%%"), ("match", "a*%"), ("eq", "a*%")):
            comparison = Compare(operator, Operand(expected))
            for parsed in (
                parse_filter(Field("x"), f"{operator}.a*%", Operands()),
                parse_logic("and", False, f"(x.{operator}.a*%)").terms[0],
            ):
                self.assertEqual(parsed, Filter(Field("x"), comparison), operator)
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
            parsed = parse_filter(Field("x"), f"in.{text}", Operands())
            self.assertEqual(parsed.operation, In(Operand(expected)), text)


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


class Ranges(SynchronousTestCase):
    def asked(self, text: str) -> Range:
        pairs = [(name, value) for name, _, value in (part.partition("=") for part in text.split("&"))]
        return next((parsed for path, parsed in parse_query(pairs).ranges if path == ()), Range())

    def test_limit_and_offset_become_one_range(self) -> None:
        """As PostgREST answers: a limit or an offset alone may be invalid, together they must not be."""
        for text, expected in (
            ("limit=abc", Range()),
            ("limit=2&limit=abc", Range()),
            ("limit= 2&offset=1\n", Range(1, 2)),
            ("limit=1&limit=2", Range(0, 2)),
            ("limit=0", Range(0, 0)),
            ("offset=-5", Range()),
            ("offset=x", Range()),
            ("limit=3&offset=x", Range(0, 3)),
            ("limit=abc&offset=abc", Range(0, 0)),
            ("offset=-2&limit=3", Range(0, 1)),
            ("offset=5&limit=2", Range(5, 2)),
        ):
            self.assertEqual(self.asked(text), expected, text)
        for text in (
            "limit=-1",
            "limit=0&offset=5",
            "limit=abc&offset=5",
            "offset=-5&limit=3",
            "offset=-2&limit=0",
        ):
            error = self.assertRaises(TableError, self.asked, text)
            self.assertEqual(error.json_details, "Limit should be greater than or equal to zero.", text)

    def test_an_embedding_may_be_limited_to_no_rows(self) -> None:
        parsed = parse_query([("a.limit", "0"), ("a.offset", "5")]).ranges
        self.assertEqual(parsed, ((("a",), Range(0, 0)),))

    def test_a_range_header_may_exceed_any_table(self) -> None:
        """It is not ignored as an invalid header is, because then all rows would be sent."""
        most = 2**63 - 1
        for header, expected in (
            (f"{most}-{most}", Range(most, 1)),
            (f"1{'0' * 20}-", Range(10**20)),
            (f"1{'0' * 400}-", Range(10**400)),
            (f"{'9' * 9000}-", Range(BEYOND)),
            (f"{'0' * 9000}5-{'0' * 50}7", Range(5, 3)),
            (f"5-1{'0' * 20}", Range(5, 10**20 - 4)),
            ("٣-٤", Range()),
        ):
            self.assertEqual(parse_range(header), expected, header)

    def test_a_range_beyond_any_table_is_sent_as_the_largest_that_postgresql_takes(self) -> None:
        most = str(2**63 - 1)
        for digits in ("9223372036854775808", "9" * 400, "9" * 9000):
            parsed = self.asked(f"offset={digits}&limit={digits}")
            self.assertEqual(range_sql(parsed).values(), [most, most])
            self.assertEqual(range_sql(self.asked(f"limit={digits}")).values(), [most])
            self.assertEqual(range_sql(parse_range(f"{digits}-")).values(), [most])
            self.assertEqual(self.asked(f"offset=-{digits}"), Range())
            self.assertEqual(self.asked(f"offset={'0' * 9000}2&limit={'0' * 41}3"), Range(2, 3))
            self.assertRaises(TableError, self.asked, f"limit=-{digits}")
        self.assertRaises(TableError, parse_range, f"{'9' * 401}-{'9' * 400}")

    def test_the_range_header_and_the_parameters_intersect(self) -> None:
        self.assertEqual(intersect(Range(0, 0), Range(0, 5)), Range(0, 0))
        for one, other in ((Range(0, 2), Range(2, 9)), (Range(10), Range(0, 5)), (Range(0, 0), Range(3, 1))):
            error = self.assertRaises(TableError, intersect, one, other)
            self.assertEqual(error.json_details, "Limit should be greater than or equal to zero.")


# What a name could have gone on with, and what ends a column of a select.
LONGER = 'letter, digit, "-", "->>", "->"'
ENDS = '"::", ".", ")", "," or end of input'


class Errors(SynchronousTestCase):
    def rejected(self, parser: Any, *given: Any) -> tuple[int, str]:
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
            self.assertEqual(self.rejected(parse_select, text), (column, details))
        self.assertEqual(self.rejected(parse_order, "data->>--1"), (9, 'unexpected "-" expecting digit'))

    def test_a_dash_within_a_json_key_is_part_of_it(self) -> None:
        parsed = parse_select("data->2-b->-2")
        steps = (JsonStep("2-b", False), JsonStep(-2, False))
        self.assertEqual(parsed, (SelectColumn(Field("data", steps)),))

    def test_a_negation_needs_a_logic_operator(self) -> None:
        parsed = self.rejected(parse_logic, "or", False, "(id.eq.1,not.xor(id.eq.2,id.eq.3))")
        self.assertEqual(parsed, (16, 'unexpected "x" expecting logic operator (and, or)'))
        parsed = self.rejected(parse_logic, "or", False, "(not.order.eq.1)")
        self.assertEqual(parsed, (10, 'unexpected "d" expecting "("'))

    def test_a_logic_operator_needs_a_parenthesis(self) -> None:
        parsed = self.rejected(parse_logic, "and", False, "(ord(id.eq.1,id.eq.1),id.eq.2)")
        self.assertEqual(parsed, (7, 'unexpected "d" expecting "("'))

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
                self.rejected(parse_filter, Field("a"), text, Operands()), (column, details), text
            )

    def test_invalid_operands_of_is(self) -> None:
        values = "expecting isVal: (null, not_null, true, false, unknown)"
        for text, column, parsed in (
            ("is.not.null", 7, '"."'),
            ("is.nil", 5, '"i"'),
            ("is.NUL", 7, "end of input"),
            ("is.ok", 4, '"o"'),
        ):
            expected = (column, f"unexpected {parsed} {values}")
            self.assertEqual(self.rejected(parse_filter, Field("a"), text, Operands()), expected, text)

    def test_a_wrong_character_after_a_name(self) -> None:
        parsed = self.rejected(parse_logic, "or", False, "(title.ilike.%a,b%,c.eq.1)")
        self.assertEqual(parsed, (20, f'unexpected "%" expecting {LONGER} or delimiter (.)'))
        parsed = self.rejected(parse_order, "coalesce(a, b).desc")
        self.assertEqual(
            parsed, (9, f"unexpected '(' expecting {LONGER}, delimiter (.), \",\" or end of input")
        )
        parsed = self.rejected(parse_select, "id,clients(name[])")
        self.assertEqual(parsed, (16, f"unexpected '[' expecting {LONGER}, {ENDS}"))
        self.assertEqual(
            self.rejected(parse_select, "id-,b"), (4, 'unexpected "," expecting letter or digit')
        )

    def test_invalid_orders(self) -> None:
        ways = '"asc", "desc", "nullsfirst" or "nullslast"'
        for text, column, details in (
            ("id.ac", 4, f'unexpected "c" expecting {ways}'),
            ("id.nulsfist", 4, f'unexpected "n" expecting {ways}'),
            ("id.descc", 8, "unexpected 'c' expecting delimiter (.), \",\" or end of input"),
            ("id.nullslasttt", 13, "unexpected 't' expecting \",\" or end of input"),
            ("id.desc.nlast", 9, 'unexpected "l" expecting "nullsfirst" or "nullslast"'),
        ):
            self.assertEqual(self.rejected(parse_order, text), (column, details), text)

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
            self.assertEqual(self.rejected(parse_select, text), (column, details), text)
