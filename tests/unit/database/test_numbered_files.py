"""The number of the next file goes on as those before it."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.database.numbered_files import next_number

NOW = datetime(2026, 11, 28, 20, 30, 5, tzinfo=UTC)


class Numbers(TestCase):
    def test_the_first_has_four_digits(self) -> None:
        self.assertEqual(next_number([], 0, NOW), "0001")
        self.assertEqual(next_number(["README.md", "notes.sql", ".0009_x.sql"], 0, NOW), "0001")

    def test_it_has_as_many_digits_as_the_last(self) -> None:
        self.assertEqual(next_number(["01_a.sql", "02_b.sql"], 0, NOW), "03")
        self.assertEqual(next_number(["0009_a.sql"], 0, NOW), "0010")
        self.assertEqual(next_number(["9_a.sql"], 0, NOW), "10")
        self.assertEqual(next_number(["10_a.sql", "00009_b.sql"], 0, NOW), "11")

    def test_it_comes_after_what_was_applied(self) -> None:
        self.assertEqual(next_number(["0002_a.sql"], 7, NOW), "0008")
        self.assertEqual(next_number([], 7, NOW), "0008")

    def test_moments_go_on_as_moments(self) -> None:
        self.assertEqual(next_number(["20260801120000_a.sql"], 0, NOW), "20261128203005")
        self.assertEqual(next_number(["20270801120000_a.sql"], 0, NOW), "20270801120001")

    @given(st.lists(st.integers(0, 10**15)), st.integers(0, 10**15))
    def test_it_is_greater_than_all(self, numbers: list[int], applied: int) -> None:
        names = [f"{number}_a.sql" for number in numbers]
        self.assertGreater(int(next_number(names, applied, NOW)), max([applied, *numbers]))
