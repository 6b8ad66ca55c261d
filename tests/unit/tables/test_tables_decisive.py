"""How statements keep PostgreSQL from gathering more embedded rows than it has to."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.unit.tables.planning import CONFIG, planned, text

TAGGED = ("select", "title,tags!inner(label)")
FILTERED = ("tags.label", "eq.x")


class Decisive(SynchronousTestCase):
    """If filters on embedded rows decide which rows are shown, the statement also has them as a condition of its
    own."""

    def asked(self, *pairs: tuple[str, str], path: str = "works") -> int:
        return text(planned("GET", path, *pairs, ("order", "id"))).count("EXISTS")

    def test_rows_without_an_order_come_as_the_table_is_read(self) -> None:
        for pairs in ([TAGGED, FILTERED], [("select", "title,tags()"), ("tags", "is.null")]):
            self.assertNotIn("EXISTS", text(planned("GET", "works", *pairs)))
            self.assertIn("EXISTS", text(planned("GET", "works", *pairs, ("order", "title"))))

    def test_a_filter_on_many_related_rows(self) -> None:
        self.assertEqual(self.asked(TAGGED, FILTERED), 1)
        self.assertEqual(self.asked(("select", "title,...tags!inner(label)"), FILTERED), 1)
        self.assertEqual(self.asked(("select", "title,tags(label)"), FILTERED, ("tags", "not.is.null")), 1)
        # The filter may be one level further down.
        nested = ("select", "name,works!works_author_fkey!inner(tags!inner(label))")
        self.assertEqual(self.asked(nested, ("works.tags.label", "eq.x"), path="authors"), 2)

    def test_that_there_are_none(self) -> None:
        for pairs in ([("select", "title,tags()")], [("select", "title,tags(label)"), FILTERED]):
            found = text(planned("GET", "works", *pairs, ("tags", "is.null"), ("order", "id")))
            self.assertEqual((found.count("NOT EXISTS"), found.count("EXISTS")), (1, 1))

    def test_not_where_they_decide_nothing(self) -> None:
        left = ("select", "title,tags(label)")
        self.assertEqual(self.asked(left, FILTERED), 0)
        self.assertEqual(self.asked(left, FILTERED, ("or", "(tags.not.is.null,id.gt.7)")), 0)

    def test_not_where_rows_are_counted(self) -> None:
        """A count is a row also of none."""
        counted = ("select", "title,tags!inner(count())")
        self.assertEqual(self.asked(counted, FILTERED), 0)
        self.assertEqual(self.asked(("select", "title,tags(count())"), ("tags", "is.null")), 0)
        nested = ("select", "name,works!works_author_fkey!inner(tags!inner(count()))")
        self.assertEqual(self.asked(nested, ("works.tags.label", "eq.x"), path="authors"), 0)

    def test_not_where_it_would_be_work_for_nothing(self) -> None:
        self.assertEqual(self.asked(TAGGED), 0)
        for filtered, expected in (("eq.1", 0), ("gt.1", 1), ("not.eq.1", 1), ("eq(any).{1,2}", 1)):
            self.assertEqual(self.asked(TAGGED, FILTERED, ("id", filtered)), expected, filtered)
        # The one related row is joined as it is, and a function's rows are made once.
        author = ("select", "title,authors!works_author_fkey!inner(name)")
        self.assertEqual(self.asked(author, ("authors.name", "eq.x")), 0)
        self.assertEqual(self.asked(TAGGED, FILTERED, ("q", "x"), path="rpc/find"), 0)


class MadeLast(SynchronousTestCase):
    """If rows are sorted and limited, related rows are gathered in the select list, only for the rows that are
    left."""

    ordered = (("order", "title"), ("limit", "10"))

    def joins(self, *pairs: tuple[str, str], path: str = "works") -> int:
        return text(planned("GET", path, *pairs)).count("JOIN LATERAL")

    def test_many_related_rows_of_rows_that_are_sorted_and_cut(self) -> None:
        many = ("select", "title,tags(label)")
        self.assertEqual(self.joins(many, *self.ordered), 0)
        # Not cut, the row could be read at several places, and each would gather them.
        self.assertEqual([self.joins(many, only) for only in self.ordered], [1, 1])
        capped = planned("GET", "works", many, self.ordered[0], config=evolve(CONFIG, max_rows=5))
        self.assertNotIn("LATERAL", text(capped))

    def test_embedded_rows_may_be_sorted_and_cut_themselves(self) -> None:
        nested = ("select", "name,works!works_author_fkey(title,tags(label))")
        self.assertEqual(self.joins(nested, path="authors"), 2)
        cut = (("works.order", "title"), ("works.limit", "3"))
        self.assertEqual(self.joins(nested, *cut, path="authors"), 1)

    def test_what_more_hangs_on_stays_joined(self) -> None:
        for select, *more in (
            [("select", "title,tags!inner(label)")],
            [("select", "title,tags(label)"), ("tags", "is.null")],
            [("select", "title,...tags(label)")],
            [("select", "title,count(),tags(label)")],
            [("select", "title,authors!works_author_fkey(name)")],
        ):
            self.assertEqual(self.joins(select, *more, *self.ordered), 1, select)


class Unsorted(SynchronousTestCase):
    def test_related_rows_without_an_order_are_joined_as_without_a_limit(self) -> None:
        author = ("select", "title,authors!works_author_fkey(name)")
        for path, more in (("works", ()), ("rpc/find", (("q", "x"),))):
            for pairs, expected in (((author,), 1), ((author, ("order", "id")), 0), ((), 0)):
                found = planned("GET", path, *pairs, *more)
                self.assertIsNotNone(found.compiled.probe)
                self.assertEqual(text(found).count("MATERIALIZED"), expected, (path, pairs))
