"""How statements keep PostgreSQL from reading and aggregating more embedded rows than it has to."""

from __future__ import annotations

import re
from functools import partial

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.values import SchemaCache
from tests.unit.tables.planning import CACHE, CONFIG, planned, text

TAGGED = ("select", "title,tags!inner(label)")
FILTERED = ("tags.label", "eq.x")
AUTHOR = ("select", "title,authors!works_author_fkey(name)")
LIMITED = evolve(CONFIG, max_rows=5)


def called(is_sql: bool) -> SchemaCache:
    """A schema cache in which PostgreSQL may replace ``find`` by its query, if that is SQL."""
    key = ("api", "find")
    (find,) = CACHE.routines[key]
    changed = evolve(find, is_sql=is_sql, is_set=True, is_composite=True, volatility="s")
    return evolve(CACHE, routines={**CACHE.routines, key: (changed,)})


def page(*pairs: tuple[str, str], path: str = "works") -> str:
    """The subquery that finds the page; empty if there is none."""
    sql = text(planned("GET", path, *pairs, config=LIMITED))
    subquery = re.search(r'FROM \((SELECT .*?(?: LIMIT \d+)?(?: OFFSET \d+)?)\) AS "works" ', sql)
    return subquery[1] if subquery is not None else ""


def joins(*pairs: tuple[str, str], path: str = "works") -> int:
    return text(planned("GET", path, *pairs, config=LIMITED)).count("JOIN LATERAL")


