"""Project keys: their form, their checksum, and the key ring that knows the active ones."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service import keys
from project_service.errors import ApiError
from project_service.http.caller import Access, Callers, digest, identify
from project_service.http.head import HeaderView
from tests.fakes.common import FakeRevocations, FakeTokens

KINDS: Any = st.sampled_from(["anon", "service"])


def known(size: int) -> bytes:
    return bytes(range(size))


class Form(TestCase):
    @given(KINDS, st.binary(min_size=32, max_size=32))
    def test_a_key_has_its_prefix_length_and_checksum(self, kind: Any, random: bytes) -> None:
        key = keys.make(kind, lambda size: random[:size])
        self.assertRegex(key, rf"^psk_{kind}_[A-Za-z0-9_-]{{49}}$")
        self.assertTrue(keys.well_formed(key))
        # A key that is too short is refused though its checksum fits.
        self.assertFalse(keys.well_formed(keys.make(kind, lambda size: random[:-1])))

    @given(KINDS, st.integers(0, 70), st.sampled_from("AZaz09_-"))
    def test_a_mistyped_key_is_recognised_by_its_checksum(
        self, kind: Any, position: int, letter: str
    ) -> None:
        key = keys.make(kind, known)
        position %= len(key)
        if key[position] != letter:
            self.assertFalse(keys.well_formed(key[:position] + letter + key[position + 1 :]))
        self.assertFalse(keys.well_formed(key[:-1]))

    def test_two_keys_differ(self) -> None:
        import secrets

        self.assertNotEqual(keys.make("anon", secrets.token_bytes), keys.make("anon", secrets.token_bytes))


class FakeRows:
    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows = rows

    async def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        return self.rows


class Stored:
    """Keeps what is written, unless writing fails."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.fails = False

    async def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        if self.fails:
            raise RuntimeError("away")
        self.written.extend(params)
        return []


class Ring(TestCase):
    async def test_the_ring_knows_the_active_keys_after_each_reload(self) -> None:
        anon, service = keys.make("anon", known), keys.make("service", known)
        rows = FakeRows([(digest(anon), "anon"), (digest(service), "service")])
        ring = keys.KeyRing(rows)
        self.assertIsNone(ring.kind_of(anon))
        await ring.reload()
        self.assertEqual((ring.kind_of(anon), ring.kind_of(service)), ("anon", "service"))
        rows.rows = [(digest(service), "service")]
        await ring.reload()
        self.assertEqual((ring.kind_of(anon), ring.kind_of(service)), (None, "service"))

    async def test_a_use_is_stored_once_and_again_after_a_failure(self) -> None:
        key = keys.make("anon", known)
        rows = Stored()
        ring = keys.KeyRing(rows)
        await ring.store_uses(rows)
        self.assertEqual(rows.written, [])
        for fails in (True, False):
            ring.use_of(key).used = True
            rows.fails = fails
            try:
                await ring.store_uses(rows)
            except RuntimeError:
                self.assertTrue(ring.use_of(key).used)
        await ring.store_uses(rows)
        self.assertEqual(rows.written, [[digest(key)]])

    async def test_requests_with_the_same_headers_note_their_use_too(self) -> None:
        """They are not identified again, but cached with the header lines."""
        key = keys.make("anon", known)
        ring = keys.KeyRing(FakeRows([(digest(key), "anon")]))
        await ring.reload()
        callers, access = Callers(ring, FakeTokens(), FakeRevocations()), Access()
        headers = HeaderView([(b"apikey", key.encode())])
        for _ in range(3):
            caller = callers.at_once(access, headers)
            assert caller is not None
            self.assertEqual((caller.key, ring.use_of(key).used), ("anon", True))
            ring.use_of(key).used = False

    async def test_any_other_text_is_unknown(self) -> None:
        ring = keys.KeyRing(FakeRows([(digest("x"), "anon")]))
        await ring.reload()
        for rubbish in ("", "psk_anon_", "\udcff", "ü" * 1000):
            self.assertIsNone(ring.kind_of(rubbish))


class Told(TestCase):
    def test_the_refusal_says_what_is_wrong_with_a_key(self) -> None:
        key = keys.make("anon", known)
        ring = keys.KeyRing(FakeRows([]))
        for sent, why in (
            ([key], "unknown or revoked"),
            ([key[:-1]], "mistyped"),
            (["anon"], "mistyped"),
            # It may be one that was made elsewhere.
            (["eyJhbGciOiJIUzI1NiJ9.e30.c2lnbmVk"], "unknown or revoked"),
            ([key, "another"], "two project keys"),
        ):
            headers = HeaderView([(b"x-service-key", one.encode()) for one in sent])
            with self.assertRaises(ApiError) as refused:
                identify(Access(), headers, ring, FakeTokens())
            self.assertEqual(refused.exception.code, "project_key_invalid")
            self.assertIn(why, refused.exception.message)
