"""How ``limit``, ``offset`` and ``Range`` are combined."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.request.query import intersect, parse_query, parse_range
from project_service.tables.request.syntax import Range
from project_service.tables.sql.read import range_sql
from project_service.whole_numbers import BEYOND


class Ranges(SynchronousTestCase):
    def asked(self, text: str) -> Range:
        pairs = [(name, value) for name, _, value in (part.partition("=") for part in text.split("&"))]
        return next((found for path, found in parse_query(pairs).ranges if path == ()), Range())

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
        found = parse_query([("a.limit", "0"), ("a.offset", "5")]).ranges
        self.assertEqual(found, ((("a",), Range(0, 0)),))

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
            found = self.asked(f"offset={digits}&limit={digits}")
            self.assertEqual(range_sql(found).values(), [most, most])
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
