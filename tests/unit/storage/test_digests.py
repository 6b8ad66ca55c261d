"""Digests in headers, for any text."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256, sha512

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.errors import ApiError
from project_service.http.head import HeaderView
from project_service.storage.parsing.digests import BodyDigests, repr_digest, wants_sha256


def headers(name: str, value: bytes) -> HeaderView:
    return HeaderView(((name.encode(), value),))


def outcome(value: bytes, body: bytes) -> str:
    try:
        digests = BodyDigests.of(headers("content-digest", value))
        for byte in body:
            digests.update(bytes((byte,)))
        digests.check()
    except ApiError as refusal:
        return refusal.code
    return ""


class Digests(TestCase):
    @given(st.binary(max_size=20), st.binary(max_size=20))
    def test_a_body_has_its_own_digest_and_no_other(self, body: bytes, other: bytes) -> None:
        for name, algorithm in ((b"sha-256", sha256), (b"sha-512", sha512)):
            value = name + b"=:" + b64encode(algorithm(body).digest()) + b":"
            self.assertEqual(outcome(value, body), "")
            self.assertEqual(outcome(value, other), "" if body == other else "bad_digest")

    @given(st.binary(max_size=60))
    @example(b"sha-256=:" + b"=" * 44 + b":")
    @example(b"sha-256=:\xe9:")
    @example(b"md5=:eA==:")
    def test_any_text_is_ignored_or_refused(self, value: bytes) -> None:
        self.assertIn(outcome(value, b"x"), ("", "bad_digest"))
        wants_sha256(headers("want-repr-digest", value))

    @given(st.binary(max_size=20))
    def test_what_is_sent_can_be_checked(self, body: bytes) -> None:
        name, value = repr_digest(sha256(body).hexdigest())
        self.assertEqual(name, "Repr-Digest")
        self.assertEqual(outcome(value.encode(), body), "")