class Pages(SynchronousTestCase):
    """Which rows are shown is found first, and what is embedded is gathered for these rows alone."""

    def test_to_many_relations_that_decide_are_tested_in_the_page(self) -> None:
        for order in ((), (("order", "title"),)):
            for pairs in (
                [TAGGED],
                [TAGGED, FILTERED],
                [("select", "title,...tags!inner(label)")],
                [("select", "title,tags(label)"), ("tags", "not.is.null")],
                [("select", "title,tags(label)"), ("and", "(tags.not.is.null,id.gt.7)")],
                [("select", "title,tags(label)"), ("not.or", "(tags.is.null,id.gt.7)")],
            ):
                sql = page(*pairs, *order)
                self.assertEqual(sql.count("EXISTS ("), 1, pairs)
                self.assertEqual(joins(*pairs, *order), 1, pairs)

    def test_a_test_in_an_or_leaves_rows_in_their_order(self) -> None:
        """PostgreSQL makes no join of it."""
        for shown, joined in (("tags()", 0), ("tags(label)", 1)):
            pairs = (("select", f"title,{shown}"), FILTERED, ("or", "(tags.not.is.null,id.gt.7)"))
            sql = text(planned("GET", "works", *pairs, config=LIMITED))
            self.assertEqual((sql.count("(EXISTS ("), sql.count("JOIN LATERAL")), (1, joined))
            self.assertNotIn("ORDER BY", sql)
            self.assertIn(" LIMIT 5 OFFSET 7) AS pgrst_page" if joined else "", page(*pairs, ("offset", "7")))

    def test_a_relation_without_rows_is_an_anti_join(self) -> None:
        for pairs in ([("select", "title,tags()")], [("select", "title,tags(label)"), FILTERED]):
            sql = page(*pairs, ("tags", "is.null"), ("limit", "3"))
            self.assertEqual(sql.count("WHERE NOT EXISTS ("), 1)
            self.assertTrue(sql.endswith(' ORDER BY "works"."id" LIMIT 3'), sql)

    def test_an_unsorted_page_is_cut_by_the_columns_that_an_embedded_relation_refers_to(self) -> None:
        self.assertTrue(page(TAGGED, FILTERED).endswith(' ORDER BY "works"."id" LIMIT 5'))
        whole = text(planned("GET", "works", TAGGED, FILTERED))
        self.assertIn('ORDER BY "works"."id") AS "works" LEFT JOIN LATERAL', whole)

    def test_the_numbers_of_a_page_are_in_its_text(self) -> None:
        """For a parameter PostgreSQL would assume that a tenth of all rows is wanted."""
        sql = page(TAGGED, FILTERED, ("order", "title"), ("limit", "3"), ("offset", "7"))
        self.assertTrue(sql.endswith(' ORDER BY "works"."title" LIMIT 3 OFFSET 7'), sql)

    def test_what_is_embedded_is_joined_to_sorted_rows_that_are_left(self) -> None:
        for select in (AUTHOR, ("select", "title,tags(label)"), ("select", "title,...tags(label)")):
            sql = page(select, ("order", "title"))
            self.assertNotIn("JOIN", sql)
            self.assertIn('ORDER BY "works"."title" LIMIT 5', sql)
            # Without a limit each row is left.
            self.assertNotIn(') AS "works"', text(planned("GET", "works", select, ("order", "title"))))

    def test_rows_that_are_skipped_are_not_joined(self) -> None:
        tags = ("select", "*,tags(label)")
        self.assertEqual(page(tags), "")
        for select in (AUTHOR, tags):
            sql = page(select, ("offset", "7"))
            numbered = "SELECT *, row_number() OVER () AS pgrst_order FROM (SELECT "
            self.assertTrue(sql.startswith(numbered), sql)
            self.assertTrue(sql.endswith(' FROM "api"."works" LIMIT 5 OFFSET 7) AS pgrst_page'), sql)
            whole = text(planned("GET", "works", select, ("offset", "7")))
            self.assertIn(' ORDER BY "works".pgrst_order', whole)
            # It is not among the columns that are shown.
            self.assertEqual(whole.partition(" FROM (")[0].count("pgrst_order"), 0)

    def test_pages_of_rows_with_to_one_relations_fit_together(self) -> None:
        """PostgreSQL may join the relations in any order, and in another one for each page."""
        self.assertTrue(page(AUTHOR).endswith(' FROM "api"."works" LIMIT 5) AS pgrst_page'))
        self.assertEqual(page(("select", "title,authors!works_author_fkey!inner(name)"), ("offset", "7")), "")

    def test_an_embedded_relation_that_is_ordered_by_is_joined_once(self) -> None:
        order = ("order", "authors(name).desc,authors(id)")
        sql = page(("select", "title,authors!works_author_fkey()"), order)
        self.assertEqual((sql.count("JOIN"), sql.count("LEFT JOIN LATERAL (SELECT")), (1, 1))
        self.assertTrue(
            sql.endswith(
                ' ORDER BY "works_authors_1".pgrst_order_0 DESC, "works_authors_1".pgrst_order_1 LIMIT 5'
            ),
            sql,
        )
        inner = page(("select", "title,authors!works_author_fkey!inner()"), order)
        self.assertEqual((inner.count("INNER JOIN"), inner.count("EXISTS")), (1, 0))

    def test_something_else_shown_under_the_name_of_an_ordered_column_is_meant(self) -> None:
        for select in ("authors!works_author_fkey(name:id)", "authors!works_author_fkey(name::text)"):
            self.assertEqual(page(("select", f"title,{select}"), ("order", "authors(name)")), "")

    def test_a_nested_page_is_for_rows_that_are_sorted_and_limited(self) -> None:
        nested = ("select", "name,works!works_author_fkey(title,tags(label))")
        for more, expected in (((), 0), ((("works.order", "title"),), 1)):
            sql = text(planned("GET", "authors", nested, *more, config=LIMITED))
            self.assertEqual(sql.count('LIMIT 5) AS "works_1"'), expected)


