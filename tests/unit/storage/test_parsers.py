"""What requests bring, with random input: keys, prefixes, names, page tokens, ranges, media types, dispositions and
forms."""

from __future__ import annotations

import base64
import itertools
import re
import unicodedata
from datetime import UTC, datetime
from itertools import pairwise
from urllib.parse import parse_qsl, unquote, urljoin, urlsplit
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.errors import ApiError
from project_service.storage import keys
from project_service.storage.links import UploadPass
from project_service.storage.parsing import parameters
from project_service.storage.parsing.conditions import parse_range
from project_service.storage.parsing.form import (
    MAX_AROUND_BYTES,
    Event,
    Field,
    FileStart,
    FormReader,
    boundary_of,
)
from project_service.storage.presentation import content_disposition
from project_service.storage.sweeper import version_at
from project_service.storage.values import ObjectRow, UploadTerms, store_path
from tests.fakes.storage import START, some_link
from tests.strategies import good_keys, short, text


class Keys(SynchronousTestCase):
    @given(text)
    def test_any_key_is_accepted_as_it_is_or_refused(self, key: str) -> None:
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

    def test_a_new_key_does_not_turn_the_direction_of_text(self) -> None:
        for char in map(chr, (*range(0x20, 0x3100), *range(0xE000, 0x110000, 97))):
            if unicodedata.bidirectional(char) in {
                "LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI",
            }:  # fmt: skip
                with self.assertRaises(ApiError) as caught:
                    keys.parse_new_key(f"a{char}b", "to")
                why = "it has a character that turns the direction of text"
                self.assertEqual((caught.exception.status, caught.exception.details), (422, {"to": why}))
                self.assertEqual(content_disposition(f"a/b{char}c", False).count("_"), 2)
                self.assertIn("''b_c", content_disposition(f"a/b{char}c", False))
            elif unicodedata.category(char) != "Cc" and char != "/":
                self.assertEqual(keys.parse_new_key(f"a{char}b"), f"a{char}b")
        for bad in ("", "a//b", "a\n"):
            self.assertRaises(ApiError, keys.parse_new_key, bad)

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

    def test_which_bucket_ids_are_valid(self) -> None:
        for name in ("a", "A b", "-a", ".a", "a.", "...", "_!.*'()", "&$@=;:+,?-", "a" * 100):
            self.assertTrue(keys.is_bucket_id(name), name)
        for name in (
            "",
            ".",
            "..",
            " a",
            "a ",
            " ",
            "a/b",
            "a\n",
            "a\\b",
            "a%b",
            "a#b",
            "~a",
            "ä",
            "٣",
            "a" * 101,
        ):
            self.assertFalse(keys.is_bucket_id(name), name)

    @given(st.from_regex(keys.BUCKET_NAME, fullmatch=True))
    def test_a_bucket_name_is_an_id(self, name: str) -> None:
        self.assertEqual((keys.is_bucket_name(name), keys.is_bucket_id(name)), (True, True))

    @given(st.text("Ab1-_. &?", max_size=101), st.uuids())
    def test_the_folder_of_a_bucket_is_no_other_buckets(self, name: str, version: UUID) -> None:
        if keys.is_bucket_id(name):
            path = store_path(name, version)
            self.assertEqual((version_at(path), path.count("/")), (version, 1))
            folder = path.partition("/")[0]
            self.assertEqual(folder == name, keys.is_bucket_name(name))
            self.assertEqual(keys.is_bucket_id(folder), keys.is_bucket_name(name))


