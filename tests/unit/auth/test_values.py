"""What authentication reads from requests: one-time tokens, metadata, cursors, page sizes, key sets and user ids."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from base64 import b64encode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.auth import admin
from project_service.auth.tokens import KeySet, KeySetError, OpaqueToken
from project_service.auth.values import Account, User, check_metadata, load_metadata
from project_service.errors import ApiError

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from(["kty", "alg", "k", "kid", "x"]), st.text(max_size=5)),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


class Opaque(TestCase):
    """Opaque tokens and user metadata."""

    def test_a_fresh_token_has_256_bits_and_only_its_digest_is_kept(self) -> None:
        token = OpaqueToken.new(lambda count: bytes(range(count)))
        assert token.text == "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
        assert token.digest == hashlib.sha256(token.text.encode()).digest()
        assert OpaqueToken.parse(token.text) == token
        assert token.text not in repr(token)

    def test_a_successor_depends_on_the_token_and_the_salt(self) -> None:
        one = OpaqueToken.new(lambda count: b"a" * count)
        other = OpaqueToken.new(lambda count: b"b" * count)
        made = {token.successor(salt) for token in (one, other) for salt in (b"1" * 32, b"2" * 32)}
        assert len(made) == 4
        assert one.successor(b"1" * 32) == one.successor(b"1" * 32)
        assert all(OpaqueToken.parse(token.text) == token for token in made)

    def test_the_latest_successor_is_derived_from_any_earlier_token(self) -> None:
        first = OpaqueToken.new(lambda count: b"a" * count)
        second = first.successor(b"1" * 32)
        third = second.successor(b"2" * 32)
        salts = {second.digest: b"2" * 32, first.digest: b"1" * 32}
        assert [one.latest(salts) for one in (first, second, third)] == [third] * 3

    def test_a_text_that_cannot_be_a_token_is_none(self) -> None:
        assert OpaqueToken.parse("x" * 43) is not None
        for text in ("", "x" * 42, "x" * 44, "x" * 10_000, "\u00e9" * 43, "\ud800" * 43):
            assert OpaqueToken.parse(text) is None, text

    def test_null_metadata_is_empty(self) -> None:
        assert check_metadata("metadata", None) == {}

    def test_metadata_is_limited_to_16_kib_of_utf_8(self) -> None:
        for most in ({"a": "x" * 16376}, {"a": "\u00e9" * 8188}):
            assert check_metadata("metadata", most) == most
            with self.assertRaises(ApiError) as refused:
                check_metadata("metadata", {"a": most["a"] + "x"})
            assert refused.exception.details == {"metadata": "must be at most 16384 bytes as JSON"}

    def test_metadata_may_contain_escapes_of_nul_as_text(self) -> None:
        for fine in ({"a": r"\u0000"}, {r"\\u0000": r"[^\x00-\u0000]"}, {"a": "u0000"}):
            assert check_metadata("metadata", fine) == fine

    def test_metadata_numbers_that_the_database_would_lengthen_are_refused(self) -> None:
        for number in (1e20, -1e20, 1e308, 2.0**63, 2**64, -(2**63) - 1, math.inf, math.nan):
            for value in ({"a": number}, {"a": [{"b": [number]}]}):
                with self.assertRaises(ApiError) as caught:
                    check_metadata("metadata", value)
                assert (caught.exception.status, caught.exception.code) == (422, "validation_failed"), number
        fine = {"a": [2**63 - 1, -(2**63), 2**64 - 1, 2.0**53, 9.2e18, 0.1, 1e-300, 5e-324, True]}
        assert check_metadata("metadata", fine) == fine

    def test_metadata_written_by_sql_can_always_be_sent(self) -> None:
        for digits in ("1" + "0" * 20, "-" + "9" * 19, "9" * 20, "1" + "0" * 308, "7" * 5000):
            value_ = load_metadata(f'{{"a": [{digits}]}}')
            assert isinstance(value_["a"][0], float)
            orjson.dumps(value_)
        assert load_metadata('{"a": 18446744073709551615, "b": 1.5}') == {"a": 2**64 - 1, "b": 1.5}


class Parsers(TestCase):
    """Any input is parsed or refused with its proper code."""

    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.text(max_size=80), st.binary(max_size=60).map(lambda raw: b64encode(raw).decode())))
    def test_a_cursor(self, text: str) -> None:
        try:
            when, key = admin.read_cursor(text)
        except ApiError as fault:
            assert fault.code == "validation_failed"
            return
        assert when.tzinfo is not None
        assert len(key) == 36

    def test_a_cursor_with_another_offset_is_converted_to_utc_or_refused(self) -> None:
        def cursor(moment: str) -> str:
            return urlsafe_b64encode(f"{moment} {uuid.UUID(int=1)}".encode()).decode().rstrip("=")

        when, _ = admin.read_cursor(cursor("2026-11-21T03:04:05+23:59"))
        assert when.tzinfo is UTC and when == datetime(2026, 11, 20, 3, 5, 5, tzinfo=UTC)
        beyond = ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")
        for moment in (*beyond, "2026-11-21T03:04:05"):
            with self.assertRaises(ApiError) as caught:
                admin.read_cursor(cursor(moment))
            assert caught.exception.code == "validation_failed", moment

    @given(st.datetimes(timezones=st.just(UTC)), st.uuids())
    def test_a_cursor_is_read_back(self, when: datetime, key: uuid.UUID) -> None:
        account = Account(User(str(key), "ada@example.test", when))
        assert admin.read_cursor(admin.cursor_after(account)) == (when, str(key))

    @given(st.text(max_size=10))
    def test_a_page_size(self, text: str) -> None:
        try:
            assert 1 <= admin.page_size(text) <= admin.MAX_PAGE_SIZE
        except ApiError as fault:
            assert fault.code == "validation_failed"

    @settings(max_examples=200, deadline=None)
    @given(JSON)
    def test_a_key_set(self, value: Any) -> None:
        for keys in (value, {"keys": value}, {"keys": [value]}, {"keys": [{"kty": "EC", "crv": value}]}):
            with self.assertRaises(KeySetError):
                KeySet.parse(json.dumps(keys))

    @given(JSON)
    def test_metadata(self, value: Any) -> None:
        try:
            assert check_metadata("metadata", value) == (value if value is not None else {})
        except ApiError as fault:
            assert fault.code == "validation_failed"

    @given(st.text(max_size=40))
    def test_a_users_id(self, text: str) -> None:
        try:
            assert len(admin.parse_user_id(text)) == 36
        except ApiError as fault:
            assert fault.code == "user_not_found"
