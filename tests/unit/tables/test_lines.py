"""CSV and NDJSON that arrive in pieces: the same rows as in one piece, their lines, and what is refused."""

from __future__ import annotations

import csv
import io
import json

import orjson
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.request.body import parse_payload
from project_service.tables.request.lines import CsvLines, JsonLines, Lines, Row

LARGE = 1024 * 1024
CELL = st.text("ab\"',\n\r é;", max_size=5) | st.just("NULL")

# A cell without quotes.
PLAIN = st.tuples(st.sampled_from(["NULL", "a", "NULLs", "", "null"]), st.just(False))


def read(lines: Lines, body: bytes, *cuts: int) -> list[Row]:
    """The rows of a body that arrives in pieces which end at ``cuts``."""
    ends = sorted({min(cut, len(body)) for cut in cuts})
    pieces = [body[begin:end] for begin, end in zip([0, *ends], [*ends, len(body)], strict=True)]
    rows = [row for piece in pieces for row in lines.read(piece)]
    return rows + lines.read(b"", last=True)


def written(cells: list[list[str]], end: str = "\r\n") -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(cells)
    return text.getvalue().encode()


class Csv(SynchronousTestCase):
    @given(
        st.lists(st.lists(CELL, min_size=2, max_size=2), max_size=6),
        st.sampled_from(["\n", "\r\n"]),
        st.lists(st.integers(0, 80), max_size=8),
    )
    def test_pieces_are_read_as_the_whole_is(self, cells: list[list[str]], end: str, cuts: list[int]) -> None:
        body = written([["a", "b"], *cells], end)
        lines = CsvLines(None, LARGE)
        rows = read(lines, body, *cuts)
        whole = parse_payload("text/csv", body, None, False)
        self.assertEqual([orjson.loads(row) for _, row in rows], orjson.loads(whole.text))
        self.assertEqual(lines.keys, whole.keys)

    @given(
        st.lists(
            st.lists(PLAIN | st.tuples(CELL, st.just(True)), min_size=2, max_size=2), min_size=1, max_size=6
        ),
        st.sampled_from(["\n", "\r\n"]),
        st.lists(st.integers(0, 80), max_size=8),
    )
    def test_null_is_text_in_quotes(
        self, cells: list[list[tuple[str, bool]]], end: str, cuts: list[int]
    ) -> None:
        given = [
            [f'"{text.replace(chr(34), chr(34) * 2)}"' if quoted else text for text, quoted in row]
            for row in cells
        ]
        body = "".join(",".join(row) + end for row in [['"NULL"', "b"], *given]).encode()
        expected = [
            {
                name: text if quoted or text != "NULL" else None
                for name, (text, quoted) in zip(("NULL", "b"), row, strict=True)
            }
            for row in cells
        ]
        lines = CsvLines(None, LARGE)
        self.assertEqual([orjson.loads(row) for _, row in read(lines, body, *cuts)], expected)
        whole = parse_payload("text/csv", body, None, False)
        self.assertEqual((orjson.loads(whole.text), whole.keys), (expected, lines.keys))

    @given(st.text('ab",\n\r', max_size=30), st.lists(st.integers(0, 40), max_size=8))
    def test_any_text_is_read_as_python_reads_it(self, text: str, cuts: list[int]) -> None:
        body = b"a\n" + text.encode()
        try:
            expected = [row for row in csv.reader(io.StringIO("a\n" + text, newline=""), strict=True) if row][
                1:
            ]
        except csv.Error:
            self.assertRaises(TableError, read, CsvLines(None, LARGE), body, *cuts)
            return
        if any(len(row) != 1 for row in expected):
            self.assertRaises(TableError, read, CsvLines(None, LARGE), body, *cuts)
            return
        rows = read(CsvLines(None, LARGE), body, *cuts)
        self.assertEqual([[orjson.loads(row)["a"]] for _, row in rows], expected)

    def test_a_row_has_the_number_of_the_line_that_it_begins_on(self) -> None:
        body = b'\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,"x\ny\r\nz"\r\n5,6'
        for cut in range(len(body) + 1):
            rows = [(line, orjson.loads(row)) for line, row in read(CsvLines(None, LARGE), body, cut)]
            expected = [{"a": "1", "b": "2"}, {"a": "3", "b": "x\ny\r\nz"}, {"a": "5", "b": "6"}]
            self.assertEqual(rows, list(zip((2, 4, 7), expected, strict=True)))

    def test_columns_decide_which_cells_are_used(self) -> None:
        lines = CsvLines(("b", "a"), LARGE)
        self.assertEqual(read(lines, b"b,a,c\n1,2,3\n"), [(2, b'{"b":"1","a":"2","c":"3"}')])
        self.assertEqual(lines.keys, ("a", "b"))

    def test_a_fault_names_its_line_wherever_the_pieces_end(self) -> None:
        for body, line, message in (
            (b"a,b\n1,2\n3\n4,5\n", 3, "All lines must have same number of fields"),
            (b'a,b\n1,2\n3,"4"5\n6,7\n', 3, "Invalid CSV: "),
            (b'a,b\n1,2\n\n3,"4\n5,6\n', 4, "Invalid CSV: "),
            (b'a,b\n1,"\n2"\n3,\xff\n', 4, "Invalid CSV: invalid start byte"),
        ):
            for cut in range(len(body) + 1):
                error = self.assertRaises(TableError, read, CsvLines(None, LARGE), body, cut)
                self.assertEqual((error.code, error.json_details), ("PGRST102", f"Line {line} of the body"))
                self.assertIn(message, error.message)

    def test_a_row_is_not_read_beyond_its_limit(self) -> None:
        long = b"x" * 600
        for body, line in (
            (b"a\n1\n" + long + long, 3),
            (b'a\n1\n"' + long + b"\n" + long + b"\n" + long, 3),
        ):
            lines = CsvLines(None, 1000)
            pieces = [body[at : at + 100] for at in range(0, len(body), 100)]
            with self.assertRaises(TableError) as refused:
                for piece in pieces:
                    lines.read(piece)
            self.assertEqual(refused.exception.json_details, f"Line {line} of the body")
            self.assertEqual(refused.exception.message, "A row is larger than 1000 bytes")

    def test_long_names_do_not_make_a_large_body_of_a_small_one(self) -> None:
        body = b"x" * 10_000 + b"\n" + b"1\n" * 10_000
        self.assertRaises(TableError, read, CsvLines(None, LARGE), body)

    def test_a_body_without_names_is_refused(self) -> None:
        for body in (b"", b"\n\r\n"):
            error = self.assertRaises(TableError, read, CsvLines(None, LARGE), body, 1)
            self.assertEqual(error.message, "Empty or invalid CSV")


