"""Keys, prefixes, names of buckets and page tokens, with random input."""

from __future__ import annotations

import base64
import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.errors import ApiError
from project_service.storage import keys, requests
from tests.strategies import good_keys, short, text


class Keys(SynchronousTestCase):
    @given(text)
    def test_any_key_is_kept_or_refused(self, key: str) -> None:
        try:
            parsed = keys.parse_key(key)
        except ApiError as error:
            self.assertEqual((error.status, error.code), (422, "invalid_key"))
            return
        self.assertEqual(parsed, key)
        self.assertTrue(1 <= len(key.encode()) <= 900)
        self.assertFalse({"", ".", ".."} & set(key.split("/")))
        self.assertFalse(any(ord(char) < 32 or 127 <= ord(char) < 160 for char in key))

    def test_a_refusal_says_why(self) -> None:
        for key, why in (
            ("", "it is empty"), ("/a", "it begins with /"), ("/", "it begins with /"),
            ("a//b", "it has an empty segment"), ("a/", "it has an empty segment"),
            ("a/../b", 'a segment of it is "." or ".."'), ("a\n", "it has a control character"),
            ("é" * 451, "it is longer than 900 bytes"), ("\udc80", "it is not UTF-8"),
        ):  # fmt: skip
            with self.assertRaises(ApiError) as caught:
                keys.parse_key(key, "to")
            self.assertEqual(caught.exception.message, f"The object key is not allowed: {why}.")
            self.assertEqual(caught.exception.details, {"to": why})
        with self.assertRaises(ApiError) as caught:
            keys.parse_prefix("a\n")
        self.assertEqual(caught.exception.message, "The prefix is not allowed: it has a control character.")

    @given(good_keys.filter(short))
    @example("a\\b")
    @example("...")
    @example("x" * 900)
    @example("é" * 450)
    @example("\u202e\u200d😀")
    def test_keys_may_be_of_any_script(self, key: str) -> None:
        self.assertEqual(keys.parse_key(key), key)

    def test_control_characters_are_refused_as_unicode_defines_them(self) -> None:
        for char in map(chr, (*range(0x3100), *range(0xE000, 0x110000, 97))):
            if unicodedata.category(char) == "Cc":
                self.assertRaises(ApiError, keys.parse_prefix, f"a{char}")
            else:
                self.assertEqual(keys.parse_prefix(char), char)

    def test_invalid_unicode_and_long_keys_are_refused(self) -> None:
        for key in ("\udc80", "a\ud800", "é" * 451, "x" * 901, "a/\x85", "\x7f"):
            self.assertRaises(ApiError, keys.parse_key, key)
            self.assertRaises(ApiError, keys.parse_prefix, key)

    @given(good_keys, good_keys)
    @example("a", "a\U0010ffff")
    @example("\U0010ffff", "\U0010ffffx")
    @example("\ud7ff", "\ue000")
    def test_the_end_of_a_prefix_separates_its_keys_from_all_others(self, prefix: str, key: str) -> None:
        end = keys.end_of_prefix(prefix)
        for one in (key, prefix + key, prefix):
            inside = one.encode() >= prefix.encode() and (end is None or one.encode() < end.encode())
            self.assertEqual(inside, one.startswith(prefix))

    def test_the_end_of_a_prefix_is_the_least_text_after_its_keys(self) -> None:
        for prefix, end in (
            ("", None), ("a/", "a0"), ("az", "a{"), ("\ud7ff", "\ue000"), ("\U0010fffe", "\U0010ffff"),
            ("a\U0010ffff", "b"), ("a\U0010ffff\U0010ffff", "b"), ("\U0010ffff", None),
        ):  # fmt: skip
            self.assertEqual(keys.end_of_prefix(prefix), end, prefix)

    @given(good_keys, good_keys)
    def test_a_position_lies_after_its_entry_and_before_the_next(self, one: str, other: str) -> None:
        low, high = sorted((one, other), key=str.encode)
        after = keys.position_after(low).encode()
        self.assertLess(low.encode(), after)
        if low != high:
            self.assertLessEqual(after, high.encode())

    @given(good_keys, good_keys)
    def test_the_position_after_a_folder_skips_all_of_it(self, folder: str, key: str) -> None:
        after = keys.position_after(folder + "/").encode()
        self.assertLess(f"{folder}/{key}".encode(), after)
        if not key.startswith(folder + "/") and key.encode() > f"{folder}/".encode():
            self.assertGreaterEqual(key.encode(), after)

    def test_which_bucket_names_are_valid(self) -> None:
        for name in ("a", "0", "a-b", "a.b", "a_b", "a" * 63):
            self.assertTrue(keys.is_bucket_name(name), name)
        for name in ("", "A", "-a", "a-", ".a", "a.", "a/b", "a b", "a\n", "ä", "a" * 64):
            self.assertFalse(keys.is_bucket_name(name), name)


class PageTokens(SynchronousTestCase):
    @given(good_keys.filter(short), st.integers(0, 30), st.booleans())
    def test_a_page_token_is_decoded_for_the_same_listing_only(
        self, last: str, length: int, recursive: bool
    ) -> None:
        prefix = last[:length]
        token = requests.encode_page_token(last, prefix, recursive)
        self.assertRegex(token, r"\A[A-Za-z0-9_-]+\Z")
        self.assertEqual(requests.decode_page_token(token, prefix, recursive), last)
        for other in ((prefix + "x", recursive), (prefix, not recursive)):
            self.assertRaises(ApiError, requests.decode_page_token, token, *other)

    @given(
        st.one_of(
            st.text(max_size=60), st.binary(max_size=60).map(lambda b: base64.urlsafe_b64encode(b).decode())
        )
    )
    @example(base64.urlsafe_b64encode(b'[1,"a","",false,1]').decode())
    @example(base64.urlsafe_b64encode(b'[1,"a\\u0001","",false]').decode())
    @example(base64.urlsafe_b64encode(b"1").decode())
    @example(base64.urlsafe_b64encode(b"[]").decode())
    @example(base64.urlsafe_b64encode(b'[2,"a","",false]').decode())
    @example(base64.urlsafe_b64encode(b'[1,5,"",false]').decode())
    def test_any_other_text_is_refused(self, token: str) -> None:
        with self.assertRaises(ApiError) as caught:
            requests.decode_page_token(token, "", False)
        self.assertEqual(
            (caught.exception.status, caught.exception.details),
            (422, {"page_token": "is not a token of this listing"}),
        )

    def test_a_token_with_an_impossible_key_is_refused(self) -> None:
        for last in ("a\x00", "a\x01", "a\x7f", "a\x85", "k" * 901):
            with self.assertRaises(ApiError) as caught:
                requests.decode_page_token(requests.encode_page_token(last, "", False), "", False)
            self.assertEqual(caught.exception.code, "validation_failed", last)
