"""Where the rows that are there hang on filters of embedded ones, PostgreSQL is told so before it gathers these."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.unit.tables.planning import planned, text

TAGGED = ("select", "title,tags!inner(label)")
FILTERED = ("tags.label", "eq.x")


class Decisive(SynchronousTestCase):
    def asked(self, *pairs: tuple[str, str], path: str = "works") -> int:
        return text(planned("GET", path, *pairs)).count("EXISTS")

    def test_a_filter_on_many_related_rows(self) -> None:
        self.assertEqual(self.asked(TAGGED, FILTERED), 1)
        self.assertEqual(self.asked(("select", "title,...tags!inner(label)"), FILTERED), 1)
        self.assertEqual(self.asked(("select", "title,tags(label)"), FILTERED, ("tags", "not.is.null")), 1)
        # The filter may be one level further down.
        nested = ("select", "name,works!works_author_fkey!inner(tags!inner(label))")
        self.assertEqual(self.asked(nested, ("works.tags.label", "eq.x"), path="authors"), 2)

    def test_not_where_they_decide_nothing(self) -> None:
        left = ("select", "title,tags(label)")
        self.assertEqual(self.asked(left, FILTERED), 0)
        self.assertEqual(self.asked(left, FILTERED, ("tags", "is.null")), 0)
        self.assertEqual(self.asked(left, FILTERED, ("or", "(tags.not.is.null,id.gt.7)")), 0)

    def test_not_where_it_would_be_work_for_nothing(self) -> None:
        self.assertEqual(self.asked(TAGGED), 0)
        for filtered, expected in (("eq.1", 0), ("gt.1", 1), ("not.eq.1", 1), ("eq(any).{1,2}", 1)):
            self.assertEqual(self.asked(TAGGED, FILTERED, ("id", filtered)), expected, filtered)
        # The one related row is joined as it is, and a function's rows are made once.
        author = ("select", "title,authors!works_author_fkey!inner(name)")
        self.assertEqual(self.asked(author, ("authors.name", "eq.x")), 0)
        self.assertEqual(self.asked(TAGGED, FILTERED, ("q", "x"), path="rpc/find"), 0)