class PageTokens(SynchronousTestCase):
    @given(good_keys.filter(short), st.integers(0, 30), st.booleans())
    def test_a_page_token_is_decoded_for_the_same_listing_only(
        self, last: str, length: int, recursive: bool
    ) -> None:
        prefix = last[:length]
        token = parameters.encode_page_token(last, prefix, recursive)
        self.assertRegex(token, r"\A[A-Za-z0-9_-]+\Z")
        self.assertEqual(parameters.decode_page_token(token, prefix, recursive), last)
        for other in ((prefix + "x", recursive), (prefix, not recursive)):
            self.assertRaises(ApiError, parameters.decode_page_token, token, *other)

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
            parameters.decode_page_token(token, "", False)
        self.assertEqual(
            (caught.exception.status, caught.exception.details),
            (422, {"page_token": "is not a token of this listing"}),
        )

    def test_a_token_with_an_impossible_key_is_refused(self) -> None:
        for last in ("a\x00", "a\x01", "a\x7f", "a\x85", "k" * 901):
            with self.assertRaises(ApiError) as caught:
                parameters.decode_page_token(parameters.encode_page_token(last, "", False), "", False)
            self.assertEqual(caught.exception.code, "validation_failed", last)


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
    def test_any_content_type_is_accepted_or_refused(self, sent: str) -> None:
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
                self.assertEqual(keys.is_allowed_type(sent, patterns), allowed, patterns)
        self.assertTrue(keys.is_allowed_type("x/y", None))

    def test_a_type_is_allowed_by_whichever_of_its_names(self) -> None:
        for names in (
            ("image/jpeg", "image/jpg", "IMAGE/PJPEG", "image/x-jpeg", "image/jfif"),
            ("image/png", "image/x-png"),
            ("image/webp", "image/x-webp"),
            ("image/bmp", "image/x-ms-bmp", "image/x-bmp"),
            ("image/vnd.microsoft.icon", "image/x-icon", "image/ico"),
            ("audio/mpeg", "audio/mp3", "audio/x-mpeg", "audio/x-mp3"),
            ("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave"),
            ("audio/mp4", "audio/x-m4a"),
            ("application/pdf", "application/x-pdf"),
            ("application/zip", "application/x-zip-compressed"),
            ("application/gzip", "application/x-gzip"),
            ("application/xml", "text/xml; charset=utf-8"),
            ("application/json", "text/json", "application/x-json"),
            ("application/yaml", "text/x-yaml", "application/x-yaml"),
            ("text/javascript", "application/x-javascript", "application/javascript", "text/javascript1.5"),
            ("text/csv", "application/csv", "text/x-csv"),
            ("font/woff", "application/font-woff", "application/x-font-woff"),
            ("video/vnd.avi", "video/x-msvideo", "video/avi"),
        ):
            for sent, allowed in itertools.product(names, names):
                pattern = allowed.partition(";")[0]
                self.assertTrue(keys.is_allowed_type(sent, (pattern,)), (sent, pattern))
                self.assertEqual(keys.registered_type(sent), names[0])
        # By both families, and not by another type.
        for family in ("text/*", "application/*"):
            self.assertTrue(keys.is_allowed_type("text/xml", (family,)))
        for sent, allowed in (
            ("image/apng", "image/png"),
            ("image/svg+xml", "application/xml"),
            ("application/ld+json", "application/json"),
            ("text/xml-external-parsed-entity", "text/xml"),
            ("image/jp2", "image/jpeg"),
            ("text/html", "application/xhtml+xml"),
        ):
            self.assertFalse(keys.is_allowed_type(sent, (allowed,)), (sent, allowed))

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
        named = re.sub(f"[{keys.TURNING}]", "_", key.rsplit("/", 1)[-1])
        self.assertEqual(unquote(extended), named)
        self.assertEqual(plain.count('"'), 2)
        self.assertNotIn("\\", plain)

    @given(good_keys)
    @example("a.b-c_1")
    @example("a b")
    def test_without_quotes_the_name_is_the_same(self, key: str) -> None:
        quoted, unquoted = (content_disposition(key, inline=False, unquoted=one) for one in (False, True))
        name = quoted.split('"')[1]
        if re.fullmatch("[A-Za-z0-9._-]+", name):
            self.assertEqual(unquoted, quoted.replace('"', ""))
        if not name or re.search(r'[ "(),/:;<=>?@[\]{}\\]', name):
            self.assertEqual(unquoted, quoted)


payloads = st.one_of(
    st.binary(max_size=300),
    st.lists(
        st.sampled_from([b"\r\n", b"--", b"\r\n--", b"\r", b"\n", b"edge", b"--edge", b"\r\n--edg", b"x"])
    ).map(b"".join),
).filter(lambda payload: b"\r\n--edge" not in payload and not payload.startswith(b"--edge"))


