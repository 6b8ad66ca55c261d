"""The edge's pure parts: queries, origins, request ids, redaction, heads."""

from __future__ import annotations

import ipaddress
import signal
from urllib.parse import quote_plus

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service import log
from project_service.errors import ApiError
from project_service.http import head, response
from project_service.http.head import HeaderView
from project_service.http.request import parse_query


class Queries(TestCase):
    @given(st.lists(st.tuples(st.text(min_size=1), st.text())))
    def test_an_encoded_query_is_parsed_in_order(self, pairs: list[tuple[str, str]]) -> None:
        encodable = [(n, v) for n, v in pairs if _utf8(n) and _utf8(v)]
        raw = "&".join(f"{quote_plus(n)}={quote_plus(v)}" for n, v in encodable)
        self.assertEqual(parse_query(raw.encode()), encodable)

    @given(st.binary())
    def test_any_query_is_parsed_or_refused(self, raw: bytes) -> None:
        try:
            parse_query(raw)
        except ApiError as fault:
            self.assertEqual((fault.status, fault.code), (400, "invalid_query"))

    def test_only_ampersands_separate_parameters(self) -> None:
        self.assertEqual(
            parse_query(b"a=1;b=2&c&&=d&a=3"), [("a", "1;b=2"), ("c", ""), ("", "d"), ("a", "3")]
        )


class Origins(TestCase):
    @given(st.lists(st.binary(max_size=40), max_size=5), st.ip_addresses())
    def test_forwarded_headers_of_an_untrusted_peer_are_ignored(
        self, hops: list[bytes], peer: object
    ) -> None:
        headers = HeaderView([(b"x-forwarded-for", hop) for hop in hops])
        trusted = (ipaddress.ip_network("198.51.100.0/30"),)
        origin = head.locate(str(peer), False, headers, trusted)
        if peer not in trusted[0]:
            self.assertEqual(origin.address, str(peer))

    @given(st.lists(st.ip_addresses(v=4), max_size=5), st.binary(max_size=20))
    def test_the_clients_address_is_always_valid(self, hops: list[object], rubbish: bytes) -> None:
        chain = b", ".join([rubbish, *(str(hop).encode() for hop in hops)])
        trusted = head.parse_networks(["0.0.0.0/0"])
        origin = head.locate("10.0.0.1", False, HeaderView([(b"x-forwarded-for", chain)]), trusted)
        ipaddress.ip_address(origin.address)

    def test_addresses_in_x_forwarded_for_may_have_ports_and_brackets(self) -> None:
        trusted = head.parse_networks(["10.0.0.0/8", "::1"])
        for hop, expected in {
            "203.0.113.5:4711": "203.0.113.5",
            "[2001:db8::1]:443": "2001:db8::1",
            "[2001:db8::1]": "2001:db8::1",
            "2001:db8::1": "2001:db8::1",
            "[2001:db8::1]x": "10.1.1.1",
            "unknown": "10.1.1.1",
            "203.0.113.5,, 10.1.1.2 ,": "203.0.113.5",
        }.items():
            headers = HeaderView([(b"x-forwarded-for", hop.encode())])
            self.assertEqual(head.locate("10.1.1.1", False, headers, trusted).address, expected)

    def test_forwarded_headers_are_believed_from_trusted_proxies_only(self) -> None:
        """A Unix socket's peer is a proxy on this machine; a dual-stack socket shows IPv4 peers as mapped
        addresses."""
        forwarded = HeaderView([(b"x-forwarded-for", b"203.0.113.5"), (b"x-forwarded-proto", b"https")])
        for peer, trusted, address in (
            (None, (), "127.0.0.1"),
            (None, ("10.0.0.0/8",), "203.0.113.5"),
            ("10.1.1.1", ("10.2.3.4/8",), "203.0.113.5"),
            ("::ffff:10.1.1.1", ("10.0.0.0/8",), "203.0.113.5"),
            ("::ffff:11.1.1.1", ("10.0.0.0/8",), "::ffff:11.1.1.1"),
            ("::ffff:10.1.1.1", ("::ffff:10.1.1.1",), "203.0.113.5"),
            ("10.1.1.1", ("::ffff:10.0.0.0/104",), "203.0.113.5"),
            ("::1", ("::/64",), "203.0.113.5"),
            ("11.1.1.1", ("10.0.0.0/8",), "11.1.1.1"),
        ):
            origin = head.locate(peer, False, forwarded, head.parse_networks(trusted))
            scheme = "https" if address == "203.0.113.5" else "http"
            self.assertEqual((origin.address, origin.scheme), (address, scheme), (peer, trusted))

    def test_the_last_forwarded_proto_is_the_scheme_if_valid(self) -> None:
        trusted = head.parse_networks(["10.0.0.0/8"])
        for protocol, scheme in (
            (b"https", "https"),
            (b"http, HTTPS ", "https"),
            (b"https,http", "http"),
            (b"javascript", "http"),
            (b"https,", "http"),
        ):
            headers = HeaderView([(b"x-forwarded-proto", protocol)])
            self.assertEqual(head.locate("10.1.1.1", False, headers, trusted).scheme, scheme, protocol)
            self.assertEqual(head.locate("11.1.1.1", True, headers, trusted).scheme, "https", protocol)

    def test_a_peer_that_is_no_address_is_never_trusted(self) -> None:
        """A PROXY header may name anything."""
        trusted = head.parse_networks(["0.0.0.0/0", "::/0"])
        headers = HeaderView([(b"x-forwarded-for", b"203.0.113.5")])
        self.assertEqual(head.locate("somebody", False, headers, trusted).address, "somebody")

    def test_an_invalid_host_header_does_not_get_into_links(self) -> None:
        for bad in (b"a b", b"a/b", b'a"b', b"<x>", b"a@b", b""):
            headers = HeaderView([(b"host", bad)])
            self.assertEqual(head.locate("10.1.1.1", False, headers, ()).host, head.LOCAL_HOST, bad)
        good = HeaderView([(b"host", b"[::1]:8080")])
        self.assertEqual(head.locate("10.1.1.1", False, good, ()).host, "[::1]:8080")