class Ndjson(SynchronousTestCase):
    @given(
        st.lists(
            st.fixed_dictionaries({"a": st.none() | st.text(max_size=3), "b": st.integers()}), max_size=5
        ),
        st.lists(st.integers(0, 80), max_size=8),
    )
    def test_pieces_are_read_as_the_whole_is(self, values: list[dict[str, object]], cuts: list[int]) -> None:
        body = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()
        lines = JsonLines(None, LARGE)
        rows = read(lines, body, *cuts)
        self.assertEqual([line for line, _ in rows], list(range(1, len(values) + 1)))
        self.assertEqual([json.loads(row) for _, row in rows], values)
        whole = parse_payload("application/x-ndjson", body, None, False)
        self.assertEqual(json.loads(whole.text), values)
        self.assertEqual((whole.keys, whole.is_array), (lines.keys or (), True))
        self.assertEqual(whole.is_empty, not values)

    def test_empty_lines_count_and_the_last_one_needs_no_end(self) -> None:
        body = b'\xef\xbb\xbf{"a":1}\r\n\n  \n{"a":2}'
        self.assertEqual(read(JsonLines(None, LARGE), body, 3, 12), [(1, b'{"a":1}'), (4, b'{"a":2}')])

    def test_a_fault_names_its_line(self) -> None:
        for third, message in (
            (b'{"a": }', "Each line must be a JSON object"),
            (b'{"a": 1}, {"a": 2}', "Each line must be a JSON object"),
            (b"[1]", "Each line must be a JSON object"),
            (b'{"a": "\xff"}', "Each line must be a JSON object"),
            (b'{"b": 1}', "All object keys must match"),
            (b'{"a": 1, "b": 1}', "All object keys must match"),
        ):
            body = b'{"a": 1}\n\n' + third + b'\n{"a": 1}\n'
            for cut in (0, 10, 14, len(body)):
                error = self.assertRaises(TableError, read, JsonLines(None, LARGE), body, cut)
                self.assertEqual((error.message, error.json_details), (message, "Line 3 of the body"))

    def test_with_columns_the_objects_may_differ(self) -> None:
        lines = JsonLines(("b", "a"), LARGE)
        self.assertEqual(len(read(lines, b'{"a":1}\n{"b":1}\n{"c":1}\n')), 3)
        self.assertEqual(lines.keys, ("a", "b"))

    def test_a_row_is_not_read_beyond_its_limit(self) -> None:
        for body in (b'{"a":1}\n{"a":"' + b"x" * 1100 + b'"}\n{"a":1}\n', b'{"a":1}\n{"a":"' + b"x" * 1100):
            error = self.assertRaises(TableError, read, JsonLines(None, 1000), body)
            self.assertEqual(error.json_details, "Line 2 of the body")
