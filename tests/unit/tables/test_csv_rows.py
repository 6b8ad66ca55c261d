"""CSV bodies, and the JSON that they become."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.request.body import parse_csv, parse_payload

CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=5)
TABLES = st.lists(st.tuples(CELLS, CELLS | st.just("NULL")), max_size=6)


def as_csv(lines: list[tuple[str, str]]) -> bytes:
    written = io.StringIO()
    csv.writer(written).writerows(lines)
    return written.getvalue().encode()


class Csv(SynchronousTestCase):
    @given(TABLES, st.sampled_from([1, 300]))
    def test_each_line_becomes_an_object_with_null_for_the_word_null(
        self, lines: list[tuple[str, str]], times: int
    ) -> None:
        found = parse_csv(as_csv([("a", "b"), *lines * times]))
        expected = [{"a": a if a != "NULL" else None, "b": b if b != "NULL" else None} for a, b in lines]
        self.assertEqual(json.loads(found.text), expected * times)
        self.assertEqual((found.keys, found.is_empty), (("a", "b"), not lines))

    def test_many_lines_are_not_objects_at_the_same_time(self) -> None:
        """As objects these would take 47 MB."""
        body = b"a\n" + b"x\n" * 100_000
        tracemalloc.start()
        try:
            found = parse_csv(body)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertEqual(found.text.count("x"), 100_000)
        self.assertLess(most, 6 * len(found.text))

    def test_a_cell_may_be_as_long_as_the_body(self) -> None:
        cell = "x" * 200_000
        self.assertEqual(json.loads(parse_csv(f"a\n{cell}".encode()).text), [{"a": cell}])

    def test_a_csv_header_longer_than_any_column_name_is_refused(self) -> None:
        """It would be repeated for every line: a megabyte of CSV would become a hundred gigabytes of JSON."""
        body = b"n" * 10_000 + b"\n" + b"x\n" * 10_000
        error = self.assertRaises(TableError, parse_csv, body)
        self.assertEqual((error.status, error.code), (400, "PGRST102"))
        longest, lines = b"n" * 63, b",\n" * 10_000
        self.assertEqual(parse_csv(longest + b"," + b"m" * 63 + b"\n" + lines).text.count("{"), 10_000)

    def test_it_may_begin_with_a_byte_order_mark(self) -> None:
        for head in (b"a,b", b'"a",b'):
            found = parse_csv(b"\xef\xbb\xbf" + head + b"\n\xef\xbb\xbfx,y")
            self.assertEqual((found.keys, json.loads(found.text)), (("a", "b"), [{"a": "\ufeffx", "b": "y"}]))

    def test_what_is_malformed_is_refused_wherever_it_stands(self) -> None:
        for body in (b"", b"\n\n", b"a,b\n1", b"a\n1,2", b'a\n"x"y', b'a\n"x', b"a\n\xff"):
            error = self.assertRaises(TableError, parse_csv, body)
            self.assertEqual((error.status, error.code), (400, "PGRST102"), body)
        many = b"a,b\n" + b"1,2\n" * 2_000
        for last in (b"1", b"1,2,3", b'"x"y,', b'"x'):
            error = self.assertRaises(TableError, parse_csv, many + last)
            self.assertEqual((error.status, error.code), (400, "PGRST102"), last)

    def test_a_line_of_names_alone_is_no_rows(self) -> None:
        found = parse_payload("text/csv", b"a,b\n\n", ("a",), False)
        self.assertEqual((found.text, found.keys, found.is_empty), ("[]", ("a",), True))
