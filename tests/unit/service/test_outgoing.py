"""Which addresses and URLs may be called, and for how long documents are kept."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.outgoing import DEFAULT_SECONDS, LEAST_SECONDS, MOST_SECONDS, kept_seconds
from project_service.public_addresses import is_public, why_not_url

NOT_PUBLIC = [
    *("10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "127.0.0.1", "127.9.9.9"),
    *("0.0.0.0", "224.0.0.1", "239.255.255.250", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
    *("::", "::1", "fe80::1", "fc00::1", "fd12:3456::1", "ff02::1", "2001:db8::1", "fec0::1"),
    # IPv6 addresses that stand for one of IPv4.
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
    *("2002:7f00:1::1", "2002:a00:1::", "2001:0:4136:e378:8000:63bf:f5ff:fffe"),
]


class Addresses(TestCase):
    def test_an_address_that_is_not_of_the_internet_is_not_public(self) -> None:
        for text in NOT_PUBLIC:
            self.assertFalse(is_public(ipaddress.ip_address(text)), text)

    def test_an_address_of_the_internet_is_public(self) -> None:
        for text in ("1.1.1.1", "140.82.121.6", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"):
            self.assertTrue(is_public(ipaddress.ip_address(text)), text)

    @given(st.ip_addresses(v=4))
    def test_an_address_of_ipv4_is_the_same_in_every_form(self, address: ipaddress.IPv4Address) -> None:
        number = int(address)
        for outer in (0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80 | 1):
            self.assertEqual(is_public(ipaddress.IPv6Address(outer)), is_public(address))


class Urls(TestCase):
    def test_only_https_is_called(self) -> None:
        self.assertIsNone(why_not_url("https://id.example.com/token?a=b", False))
        for url in ("http://id.example.com/", "http://127.0.0.1/", "ftp://id.example.com/", "file://id/x"):
            self.assertIn("must begin with https://", why_not_url(url, False) or "", url)
        self.assertIsNone(why_not_url("http://127.0.0.1:8000/", True))

    def test_what_is_no_address_is_not_called(self) -> None:
        for url in (
            "",
            "https://",
            "https:///x",
            "https://a b/",
            "https://[::1/",
            "https://a:0/",
            "https://a/\r\nb",
        ):
            self.assertEqual(why_not_url(url, True), "is not an address", url)
        self.assertIn("user name", why_not_url("https://me:hush@id.example.com/", True) or "")

    @given(st.text())
    def test_no_text_raises(self, url: str) -> None:
        why_not_url(url, True)
        why_not_url(f"https://{url}", False)


class Kept(TestCase):
    def kept(self, control: str | None, **more: str) -> float:
        return kept_seconds(more if control is None else {"cache-control": control, **more})

    def test_a_document_is_kept_as_long_as_it_says_within_bounds(self) -> None:
        self.assertEqual(self.kept("public, max-age=3600, must-revalidate"), 3600)
        self.assertEqual(self.kept('MAX-AGE="3600"'), 3600)
        self.assertEqual(self.kept("max-age=3600", age="600"), 3000)
        self.assertEqual(self.kept("max-age=31536000"), MOST_SECONDS)
        for control in ("max-age=0", "no-store", "no-cache", "private, no-store, max-age=3600"):
            self.assertEqual(self.kept(control), LEAST_SECONDS)

    def test_a_document_that_says_nothing_is_kept_for_ten_minutes(self) -> None:
        for control in (None, "", "public", "max-age", "max-age=x", "s-maxage=9999", "xmax-age=9999"):
            self.assertEqual(self.kept(control), DEFAULT_SECONDS, control)

    @given(st.text(), st.text())
    def test_any_header_gives_a_time_within_bounds(self, control: str, age: str) -> None:
        for written in (control, f"max-age={control}", "max-age=9"):
            self.assertTrue(LEAST_SECONDS <= self.kept(written, age=age) <= MOST_SECONDS)
