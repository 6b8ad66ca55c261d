"""How statements keep PostgreSQL from reading and aggregating more embedded rows than it has to."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.unit.tables.planning import CONFIG, planned, text

TAGGED = ("select", "title,tags!inner(label)")
FILTERED = ("tags.label", "eq.x")


class Decisive(SynchronousTestCase):
    """If filters on embedded rows decide which rows are shown, they are also repeated as an EXISTS condition."""

    def asked(self, *pairs: tuple[str, str], path: str = "works") -> int:
        return text(planned("GET", path, *pairs, ("order", "id"))).count("EXISTS")

    def test_no_exists_without_an_order(self) -> None:
        for pairs in ([TAGGED, FILTERED], [("select", "title,tags()"), ("tags", "is.null")]):
            self.assertNotIn("EXISTS", text(planned("GET", "works", *pairs)))
            self.assertIn("EXISTS", text(planned("GET", "works", *pairs, ("order", "title"))))

    def test_a_filter_on_a_to_many_embedding_becomes_an_exists(self) -> None:
        self.assertEqual(self.asked(TAGGED, FILTERED), 1)
        self.assertEqual(self.asked(("select", "title,...tags!inner(label)"), FILTERED), 1)
        self.assertEqual(self.asked(("select", "title,tags(label)"), FILTERED, ("tags", "not.is.null")), 1)
        # The filter may be one level further down.
        nested = ("select", "name,works!works_author_fkey!inner(tags!inner(label))")
        self.assertEqual(self.asked(nested, ("works.tags.label", "eq.x"), path="authors"), 2)

    def test_is_null_of_an_embedding_becomes_a_not_exists(self) -> None:
        for pairs in ([("select", "title,tags()")], [("select", "title,tags(label)"), FILTERED]):
            found = text(planned("GET", "works", *pairs, ("tags", "is.null"), ("order", "id")))
            self.assertEqual((found.count("NOT EXISTS"), found.count("EXISTS")), (1, 1))

    def test_no_exists_if_the_embedding_does_not_restrict_the_rows(self) -> None:
        left = ("select", "title,tags(label)")
        self.assertEqual(self.asked(left, FILTERED), 0)
        self.assertEqual(self.asked(left, FILTERED, ("or", "(tags.not.is.null,id.gt.7)")), 0)

    def test_no_exists_if_the_embedding_is_a_count(self) -> None:
        """A count is one row even if there is nothing to count, so it never restricts the rows."""
        for count in ("count()", "count", "n:count"):
            self.assertEqual(self.asked(("select", f"title,tags!inner({count})"), FILTERED), 0)
        self.assertEqual(self.asked(("select", "title,tags(count())"), ("tags", "is.null")), 0)
        nested = ("select", "name,works!works_author_fkey!inner(tags!inner(count()))")
        self.assertEqual(self.asked(nested, ("works.tags.label", "eq.x"), path="authors"), 0)

    def test_no_exists_where_it_would_not_save_work(self) -> None:
        self.assertEqual(self.asked(TAGGED), 0)
        for filtered, expected in (("eq.1", 0), ("gt.1", 1), ("not.eq.1", 1), ("eq(any).{1,2}", 1)):
            self.assertEqual(self.asked(TAGGED, FILTERED, ("id", filtered)), expected, filtered)
        # The one related row is joined as it is, and a function's rows are made once.
        author = ("select", "title,authors!works_author_fkey!inner(name)")
        self.assertEqual(self.asked(author, ("authors.name", "eq.x")), 0)
        self.assertEqual(self.asked(TAGGED, FILTERED, ("q", "x"), path="rpc/find"), 0)


class MadeLast(SynchronousTestCase):
    """If rows are sorted and limited, embedded rows are aggregated in the select list, only for the rows that are
    left."""

    ordered = (("order", "title"), ("limit", "10"))

    def joins(self, *pairs: tuple[str, str], path: str = "works") -> int:
        return text(planned("GET", path, *pairs)).count("JOIN LATERAL")

    def test_a_to_many_embedding_of_limited_rows_is_a_subselect(self) -> None:
        many = ("select", "title,tags(label)")
        self.assertEqual(self.joins(many, *self.ordered), 0)
        # Without a limit the row may be read at several places of the statement, and each would aggregate again.
        self.assertEqual([self.joins(many, only) for only in self.ordered], [1, 1])
        capped = planned("GET", "works", many, self.ordered[0], config=evolve(CONFIG, max_rows=5))
        self.assertNotIn("LATERAL", text(capped))

    def test_a_nested_embedding_is_a_subselect_if_its_parent_is_limited(self) -> None:
        nested = ("select", "name,works!works_author_fkey(title,tags(label))")
        self.assertEqual(self.joins(nested, path="authors"), 2)
        cut = (("works.order", "title"), ("works.limit", "3"))
        self.assertEqual(self.joins(nested, *cut, path="authors"), 1)

    def test_an_embedding_that_something_else_depends_on_stays_a_join(self) -> None:
        for select, *more in (
            [("select", "title,tags!inner(label)")],
            [("select", "title,tags(label)"), ("tags", "is.null")],
            [("select", "title,...tags(label)")],
            [("select", "title,count(),tags(label)")],
            [("select", "title,authors!works_author_fkey(name)")],
        ):
            self.assertEqual(self.joins(select, *more, *self.ordered), 1, select)


class Unsorted(SynchronousTestCase):
    """Rows without an order."""

    def test_a_to_one_embedding_of_unsorted_rows_is_joined_to_materialized_rows(self) -> None:
        author = ("select", "title,authors!works_author_fkey(name)")
        for path, more in (("works", ()), ("rpc/find", (("q", "x"),))):
            for pairs, expected in (((author,), 1), ((author, ("order", "id")), 0), ((), 0)):
                found = planned("GET", path, *pairs, *more)
                self.assertIsNotNone(found.compiled.probe)
                self.assertEqual(text(found).count("MATERIALIZED"), expected, (path, pairs))
