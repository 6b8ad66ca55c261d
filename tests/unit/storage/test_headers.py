"""Ranges, media types and dispositions, with random input."""

from __future__ import annotations

from urllib.parse import unquote

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.errors import ApiError
from project_service.storage import keys
from project_service.storage.conditions import parse_range
from project_service.storage.download import content_disposition
from tests.strategies import good_keys


class Ranges(SynchronousTestCase):
    @given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
    def test_a_range_selects_the_bytes_it_names_or_is_416(self, size: int, first: int, last: int) -> None:
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
    def test_a_suffix_range_selects_the_last_bytes(self, size: int, wanted: int) -> None:
        try:
            part = parse_range(f"bytes=-{wanted}", size)
        except ApiError:
            self.assertTrue(size == 0 or wanted == 0)
            return
        assert part is not None
        self.assertEqual((part.first, part.length), (max(0, size - wanted), min(size, wanted)))

    @given(st.text(max_size=40), st.integers(0, 1000))
    def test_any_other_range_header_is_satisfiable_ignored_or_416(self, header: str, size: int) -> None:
        for sent in (header, "bytes=" + header):
            try:
                part = parse_range(sent, size)
            except ApiError as error:
                self.assertEqual(error.code, "range_not_satisfiable")
                continue
            if part is not None:
                self.assertTrue(part.first >= 0 and part.length > 0 and part.first + part.length <= size)


class ContentTypes(SynchronousTestCase):
    @given(st.text(max_size=300))
    def test_any_content_type_is_kept_or_refused(self, sent: str) -> None:
        try:
            parsed = keys.parse_content_type(sent)
        except ApiError as error:
            self.assertEqual(error.code, "validation_failed")
            return
        self.assertTrue(parsed.isascii() and parsed.isprintable() and "/" in parsed)

    def test_which_media_types_are_valid(self) -> None:
        odd = "x!#$&+.^_-/y!#$&+.^_-"
        for sent in (" a/b ", "a/b;x=" + "y" * 249, 'text/plain; charset="utf-8"', "a/b ; x=y", odd):
            self.assertEqual(keys.parse_content_type(sent), sent.strip())
        for sent in (
            "a/b;x=" + "y" * 250,
            "a/b; x=\x7f",
            "a/b; x=\x1fy",
            "a/b; x=\u00e9",
            "a/b;\r\nX: y",
            "a",
            "a/",
            "*/*",
            "a/b/c",
        ):
            with self.assertRaises(ApiError) as caught:
                keys.parse_content_type(sent)
            self.assertEqual(caught.exception.details, {"content_type": "is not a media type"})
        self.assertTrue(keys.is_pattern("a/" + "b" * 253))
        self.assertFalse(keys.is_pattern("a/" + "b" * 254))

    def test_a_second_media_type_that_a_browser_would_believe_is_refused(self) -> None:
        for sent in (
            "image/png; a=b, text/html",
            "image/png;,text/html",
            "a/b;c,  *x/y",
            'a/b; c="d, text/html',
        ):
            self.assertRaises(ApiError, keys.parse_content_type, sent)
        for sent in (
            "video/webm;codecs=vp8,opus",
            'video/mp4; codecs="avc1.42E01E, mp4a.40.2"',
            "a/b; c=d/e, f",
        ):
            self.assertEqual(keys.parse_content_type(sent), sent)

    def test_patterns_of_allowed_media_types_match_without_case(self) -> None:
        for patterns, allowed in {
            (): False,
            ("*/*",): True,
            ("image/*",): True,
            ("image/PNG",): True,
            ("png/*",): False,
        }.items():
            for sent in ("Image/png; q=1", "image/PNG ;q=1"):
                self.assertEqual(keys.allowed(sent, patterns), allowed, patterns)
        self.assertTrue(keys.allowed("x/y", None))

    def test_which_patterns_are_valid(self) -> None:
        for pattern in ("image/*", "*/*", "text/plain", "application/vnd.a+b"):
            self.assertTrue(keys.is_pattern(pattern))
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
            self.assertFalse(keys.is_pattern(pattern), pattern)

    def test_guessing_a_media_type_does_not_depend_on_the_machine(self) -> None:
        self.assertEqual(keys.guess_content_type("a/b.JPG"), "image/jpeg")
        office = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
        for key, expected in (("a.XLSX", office), ("a.js", "text/javascript"), ("a.yml", "application/yaml")):
            self.assertEqual(keys.guess_content_type(key), expected)
        self.assertEqual(keys.guess_content_type("http://x/a.html"), "text/html")
        self.assertEqual(keys.guess_content_type("data:text/html,x"), "application/octet-stream")
        self.assertEqual(keys.guess_content_type("a.svg.gz"), "application/octet-stream")


class Dispositions(SynchronousTestCase):
    def test_the_ascii_filename_keeps_what_it_can(self) -> None:
        for name, plain in (("a b~!\u00f6.txt", "a b~!_.txt"), ('\x1f\x7f"\\%', "_____")):
            self.assertIn(f'; filename="{plain}";', content_disposition("d/" + name, inline=False))

    @given(good_keys)
    @example('a"b\\c%d;e')
    def test_the_extended_filename_is_complete_and_the_header_is_one_line(self, key: str) -> None:
        header = content_disposition(key, inline=False)
        self.assertTrue(header.isascii() and header.isprintable())
        plain, _, extended = header.partition("; filename*=UTF-8''")
        self.assertEqual(unquote(extended), key.rsplit("/", 1)[-1])
        self.assertEqual(plain.count('"'), 2)
        self.assertNotIn("\\", plain)
