"""base64url, with random input."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from jwt.utils import base64url_encode
from twisted.trial.unittest import SynchronousTestCase

from project_service import base64url


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
