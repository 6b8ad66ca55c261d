"""Keys, prefixes, media types, ranges, page tokens, dispositions: every parser, whatever it is given."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import unquote
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.errors import ApiError
from project_service.http.caller import Caller, Claims
from project_service.storage import access, content_types, errors, keys, page_token
from project_service.storage.buckets import parse_rules
from project_service.storage.disposition import content_disposition
from project_service.storage.model import Bucket, BucketRules, store_path, timestamp
from project_service.storage.ranges import parse_range
from project_service.storage.s3.errors import BrokenRead, StoreError, StoreUnreachable
from project_service.storage.sweeper import version_at
from project_service.storage.upload import MAX_PARTS, PartSizes

text = st.text(alphabet=st.characters(exclude_categories=()), max_size=300)
segments = st.text(
    alphabet=st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/"), min_size=1
)
good_keys = st.lists(segments.filter(lambda s: s not in {".", ".."}), min_size=1, max_size=5).map("/".join)


def short(key: str) -> bool:
    return len(key.encode()) <= keys.MAX_KEY_BYTES


class Keys(SynchronousTestCase):
    @given(text)
    def test_a_key_is_kept_or_refused(self, key: str) -> None:
        try:
            parsed = keys.parse_key(key)
        except ApiError as error:
            self.assertEqual((error.status, error.code), (422, "invalid_key"))
            return
        self.assertEqual(parsed, key)
        self.assertTrue(1 <= len(key.encode()) <= 900)
        self.assertFalse({"", ".", ".."} & set(key.split("/")))
        self.assertFalse(any(ord(char) < 32 or 127 <= ord(char) < 160 for char in key))

    @given(good_keys.filter(short))
    @example("a\\b")
    @example("...")
    @example("x" * 900)
    @example("é" * 450)
    @example("\u202e\u200d😀")
    def test_every_script_is_welcome(self, key: str) -> None:
        self.assertEqual(keys.parse_key(key), key)

    def test_what_is_no_text_or_too_long_is_refused(self) -> None:
        for key in ("\udc80", "a\ud800", "é" * 451, "x" * 901, "a/\x85", "\x7f"):
            self.assertRaises(ApiError, keys.parse_key, key)
            self.assertRaises(ApiError, keys.parse_prefix, key)

    @given(good_keys, good_keys)
    @example("a", "a\U0010ffff")
    @example("\U0010ffff", "\U0010ffffx")
    @example("\ud7ff", "\ue000")
    def test_the_end_of_a_prefix_parts_its_keys_from_the_rest(self, prefix: str, key: str) -> None:
        end = keys.end_of_prefix(prefix)
        for one in (key, prefix + key, prefix):
            inside = one.encode() >= prefix.encode() and (end is None or one.encode() < end.encode())
            self.assertEqual(inside, one.startswith(prefix))

    @given(good_keys, good_keys)
    def test_positions_lie_behind_an_entry_and_before_the_next(self, one: str, other: str) -> None:
        low, high = sorted((one, other), key=str.encode)
        after = keys.position_after(low).encode()
        self.assertLess(low.encode(), after)
        if low != high:
            self.assertLessEqual(after, high.encode())

    @given(good_keys, good_keys)
    def test_a_folder_is_skipped_whole(self, folder: str, key: str) -> None:
        after = keys.position_after(folder + "/").encode()
        self.assertLess(f"{folder}/{key}".encode(), after)
        if not key.startswith(folder + "/") and key.encode() > f"{folder}/".encode():
            self.assertGreaterEqual(key.encode(), after)

    def test_folders(self) -> None:
        self.assertEqual(keys.folder_of("a/b/c", ""), "a/")
        self.assertEqual(keys.folder_of("a/b/c", "a/"), "a/b/")
        self.assertEqual(keys.folder_of("a/b/c", "a/b"), "a/b/")
        self.assertIsNone(keys.folder_of("a/b/c", "a/b/"))

    def test_bucket_names(self) -> None:
        for name in ("a", "0", "a-b", "a.b", "a_b", "a" * 63):
            self.assertTrue(keys.is_bucket_name(name), name)
        for name in ("", "A", "-a", "a-", ".a", "a.", "a/b", "a b", "a\n", "ä", "a" * 64):
            self.assertFalse(keys.is_bucket_name(name), name)


class Ranges(SynchronousTestCase):
    @given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
    def test_first_to_last(self, size: int, first: int, last: int) -> None:
        payload = bytes(index % 251 for index in range(size))
        try:
            part = parse_range(f"bytes={first}-{last}", size)
        except ApiError as error:
            self.assertEqual(error.status, 416)
            self.assertIn(("Content-Range", f"bytes */{size}"), error.headers)
            self.assertTrue(first >= size or last < first)
            return
        assert part is not None
        self.assertEqual(payload[part.first : part.first + part.length], payload[first : last + 1])

    @given(st.integers(0, 500), st.integers(0, 500))
    def test_suffix(self, size: int, wanted: int) -> None:
        try:
            part = parse_range(f"bytes=-{wanted}", size)
        except ApiError:
            self.assertTrue(size == 0 or wanted == 0)
            return
        assert part is not None
        self.assertEqual((part.first, part.length), (max(0, size - wanted), min(size, wanted)))

    @given(st.text(max_size=40), st.integers(0, 1000))
    def test_anything_else(self, header: str, size: int) -> None:
        for sent in (header, "bytes=" + header):
            try:
                part = parse_range(sent, size)
            except ApiError as error:
                self.assertEqual(error.code, "range_not_satisfiable")
                continue
            if part is not None:
                self.assertTrue(part.first >= 0 and part.length > 0 and part.first + part.length <= size)


class PageTokens(SynchronousTestCase):
    @given(good_keys.filter(short), st.integers(0, 30), st.booleans())
    def test_there_and_back(self, last: str, length: int, recursive: bool) -> None:
        prefix = last[:length]
        token = page_token.encode(last, prefix, recursive)
        self.assertRegex(token, r"\A[A-Za-z0-9_-]+\Z")
        self.assertEqual(page_token.decode(token, prefix, recursive), last)
        for other in ((prefix + "x", recursive), (prefix, not recursive)):
            self.assertRaises(ApiError, page_token.decode, token, *other)

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
    def test_nonsense_is_refused(self, token: str) -> None:
        with self.assertRaises(ApiError) as caught:
            page_token.decode(token, "p", False)
        self.assertEqual(
            (caught.exception.status, caught.exception.details),
            (422, {"page_token": "is not a token of this listing"}),
        )

    def test_an_entry_that_no_key_can_be_is_refused(self) -> None:
        for last in ("a\x00", "a\x01", "a\x7f", "a\x85", "k" * 901):
            with self.assertRaises(ApiError) as caught:
                page_token.decode(page_token.encode(last, "", False), "", False)
            self.assertEqual(caught.exception.code, "validation_failed", last)


class ContentTypes(SynchronousTestCase):
    @given(st.text(max_size=300))
    def test_a_type_is_kept_or_refused(self, sent: str) -> None:
        try:
            parsed = content_types.parse(sent)
        except ApiError as error:
            self.assertEqual(error.code, "validation_failed")
            return
        self.assertTrue(parsed.isascii() and parsed.isprintable() and "/" in parsed)

    def test_matching(self) -> None:
        for patterns, allowed in {
            (): False,
            ("*/*",): True,
            ("image/*",): True,
            ("image/PNG",): True,
            ("png/*",): False,
        }.items():
            self.assertEqual(content_types.allowed("Image/png; q=1", patterns), allowed, patterns)
        self.assertTrue(content_types.allowed("x/y", None))

    def test_patterns(self) -> None:
        for pattern in ("image/*", "*/*", "text/plain", "application/vnd.a+b"):
            self.assertTrue(content_types.is_pattern(pattern))
        for pattern in (
            "",
            "*",
            "image",
            "image/",
            "/png",
            "*/png",
            "i*/png",
            "image/*;q=1",
            "a b/c",
            "image/png\n",
        ):
            self.assertFalse(content_types.is_pattern(pattern), pattern)

    def test_guessing_knows_no_machine(self) -> None:
        self.assertEqual(content_types.guess("a/b.JPG"), "image/jpeg")
        self.assertEqual(content_types.guess("http://x/a.html"), "text/html")
        self.assertEqual(content_types.guess("data:text/html,x"), "application/octet-stream")
        self.assertEqual(content_types.guess("a.svg.gz"), "application/octet-stream")


class Dispositions(SynchronousTestCase):
    @given(good_keys)
    @example('a"b\\c%d;e')
    def test_the_name_comes_back_whole_and_the_header_is_one_line(self, key: str) -> None:
        header = content_disposition(key, inline=False)
        self.assertTrue(header.isascii() and header.isprintable())
        plain, _, extended = header.partition("; filename*=UTF-8''")
        self.assertEqual(unquote(extended), key.rsplit("/", 1)[-1])
        self.assertEqual(plain.count('"'), 2)
        self.assertNotIn("\\", plain)


class Rules(SynchronousTestCase):
    @given(
        st.dictionaries(
            st.text(max_size=20), st.one_of(st.none(), st.integers(), st.text(max_size=5), st.booleans())
        )
    )
    def test_rules_are_checked_whole(self, sent: dict[str, object]) -> None:
        try:
            BucketRules(**parse_rules(sent))
        except ApiError as error:
            self.assertEqual(error.code, "validation_failed")

    def test_every_fault_is_named(self) -> None:
        with self.assertRaises(ApiError) as caught:
            parse_rules({"visibility": "x", "max_object_bytes": 0, "what": 1, "owner_only_writes": True})
        self.assertEqual(sorted(caught.exception.details or {}), ["max_object_bytes", "visibility", "what"])

    def test_access(self) -> None:
        user = Claims("11111111-1111-4111-8111-111111111111", "a@b.test", "authenticated", "s", 1)
        private = Bucket("b", BucketRules(), 0, 0, datetime(2026, 1, 1, tzinfo=UTC))
        self.assertRaises(ApiError, access.check_read, Caller("anon"), private)
        access.check_read(Caller("anon", user), private)
        access.check_read(Caller("service"), private)
        self.assertRaises(ApiError, access.writer_of, Caller("anon"))
        self.assertEqual(access.writer_of(Caller("service", user)).user_id, UUID(user.sub))
        self.assertFalse(access.writer_of(Caller("anon", user)).is_service)


class Small(SynchronousTestCase):
    def test_timestamps(self) -> None:
        east = timezone(timedelta(hours=2))
        self.assertEqual(
            timestamp(datetime(2026, 11, 21, 5, 4, 5, 678901, tzinfo=east)), "2026-11-21T03:04:05.678Z"
        )
        self.assertEqual(timestamp(datetime(2026, 11, 21, tzinfo=UTC)), "2026-11-21T00:00:00.000Z")

    @given(st.integers(0, 5 * 1024**4), st.integers(5 * 1024**2, 5 * 1024**3))
    @settings(max_examples=20, deadline=None)
    def test_parts_are_never_too_many_nor_large_too_early(self, expected: int, part_bytes: int) -> None:
        sizes = PartSizes.up_to(expected, part_bytes)
        each = [sizes.of(number) for number in range(1, MAX_PARTS + 1)]
        self.assertGreaterEqual(sum(each), expected)
        self.assertEqual(set(each[:1000]), {part_bytes})
        self.assertEqual(each, sorted(each))
        self.assertLessEqual(each[-1], max(part_bytes, expected // MAX_PARTS * 2))
        if expected <= MAX_PARTS * part_bytes:
            self.assertEqual(each[-1], part_bytes)

    @given(st.uuids())
    def test_only_our_own_paths_are_versions(self, version: UUID) -> None:
        self.assertEqual(version_at(store_path("b", version)), version)
        for path in (
            str(version),
            f"B/{version}",
            f"b/{version}/x",
            f"b/{version.hex}",
            f"b/{{{version}}}",
            "b/x",
            "",
        ):
            self.assertIsNone(version_at(path), path)

    def test_failures_of_the_store_show_nothing(self) -> None:
        for failure in (
            StoreUnreachable("http://10.0.0.1 secret"),
            StoreError(403, "AccessDenied"),
            BrokenRead("x"),
        ):
            error = errors.translate(failure)
            assert error is not None
            self.assertEqual((error.status, error.code), (503, "store_unavailable"))
            self.assertNotIn(b"secret", error.body())
        self.assertIsNone(errors.translate(ValueError()))