class Tests(SynchronousTestCase):
    """Rows that are not cut."""

    def test_aggregates_of_rows_that_have_related_rows_gather_none(self) -> None:
        for select in ("count(),tags!inner()", "id.sum(),tags!inner()", "author_id,count(),tags!inner()"):
            sql = text(planned("GET", "works", ("select", select), FILTERED))
            self.assertEqual((sql.count("EXISTS"), sql.count("JOIN LATERAL")), (1, 0), select)

    def test_a_count_is_always_there(self) -> None:
        """It is one row even if there is nothing to count, so it never restricts the rows."""
        for pairs in (
            [("select", "title,tags!inner(count())")],
            [("select", "title,tags!inner(n:count)")],
            [("select", "title,tags(count())"), ("tags", "not.is.null")],
        ):
            sql = text(planned("GET", "works", *pairs, FILTERED, ("order", "id")))
            self.assertNotIn("EXISTS", sql)

    def test_one_row_needs_no_page(self) -> None:
        for filtered, expected in (("eq.1", 0), ("gt.1", 1), ("not.eq.1", 1), ("eq(any).{1,2}", 1)):
            sql = text(planned("GET", "works", TAGGED, FILTERED, ("id", filtered)))
            self.assertEqual(sql.count("EXISTS"), expected, filtered)

    def test_related_rows_are_looked_for_one_row_of_a_function_after_the_other(self) -> None:
        """PostgreSQL does not know how many rows it has, and might read the whole of the other table for one."""
        called_with = partial(planned, "GET", "rpc/find", ("q", "x"), cache=called(is_sql=False))
        for pairs in (
            (TAGGED,),
            (TAGGED, ("order", "id")),
            (TAGGED, FILTERED, ("order", "id"), ("limit", "5")),
        ):
            sql = text(called_with(*pairs))
            self.assertEqual((sql.count(" OFFSET 0)"), sql.count("LEFT JOIN LATERAL")), (1, 1), pairs)
        self.assertNotIn("OFFSET", text(called_with(("select", "count(),tags!inner()"))))

    def test_the_rows_of_a_function_that_is_inlined_keep_their_order(self) -> None:
        """An EXISTS that is compared makes no join."""
        inlined = called(is_sql=True)
        sql = text(planned("GET", "rpc/find", ("q", "x"), TAGGED, FILTERED, cache=inlined))
        self.assertIn(" WHERE (EXISTS (", sql)
        self.assertIn(")) IS TRUE", sql)
        sql = text(planned("GET", "rpc/find", ("q", "x"), TAGGED, FILTERED, ("order", "id"), cache=inlined))
        self.assertIn(" WHERE EXISTS (", sql)

    def test_a_to_one_relation_that_only_decides_is_tested(self) -> None:
        for pairs, exists in (
            ([("select", "title,authors!works_author_fkey!inner()")], " WHERE EXISTS ("),
            (
                [("select", "title,authors!works_author_fkey()"), ("authors", "is.null")],
                " WHERE NOT EXISTS (",
            ),
        ):
            sql = text(planned("GET", "works", *pairs, ("authors.name", "eq.x")))
            self.assertEqual((sql.count(exists), sql.count("JOIN LATERAL")), (1, 0), pairs)

    def test_one_related_row_is_joined_as_it_is(self) -> None:
        author = ("select", "title,authors!works_author_fkey!inner(name)")
        for more in ((), (("order", "id"),)):
            sql = text(planned("GET", "works", author, ("authors.name", "eq.x"), *more))
            self.assertEqual((sql.count("EXISTS"), sql.count("INNER JOIN LATERAL")), (0, 1))


class Unsorted(SynchronousTestCase):
    """Rows without an order."""

    def test_a_to_one_embedding_of_unsorted_rows_is_joined_to_materialized_rows(self) -> None:
        for path, more in (("works", ()), ("rpc/find", (("q", "x"),))):
            for pairs, expected in (((AUTHOR,), 1), ((AUTHOR, ("order", "id")), 0), ((), 0)):
                sql = planned("GET", path, *pairs, *more)
                self.assertIsNotNone(sql.compiled.probe)
                self.assertEqual(text(sql).count("MATERIALIZED"), expected, (path, pairs))