def read(body: bytes, cuts: list[int]) -> list[Event]:
    """The events, with consecutive bytes joined."""
    reader = FormReader("edge")
    events: list[Event] = []
    positions = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for first, last in pairwise(positions):
        for event in reader.feed(body[first:last]):
            if isinstance(event, bytes) and events and isinstance(events[-1], bytes):
                events[-1] += event
            else:
                events.append(event)
    reader.finish()
    return events


class Reading(SynchronousTestCase):
    @settings(max_examples=200, deadline=None)
    @given(payloads, payloads, st.lists(st.integers(0, 10_000), max_size=30), st.booleans(), st.booleans())
    def test_pieces_make_no_difference(
        self, payload: bytes, value: bytes, cuts: list[int], field_first: bool, is_key: bool
    ) -> None:
        """Fields other than ``key`` bring no event, whatever bytes they hold."""
        name = b"key" if is_key else b"note"
        field = b'--edge\r\nContent-Disposition: form-data; name="' + name + b'"\r\n\r\n' + value + b"\r\n"
        file = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="\xc3\xb6 x.txt"\r\n'
        file += b"Content-Type: text/plain; charset=utf-8\r\n\r\n" + payload + b"\r\n"
        body = (field + file if field_first else file + field) + b"--edge--\r\n"
        expected: list[Event] = [FileStart("ö x.txt", "text/plain; charset=utf-8")]
        expected += [payload] if payload else []
        try:
            key: list[Event] = [Field("key", value.decode())] if is_key else []
        except UnicodeDecodeError:
            self.assertEqual(self.assertRaises(ApiError, read, body, cuts).code, "invalid_key")
        else:
            self.assertEqual(read(body, cuts), key + expected if field_first else expected + key)

    @settings(max_examples=300, deadline=None)
    @given(st.binary(max_size=400), st.lists(st.integers(0, 500), max_size=10))
    def test_any_body_is_parsed_or_refused(self, body: bytes, cuts: list[int]) -> None:
        for one in (
            body,
            b"--edge\r\n" + body,
            b'--edge\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + body,
        ):
            try:
                read(one, cuts)
            except ApiError as error:
                self.assertIn((error.status, error.code), {(400, "invalid_multipart"), (422, "invalid_key")})

    def test_bytes_held_back_as_a_possible_boundary_do_not_count_as_preamble(self) -> None:
        """Byte by byte, a file that resembles the boundary brings no event for longer than the preamble may be."""
        payload = b"\r\n--edg" * (MAX_AROUND_BYTES // 6)
        body = (
            b'--edge\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + payload + b"\r\n--edge--\r\n"
        )
        self.assertEqual(read(body, list(range(len(body))))[1], payload)

    def test_a_short_epilogue_is_ignored_and_a_long_one_refused(self) -> None:
        whole = b'--edge\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--edge--'
        self.assertEqual(read(whole + b"\r\n" + b"epilogue", [len(whole), len(whole) + 2])[1], b"x")
        reader = FormReader("edge")
        list(reader.feed(whole))
        with self.assertRaises(ApiError):
            for _ in range(10):
                list(reader.feed(b"x" * 10_000))

    def test_what_rfc_2046_allows(self) -> None:
        """Blanks after a boundary, folded headers, anything before and after, and parts without a body."""
        name, value = (
            b'Content-Disposition: form-data;\tname="file"; filename=a',
            [FileStart("a", None), b"x"],
        )
        for body in (
            b"--edge \r\n" + name + b"\r\n\r\nx\r\n--edge--",
            b"--edge\t \t\r\n" + name + b"\r\n\r\nx\r\n--edge-- \t\r\nend\r\n--edge\r\n",
            b"To whom it may concern\r\n--edge\r\n" + name + b"\r\n\r\nx\r\n--edge--",
            b"\r\n--edge\r\n" + name.replace(b"; f", b";\r\n\tf") + b"\r\n\r\nx\r\n--edge--",
            b"--edge\r\n"
            + name.upper().replace(b"FILE", b"file").replace(b"=A", b"=a")
            + b"\r\n\r\nx\r\n--edge--",
            b"--edge\r\n"
            + name
            + b'\r\n\r\nx\r\n--edge \r\nContent-Disposition: form-data; name="n"\r\n\r\n--edge--',
        ):
            for cuts in ([], list(range(len(body)))):
                self.assertEqual(read(body, cuts), value, body)
        empty = b"--edge\r\n" + name + b"\r\n\r\n--edge--"
        self.assertEqual(read(empty, list(range(len(empty)))), value[:1])

    def test_a_length_of_a_part_is_ignored(self) -> None:
        """RFC 7578 section 4.8."""
        for length in ("1", "5", "x", "-1", "007", ""):
            head = f"--edge\r\nContent-Length: {length}\r\nContent-Disposition: form-data; name=file\r\n\r\n".encode()
            twice = head.replace(b"Content-D", b"Content-Length: 9\r\nContent-D")
            for one in (head, twice):
                self.assertEqual(
                    read(one + b"hello\r\n--edge--", []), [FileStart(None, None), b"hello"], length
                )

    def test_file_names_as_clients_send_them(self) -> None:
        for sent, name in (
            ('filename="\u00f6.txt"', "\u00f6.txt"), ("filename=a.txt", "a.txt"), ('filename="a%22b"', 'a"b'),
            ('filename="=?utf-8?B?w7Y=?="; filename*=utf-8\'\'%C3%B6.txt', "\u00f6.txt"),
            ("filename*=UTF-8'de'%C3%B6%20x.txt; filename=plain", "\u00f6 x.txt"),
            ("filename=plain; filename*=utf-8''%FF", "plain"), ("filename=plain; filename*=latin1''%F6", "plain"),
            ("filename=plain; filename*=iso-8859-1'en'%A3%20rates", "\u00a3 rates"),
            ("filename*=ISO-8859-1''na%EFve.txt", "na\u00efve.txt"), ("filename*=utf-16''%00", None),
            ("\tfilename\t=\t\"a.txt\"\t", "a.txt"), ("filename=my file.txt", "my file.txt"),
            ('filename="a\tb"', "a\tb"), ('FileName="C:\\\\dir\\\\a.txt"', "a.txt"),
            ('filename="a; filename*=utf-8\'\'b"', "a; filename*=utf-8''b"), ("filename*=", None),
            ("filename=plain; filename*=utf-8''\"b\"", "plain"), ("filename=plain; xfilename*=utf-8''b", "plain"),
            ("filename* = utf-8''b ; filename=plain", "b"),
            ('filename="a\\"; filename*=utf-8\'\'b"', "a\"; filename*=utf-8''b"),
            # A quoted string without an end extends to the end of the header.
            ("filename=plain; x=\"; filename*=utf-8''b", "plain"), ('filename=plain; x=*"\\', "plain"),
        ):  # fmt: skip
            head = f'--edge\r\nContent-Disposition: form-data; name="file"; {sent}\r\n\r\n'.encode()
            self.assertEqual(read(head + b"x\r\n--edge--", [])[0], FileStart(name, None), sent)

    def test_a_refusal_says_why_as_soon_as_possible(self) -> None:
        def part(name: str, value: bytes = b"x", *more: str) -> bytes:
            lines = "\r\n".join((f'Content-Disposition: form-data; name="{name}"', *more, "", ""))
            return b"--edge\r\n" + lines.encode() + value + b"\r\n"

        unfit = "The object key is not allowed: "
        whole, base64 = part("file"), "Content-Transfer-Encoding: base64"
        for begun, why in (
            (whole + part("file"), "it has more than one part named file"),
            (part("key") + part("key"), "it has more than one part named key"),
            (part("note", b"x" * 70_000), "a field is longer than 65536 bytes"),
            (b"--other\r\n" * 10_000, "the boundary of its Content-Type does not come"),
            (b"--edge\r\nnothing\r\n", "a header of a part is not a name, a colon and a value"),
            (b"--edge\r\n: x\r\n", "a header of a part is not a name, a colon and a value"),
            (b"--edge\r\nX Y: x\r\n", "a header of a part is not a name, a colon and a value"),
            (b"--edge\r\n X: y\r\n", "the headers of a part begin with a blank"),
            (b"--edge\r\nX: y\n", "a line of a part's headers does not end with CRLF"),
            (b"--edge\r\nX: y\nZ: z\r\n\r\n", "a line of a part's headers does not end with CRLF"),
            (b"--edge\r\nX: " + b"y" * 8192, "a header of a part is longer than 8192 bytes"),
            (b"--edge\r\n" + b"X: y\r\n" * 17, "a part has more than 16 headers"),
            (b"--edge\r\n\r\n", "a part has no Content-Disposition that is form-data"),
            (
                b"--edge\r\nContent-Disposition: file\r\n\r\n",
                "a part has no Content-Disposition that is form-data",
            ),
            (
                b"--edge\r\n" + b"Content-Disposition: form-data\r\n" * 2 + b"\r\n",
                "a part has more than one Content-Disposition",
            ),
            (b"--edge x\r\n", "a boundary is not followed by CRLF"),
            (b"--edge\n", "a boundary is not followed by CRLF"),
            (b"--edge" + b" " * 9000, "a boundary is not followed by CRLF"),
            (whole + b"--edgex", "a boundary is not followed by CRLF"),
            (part("n") * 101, "it has more than 100 parts"),
            (part("owner", b"\xff") + whole, "the field owner is not UTF-8"),
            (part("owner") + part("owner"), "it has more than one part named owner"),
            (whole + b"--edge--" + b"x" * 70_000, "too much follows its last boundary"),
            (part("key", b"\xff") + whole, unfit + "it is not UTF-8"),
            (
                b'--edge\r\nContent-Disposition: form-data; name="file"; filename="\xf6"\r\n\r\n',
                "the name of the file is not UTF-8",
            ),
            (
                b'--edge\r\nContent-Disposition: form-data; name="\xf6"\r\n\r\n',
                "the name of a field is not UTF-8",
            ),
            (part("file", b"x", base64), "The body must be sent without a transfer encoding of its parts"),
        ):
            with self.assertRaises(ApiError) as caught:
                list(FormReader("edge").feed(begun))
            message = caught.exception.message
            self.assertEqual(message, f"{why}." if why[0].isupper() else f"The form cannot be read: {why}.")
        for body, why in (
            (whole, "it ends before its last boundary"),
            (b"--edge--", "it has no part named file"),
        ):
            with self.assertRaises(ApiError) as caught:
                read(body, [])
            self.assertEqual(caught.exception.message, f"The form cannot be read: {why}.")


class Boundaries(SynchronousTestCase):
    def test_a_boundary_may_be_quoted(self) -> None:
        self.assertEqual(boundary_of("multipart/form-data; boundary=abc"), "abc")
        self.assertEqual(boundary_of("multipart/form-data;\tboundary\t=\tabc"), "abc")
        self.assertEqual(boundary_of('multipart/form-data; boundary="a\\\\b"'), "a\\b")
        self.assertEqual(boundary_of('Multipart/Form-Data; charset=utf-8; boundary="a b:c"'), "a b:c")

    def test_an_unusable_boundary_is_refused(self) -> None:
        for sent in ("", "x" * 71, '"x "', "\u00e4", '"\u00e4"', '"a\tb"', '"a\x7fb"'):
            with self.assertRaises(ApiError) as caught:
                boundary_of(f"multipart/form-data; boundary={sent}")
            self.assertEqual(caught.exception.code, "invalid_multipart", sent)
            self.assertIn("the Content-Type has no usable boundary", caught.exception.message)
        with self.assertRaises(ApiError) as caught:
            boundary_of(None)
        self.assertEqual(caught.exception.message, "The body must be multipart/form-data.")
        for fine in ("x", "x" * 70):
            self.assertEqual(boundary_of(f"multipart/form-data; boundary={fine}"), fine)

    @given(st.text(max_size=100))
    def test_any_content_type_is_parsed_or_refused(self, header: str) -> None:
        for sent in (header, "multipart/form-data; " + header, "multipart/form-data; boundary=" + header):
            try:
                boundary = boundary_of(sent)
            except ApiError as error:
                self.assertIn(error.status, {400, 415})
            else:
                self.assertTrue(1 <= len(boundary) <= 70)


ALLOWED = ("https://a.example/done", "https://a.example/in/", "http://b.example:3000/")
# Pieces out of which attempts to leave an allowed prefix are made.
_PIECES = st.sampled_from(
    [
        "..",
        ".",
        "%2e",
        "%2E%2e",
        "/",
        "\\",
        "//",
        "@",
        "c.example",
        "x",
        "?",
        "#",
        "%2f",
        "%5c",
        "\t",
        "\n",
        " ",
        "ä",
        ":",
        "%",
    ]
)
_URLS = st.builds(
    lambda start, pieces: start + "".join(pieces),
    st.sampled_from([*ALLOWED, "https://a.example", "https://a.example/in", "//a.example/in/", ""]),
    st.lists(_PIECES, max_size=6),
)


class Redirects(SynchronousTestCase):
    @given(_URLS | text)
    @example("https://a.example/in/..\\..\\done")
    @example("https://a.example/in/%2e%2e/out")
    @example("http://b.example:3000//%2f")
    def test_an_accepted_url_stays_below_what_is_allowed(self, url: str) -> None:
        try:
            accepted = parameters.parse_redirect(url, ALLOWED)
        except ApiError as error:
            self.assertEqual((error.code, error.details is not None), ("validation_failed", True))
            return
        self.assertEqual(accepted, url)
        self.assertTrue(url.isascii() and url.isprintable() and "\\" not in url and " " not in url)
        parts = urlsplit(url)
        self.assertIn((parts.scheme, parts.netloc), [("https", "a.example"), ("http", "b.example:3000")])
        # As a browser resolves it: escaped dots are dots.
        path = parts.path.replace("%2e", ".").replace("%2E", ".")
        # ``urljoin`` would take a path that begins with two slashes for a host, as a browser takes a relative URL.
        resolved = urljoin(f"{parts.scheme}://{parts.netloc}/", f"/.{path}")
        self.assertTrue(resolved == ALLOWED[0] or resolved.startswith(ALLOWED[1:]), resolved)

    @given(st.sampled_from(ALLOWED), good_keys, text)
    def test_what_is_added_is_a_query_of_the_same_page(self, url: str, key: str, etag: str) -> None:
        row = ObjectRow(
            "b", key, UUID(int=1), 1, "a/b", etag.encode("utf-8", "replace").decode(), None, START
        )
        for page in (url, f"{url}?c=d", f"{url}#f", f"{url}?c=d#f?g"):
            led = urlsplit(parameters.redirected(page, row))
            before = urlsplit(page)
            self.assertEqual((led[:3], led.fragment), (before[:3], before.fragment))
            query = parse_qsl(led.query, keep_blank_values=True)
            expected = [("bucket", "b"), ("key", key), ("etag", row.etag)]
            self.assertEqual(query, [*parse_qsl(before.query), *expected])
            self.assertTrue(led.geturl().isascii())


class UploadKeys(SynchronousTestCase):
    @given(text, text | good_keys)
    def test_no_choice_leaves_the_prefix_of_a_link(self, prefix: str, chosen: str) -> None:
        link = some_link(key=prefix, upload=UploadTerms(by_prefix=True))
        assert link.upload is not None
        try:
            key = UploadPass(b"", link, link.upload).key_of(chosen)
        except ApiError as error:
            self.assertEqual(error.code, "invalid_key")
            return
        self.assertEqual(key, prefix + chosen)
        self.assertTrue(chosen)
        self.assertEqual(keys.parse_key(key), key)


class LinkTokens(SynchronousTestCase):
    @given(st.datetimes(timezones=st.just(UTC)), st.uuids())
    def test_a_token_says_where_the_page_ended(self, made: datetime, link_id: UUID) -> None:
        last = some_link(id=link_id, created_at=made)
        self.assertEqual(parameters.decode_link_token(parameters.encode_link_token(last)), (made, link_id))

    @given(st.binary() | text.map(lambda t: t.encode("utf-8", "replace")))
    @example(b'[1,"2026-11-21","11111111-1111-4111-8111-111111111111"]')
    @example(b'[1,"2026-11-21T00:00:00+00:00",5]')
    @example(b"[1,5,5]")
    @example(b"{}")
    def test_any_other_is_refused(self, content: bytes) -> None:
        for token in (base64.urlsafe_b64encode(content).decode().rstrip("="), content.decode("latin-1")):
            with self.assertRaises(ApiError) as caught:
                parameters.decode_link_token(token)
            self.assertEqual(caught.exception.code, "validation_failed")
