"""Two forms of text: base64url and whole numbers."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from jwt.utils import base64url_encode
from twisted.trial.unittest import SynchronousTestCase, TestCase

from project_service import base64url
from project_service.whole_numbers import BEYOND, as_float, from_digits, from_json


class Base64url(SynchronousTestCase):
    @given(st.binary(max_size=100))
    def test_encoded_bytes_are_decoded(self, data: bytes) -> None:
        text = base64url.encode(data)
        self.assertEqual(text, base64url_encode(data).decode())
        self.assertEqual(base64url.decode(text), data)

    @given(st.text(max_size=20))
    def test_any_text_is_decoded_or_refused(self, text: str) -> None:
        try:
            base64url.decode(text)
        except ValueError:
            return
        self.assertRegex(text, r"\A[A-Za-z0-9_=-]*\Z")

    def test_other_alphabets_and_lengths_are_refused(self) -> None:
        for text in ("a", "abc+", "abc/", "ab cd", "ä", "ab\ncd", "\udcff"):
            self.assertRaises(ValueError, base64url.decode, text)


class WholeNumbers(TestCase):
    @given(st.integers(-(10**1000) + 1, 10**1000 - 1), st.integers(0, 9000))
    def test_digits_are_read_exactly_and_leading_zeros_do_not_count(self, number: int, zeros: int) -> None:
        sign = "-" if number < 0 else ""
        self.assertEqual(from_digits(f"{sign}{'0' * zeros}{abs(number)}"), number)

    def test_a_number_of_more_than_a_thousand_digits_is_beyond_every_limit(self) -> None:
        for text in ("1" + "0" * 1000, "9" * 1001, "7" * 100_000):
            self.assertEqual((from_digits(text), from_digits(f"-{text}")), (BEYOND, -BEYOND))

    @given(st.text())
    def test_other_texts_are_no_numbers(self, text: str) -> None:
        number = from_digits(text)
        if number is not None:
            self.assertEqual(str(number), text.lstrip("0") or "0")

    def test_only_ascii_digits_count(self) -> None:
        for text in ("", "-", "+1", "1.0", "1e1", " 1", "1\n", "1_0", "\u0663", "\u00b2", "0x1", "--1"):
            self.assertIsNone(from_digits(text), text)

    @given(
        st.integers(-(2**52), 2**52),
        st.text("0123456789", max_size=40),
        st.integers(-400, 400),
        st.booleans(),
    )
    def test_a_float_is_whole_if_its_text_is(
        self, whole: int, fraction: str, exponent: int, plus: bool
    ) -> None:
        text = f"{whole}.{fraction}0e{'+' if plus and exponent >= 0 else ''}{exponent}"
        exact = Fraction(f"{whole}.{fraction}0") * Fraction(10) ** exponent
        number = as_float(text)
        if abs(exact) < 2**52:
            self.assertEqual(number.is_integer(), exact.denominator == 1)
        if number.is_integer():
            self.assertEqual(number, float(text))

    def test_json_writes_whole_numbers_with_a_point_or_an_exponent_too(self) -> None:
        for value, number in ((60, 60), (60.0, 60), (6e1, 60), (-0.0, 0), (1e22, 10**22), (BEYOND, BEYOND)):
            self.assertEqual(from_json(value), number)
        for nothing in (0.5, math.inf, math.nan, True, "60", None, [60]):
            self.assertIsNone(from_json(nothing), nothing)