class Logs(TestCase):
    def test_secrets_are_redacted(self) -> None:
        for secret, text in {
            "psk_service_abcdefgh12345678": "key psk_service_abcdefgh12345678 used",
            "abc123": "GET /storage/download?token=abc123 200",
            "hunter2": "connect postgresql://u:hunter2@h/db",
            "hunter3": "password=hunter3 host=h",
            "unt er4": r"password='h\'unt er4' host=h",
            "eyJhbGciOiJ.eyJzdWIiOiI.c2lnbmF0dXJl": "Bearer eyJhbGciOiJ.eyJzdWIiOiI.c2lnbmF0dXJl",
            "abcdefgh": f"DETAIL:  Failing row contains (ada@a.test, $2b$12${'abcdefgh' * 6}./AZ0, {{}}).",
        }.items():
            self.assertNotIn(secret, log.redact(text))
        self.assertEqual(log.redact("password='a b' host=h"), "password=*** host=h")
        for path in ("%3Ftoken=abc", "%3ftoken=abc", "%3Ftoken%3Dabc", "%3ftoken%3dabc", "/abc"):
            for text in (f"GET /storage/download{path} 404", f"/storage/download{path}"):
                self.assertEqual(log.redact(text), text.replace("abc", "***"))
        kept = "GET /storage/buckets/b/objects/storage/download/abc 200"
        self.assertEqual(log.redact(kept), kept)
        self.assertEqual(log.redact("GET /auth/user 200"), "GET /auth/user 200")

    def test_redacting_text_that_looks_like_tokens_takes_linear_time(self) -> None:
        """Anybody may request such paths. With quadratic time these would take hours."""
        before = signal.signal(signal.SIGVTALRM, _out_of_time)
        self.addCleanup(signal.signal, signal.SIGVTALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 30)
        for piece in ("$2", "$2b$12$a", "eyJ", "eyJpsk_", "eyJaaaaaaaa", "eyJaaaaaaaa.b!", "eyJpsk_anon_a!"):
            text = piece * 200_000
            self.assertEqual(log.redact(text), text)
        self.assertEqual(log.redact("eyJ-psk_anon_12345678!"), "eyJ-***!")

    @given(st.binary(max_size=200))
    def test_only_a_valid_request_id_is_kept(self, sent: bytes) -> None:
        self.assertRegex(log.sent_request_id(sent) or "made", r"\A[A-Za-z0-9._-]{1,128}\Z")

    @given(st.text("AZaz09._-", min_size=1, max_size=128))
    def test_every_valid_request_id_is_kept(self, sent: str) -> None:
        self.assertEqual(log.sent_request_id(sent.encode()), sent)


def _out_of_time(*_: object) -> None:
    raise AssertionError("the time grows faster than the text")


class Heads(TestCase):
    def test_a_status_has_its_standard_reason_phrase(self) -> None:
        for status, line in (
            (200, b"200 OK"),
            (406, b"406 Not Acceptable"),
            (418, b"418 I'm a teapot"),
            (599, b"599 Unknown"),
        ):
            self.assertEqual(response.head_bytes(status, ()), b"HTTP/1.1 " + line + b"\r\n\r\n")

    @given(st.text(), st.text())
    def test_no_header_can_break_the_framing(self, name: str, value: str) -> None:
        try:
            raw = response.head_bytes(200, [(name, value)])
        except ValueError:
            return
        self.assertEqual(raw.count(b"\r\n"), 3)
        self.assertNotIn(b"\n", raw.replace(b"\r\n", b""))

    def test_line_ends_in_headers_are_refused(self) -> None:
        for end in ("\n", "\r", "\r\n"):
            for name, value in ((f"A{end}", "b"), ("A", f"b{end}C: d")):
                with self.assertRaises(ValueError):
                    response.head_bytes(200, [(name, value)])


class Targets(TestCase):
    def test_a_request_target_is_a_path_an_absolute_url_or_an_asterisk(self) -> None:
        for target, path in {
            b"/a?b": b"/a?b",
            b"*": b"*",
            b"http://a.test": b"/",
            b"HTTPS://a.test:443/b//c?d": b"/b//c?d",
            b"http://a.test?d": b"/?d",
            b"http://[::1]:80/": b"/",
            b"": None,
            b"a": None,
            b"a.test:443": None,
            b"ftp://a.test/b": None,
            b"http:///b": None,
            b"http://u@a.test/": None,
            b"/a#b": None,
            b"/a b": None,
            b"/\xc3\xa4": None,
        }.items():
            self.assertEqual(head.origin_form(target), path, target)


def _utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
