"""Where links and providers may lead: what is an address, and which patterns allow it."""

from __future__ import annotations

import string
from urllib.parse import urlsplit

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase as TestCase

from project_service.redirects import Address, allowed, pattern

HOSTILE = st.text(alphabet=string.ascii_lowercase + ".:/@\\?#%2e*[]-_ \t\r\n0\u0430\uff0e", max_size=40)


def leads(target: str, *patterns: str) -> str | None:
    address = allowed(target, patterns)
    return None if address is None else address.text


class Patterns(TestCase):
    def test_an_exact_address_is_that_one_alone(self) -> None:
        known = "https://www.example.com/welcome?x=1"
        self.assertEqual(leads("https://WWW.example.com:443/welcome?x=1#y", known), known)
        for other in (
            *("https://www.example.com/welcome", "https://www.example.com/welcome/?x=1"),
            *("http://www.example.com/welcome?x=1", "https://www.example.com/Welcome?x=1"),
            *("https://example.com/welcome?x=1", "https://www.example.com./welcome?x=1"),
        ):
            self.assertIsNone(leads(other, known), other)

    def test_one_that_ends_in_a_slash_is_a_prefix(self) -> None:
        known = "https://www.example.com/a/"
        for within in ("https://www.example.com/a/", "https://www.example.com/a/b/c?d=e"):
            self.assertEqual(leads(within, known), within)
        for outside in (
            "https://www.example.com/a",
            "https://www.example.com/ab",
            "https://www.example.com/",
        ):
            self.assertIsNone(leads(outside, known), outside)
        # A host by itself is all of it.
        self.assertEqual(leads("http://localhost:3000/x", "http://localhost:3000"), "http://localhost:3000/x")

    def test_a_star_is_one_segment_or_the_first_label(self) -> None:
        known = "https://*-team.example.app/"
        self.assertEqual(leads("https://pr-7-team.example.app/x", known), "https://pr-7-team.example.app/x")
        for other in (
            *("https://team.example.app/", "https://-team.example.app/", "https://a.b-team.example.app/"),
            *("https://x-team.example.app.evil.test/", "https://evil.test/x-team.example.app/"),
        ):
            self.assertIsNone(leads(other, known), other)
        known = "https://example.app/u/*/done"
        self.assertIsNotNone(leads("https://example.app/u/7/done", known))
        for other in (
            "https://example.app/u//done",
            "https://example.app/u/7/8/done",
            "https://example.app/u/%2f/x",
        ):
            self.assertIsNone(leads(other, known), other)

    def test_applications_have_schemes_of_their_own(self) -> None:
        self.assertEqual(
            leads("com.example.app://login", "com.example.app://login"), "com.example.app://login"
        )
        self.assertEqual(leads("com.example.app://a/b", "com.example.app://a/"), "com.example.app://a/b")
        self.assertIsNone(leads("com.example.app://other", "com.example.app://login"))

    def test_scripts_and_documents_are_never_one(self) -> None:
        for scheme in ("javascript", "JavaScript", "data", "file", "blob", "vbscript", "view-source"):
            self.assertIsNone(Address.parse(f"{scheme}://www.example.com/"), scheme)

    def test_patterns_that_are_refused(self) -> None:
        for wrong in (
            *("example.com", "/x", "https://", "https://u:p@example.com/", "https://example.com/#x"),
            *("https://*.com/", "https://a.*.com/", "https://*.example.com/*", "https://example.com/?x=*"),
            *("https://exämple.com/", "javascript://x/", "https://example.com/../x", "https://*/", ""),
        ):
            with self.assertRaises(ValueError, msg=wrong):
                pattern(wrong)
        for right in ("https://*.example.com/", "https://example.com/*/x", "http://[::1]:3000/", "app://"):
            self.assertEqual(pattern(right), right)


class Anything(TestCase):
    @given(HOSTILE)
    @example("//evil.test")
    @example("\\\\evil.test")
    @example("@evil.test/")
    @example(".evil.test/")
    def test_what_is_allowed_is_below_the_prefix_for_every_reader(self, text: str) -> None:
        for begin in ("", "https://", "https://www.example.com", "https://www.example.com/a/"):
            address = allowed(begin + text, ["https://www.example.com/a/"])
            if address is None:
                continue
            seen = urlsplit(address.text)
            self.assertEqual((seen.scheme, seen.netloc), ("https", "www.example.com"))
            self.assertTrue(seen.path.startswith("/a/"))
            self.assertTrue(address.text.isascii() and address.text.isprintable() and " " not in address.text)
            segments = seen.path.lower().replace("%2e", ".").split("/")
            self.assertFalse({".", ".."} & set(segments))
            self.assertNotIn("\\", address.text)
            # What is sent is allowed too, and stays what it is.
            self.assertEqual(leads(address.text, "https://www.example.com/a/"), address.text)

    @given(st.text())
    def test_any_text_is_an_address_or_none(self, text: str) -> None:
        address = Address.parse(text)
        if address is not None:
            self.assertEqual(Address.parse(address.text), address)
