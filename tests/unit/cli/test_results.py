"""Results in columns and as CSV."""

from __future__ import annotations

import csv as python_csv
import io

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.cli.results import Result, aligned, csv

TEXT, INT = 25, 23
values = st.one_of(st.none(), st.text(alphabet="a ,\"'\r\n\\.é", max_size=5))


class Columns(TestCase):
    def lines(self, *rows: tuple[str | None, ...], names: tuple[str, ...] = ("a", "b")) -> list[str]:
        return list(aligned([Result("SELECT", names, (TEXT, INT), rows)]))

    def test_numbers_stand_at_the_right(self) -> None:
        self.assertEqual(
            self.lines(("x", "5"), ("xyz", "10000"), (None, None)),
            ["a   | b", "----+------", "x   |     5", "xyz | 10000", "    |", "(3 rows)"],
        )

    def test_a_value_of_several_lines_stays_in_its_column(self) -> None:
        self.assertEqual(
            self.lines(("one\ntwo", "1"), ("three", "2")),
            ["a     | b", "------+--", "one   | 1", "two   |", "three | 2", "(2 rows)"],
        )

    def test_wide_and_combining_characters_are_counted_as_they_are_shown(self) -> None:
        self.assertEqual(
            self.lines(("日本", "1"), ("e\u0301", "2"), ("abcd", "3"))[2:5],
            ["日本 | 1", "e\u0301    | 2", "abcd | 3"],
        )

    def test_control_characters_are_made_visible(self) -> None:
        self.assertEqual(self.lines(("\x1b[31m\t\r\x07", "1"))[2], r"\x1b[31m\t\r\x07 | 1")

    def test_a_result_may_have_no_columns(self) -> None:
        self.assertEqual(list(aligned([Result("SELECT 1", (), (), [()])])), ["", "(1 row)"])


class Csv(TestCase):
    @given(st.lists(st.tuples(values, values), max_size=5))
    def test_others_read_what_is_written(self, rows: list[tuple[str | None, ...]]) -> None:
        written = "\n".join(csv([Result("SELECT", ("a", 'b"'), (TEXT, TEXT), rows)])) + "\n"
        read = list(python_csv.reader(io.StringIO(written, newline="")))
        self.assertEqual(read, [["a", 'b"'], *([value or "" for value in row] for row in rows)])

    def test_null_is_no_empty_string(self) -> None:
        self.assertEqual(
            list(csv([Result("SELECT", ("a", "b"), (TEXT, TEXT), [(None, "")])])), ["a,b", ',""']
        )
