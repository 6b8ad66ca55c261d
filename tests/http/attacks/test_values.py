"""Hostile values: compression and JSON bombs, bytes that are not UTF-8, forged hosts, line breaks."""

from __future__ import annotations

import gzip
import hmac
import json
from typing import Any
from urllib.parse import quote

from attrs import evolve
from twisted.trial.unittest import TestCase

from project_service import keys
from project_service.http.caller import digest
from project_service.http.exchange import BadLength
from project_service.http.response import Sink
from tests.fakes.common import parse_response, raw_request
from tests.http.auth.app import AuthApp
from tests.http.storage.app import ANON, FORM, OBJECTS, USER, StorageApp, form, head, part, refused
from tests.http.toy_app import streaming

JSON = {"Content-Type": "application/json"}
# 0xFF, an overlong slash, half a surrogate pair, an incomplete sequence, a code point beyond the last.
NOT_UTF8 = (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x82", b"\xf4\x90\x80\x80")


def percent(data: bytes) -> str:
    return "".join(f"%{byte:02X}" for byte in data)


class Bombs(TestCase):
    def test_json_bombs_are_refused(self) -> None:
        app = AuthApp(self)
        digits = b"1" * 1_000_000
        for bomb in (
            b"[" * 500_000,
            b'{"a":' * 150_000,
            b'{"email":' + b"[" * 250 + b"]" * 250 + b"}",
            digits,
            b"-" + digits,
            b"1e" + digits,
            b"{" + b",".join(b'"k%d":0' % n for n in range(70_000)) + b"}",
        ):
            answer = app.call("POST", "/auth/login", raw=bomb)
            self.assertEqual((answer.status, answer.code), (400, "invalid_json"), bomb[:20])
        many = b"{" + b",".join(b'"k%d":0' % n for n in range(9_000)) + b"}"
        answer = app.call("POST", "/auth/login", raw=many)
        self.assertEqual((answer.status, len(answer.details)), (422, 100))
        # Numbers may have any number of digits, but an address is no number.
        for number in (digits, b"1e400"):
            answer = app.call("POST", "/auth/login", raw=b'{"password":"","email":' + number + b"}")
            self.assertEqual((answer.code, list(answer.details)), ("validation_failed", ["email"]))
        self.assertEqual(app.call("POST", "/auth/login", raw=b" " * (1 << 20) + b"{}").status, 413)
        self.assertEqual(app.sign_up().status, 201)

    def test_compressed_bodies_are_refused_unread(self) -> None:
        bomb = gzip.compress(b"0" * 10_000_000)
        for coding in ("gzip", "deflate", "br", "zstd", "x-gzip", "identity, gzip"):
            answer = AuthApp(self).call("POST", "/auth/login", raw=bomb, Content_Encoding=coding)
            self.assertEqual((answer.status, answer.code), (415, "unsupported_media_type"), coding)
            app = StorageApp()
            coded = {"Content-Encoding": coding}
            self.assertEqual(app.request("PUT", f"{OBJECTS}/k", {**USER, **coded}, bomb).status, 415)
            self.assertEqual(app.request("POST", OBJECTS, {**USER, **FORM, **coded}, bomb).status, 415)
            self.assertEqual(app.stored(), [])

    def test_too_many_form_fields_are_refused_early(self) -> None:
        app = StorageApp()
        fields = b"".join(part(f"f{n}", b"v") for n in range(100_000))
        client = app.connect()
        client.send(head({**FORM, "Transfer-Encoding": "chunked"}))
        sent = 0
        for start in range(0, len(fields), 50_000):
            piece = fields[start : start + 50_000]
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            sent += len(piece)
            answered = client.received()
            if answered:
                break
        self.assertEqual(refused(parse_response(answered)), (400, "invalid_multipart"))
        # It was refused at the hundred-and-first field, long before the last.
        self.assertEqual(sent, 50_000)
        pairs = b"&".join(b"f%d=v" % n for n in range(100_000))
        answer = app.request(
            "POST", OBJECTS, {**USER, "Content-Type": "application/x-www-form-urlencoded"}, pairs
        )
        self.assertEqual(answer.status, 415)
        self.assertEqual(app.stored(), [])

    def test_a_query_of_many_parameters_is_read_and_a_longer_one_refused(self) -> None:
        app = StorageApp()
        query = "&".join(f"a{n % 10}" for n in range(9_000))
        self.assertEqual(app.request("GET", f"{OBJECTS}?{query}", ANON).status, 200)
        self.assertEqual(app.request("GET", f"{OBJECTS}?{query}&{query}", ANON).status, 414)


class NotText(TestCase):
    def test_bytes_that_are_not_utf_8_in_storage(self) -> None:
        app = StorageApp()
        for raw in NOT_UTF8:
            sent, asked = raw.decode("latin-1"), percent(raw)
            post = {**USER, **JSON}
            for answer, status in (
                (app.request("GET", f"{OBJECTS}/{asked}", ANON), 422),
                (app.request("PUT", f"{OBJECTS}/{asked}", USER, b"x"), 422),
                (app.request("DELETE", f"{OBJECTS}/a/{asked}", USER), 422),
                (app.request("GET", f"/storage/buckets/{asked}/objects", ANON), 404),
                (app.request("GET", f"{OBJECTS}?prefix={asked}", ANON), 400),
                (app.request("GET", f"{OBJECTS}?{asked}=1", ANON), 400),
                (app.request("GET", f"{OBJECTS}?page_token={asked}", ANON), 400),
                (app.request("GET", f"/storage/download?token={asked}"), 400),
                (app.request("GET", OBJECTS, {"X-Service-Key": sent}), 401),
                (app.request("GET", OBJECTS, {**ANON, "Authorization": f"Bearer {sent}"}), 401),
                (app.request("POST", f"{OBJECTS[:-8]}/delete", post, b'{"keys": ["%b"]}' % raw), 400),
                (app.request("POST", f"{OBJECTS[:-8]}/presign", post, b'{"key": "%b"}' % raw), 400),
                (app.request("PUT", f"{OBJECTS}/k", {**USER, "Content-Type": f"text/{sent}"}, b"x"), None),
                (app.request("GET", f"{OBJECTS}/none", {**ANON, "If-None-Match": sent, "Range": sent}), 404),
                (app.upload(form(part("key", raw), part("file", b"x", "a"))), 422),
                (app.upload(form(part("file", b"x", sent))), None),
            ):
                self.assertTrue(answer.status == status or (status is None and answer.status < 500), answer)

    def test_bytes_that_are_not_utf_8_in_authentication(self) -> None:
        app = AuthApp(self)
        token = app.sign_up().data["access_token"]
        for raw in NOT_UTF8:
            for body in (
                b'{"email": "%b@example.test", "password": "long enough"}',
                b'{"email": "a@example.test", "password": "long enough%b"}',
                b'{"email": "a@example.test", "password": "long enough", "metadata": {"%b": 1}}',
            ):
                answer = app.call("POST", "/auth/signup", raw=body % raw)
                self.assertEqual((answer.status, answer.code), (400, "invalid_json"))
            answer = app.call("POST", f"/auth/logout?scope={percent(raw)}", token=token)
            self.assertEqual((answer.status, answer.code), (400, "invalid_query"))
        for lone in (b'"\\ud800"', b'"\\udfff x"'):
            answer = app.call("POST", "/auth/signup", raw=b'{"email": %b, "password": "long enough"}' % lone)
            self.assertEqual((answer.status, answer.code), (400, "invalid_json"))


class ForgedHosts(TestCase):
    """Links are not made for hosts that a client forges."""

    def link(self, app: StorageApp, *hosts: str) -> Any:
        app.put("k", bucket="shut")
        client = app.connect()
        body = b'{"key": "k"}'
        lines = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        raw = head(lines, "POST", "/storage/buckets/shut/presign").replace(
            b"Host: x\r\n", "".join(f"{host}\r\n" for host in hosts).encode()
        )
        client.send(raw + body)
        response = parse_response(client.received())
        return json.loads(response.body).get("url", response.status)

    def test_with_public_url_links_use_only_that(self) -> None:
        app = StorageApp()
        app.edge.settings = evolve(app.edge.settings, public_url="https://api.example.test")
        for forged in ("X-Forwarded-Host: evil.test", "Forwarded: host=evil.test", "X-Forwarded-Proto: http"):
            url = self.link(app, "Host: evil.test", forged)
            self.assertTrue(url.startswith("https://api.example.test/storage/download?token="), url)

    def test_without_public_url_the_host_header_must_be_a_host(self) -> None:
        app = StorageApp()
        url = self.link(app, "Host: api.test:81", "X-Forwarded-Host: evil.test", "X-Forwarded-Proto: https")
        self.assertTrue(url.startswith("http://api.test:81/storage/download?token="), url)
        for host in (
            "a@evil.test",
            "evil.test/x?",
            "evil.test#",
            "a\tb",
            "a b",
            'a"b',
            "a\\b",
            "%65vil.test",
        ):
            self.assertEqual(self.link(app, f"Host: {host}"), 400, host)
        self.assertEqual(self.link(app, "Host: api.test", "Host: evil.test"), 400)


class LineBreaks(TestCase):
    def test_line_breaks_cannot_get_into_response_headers(self) -> None:
        app = StorageApp()
        for name in ("a\r\nSet-Cookie: x=1.txt", "a\nb", "a\rb", "a\x00b", "a\x85b"):
            answer = app.request("PUT", f"{OBJECTS}/d/{percent(name.encode())}", USER, b"x")
            self.assertEqual(refused(answer), (422, "invalid_key"), name)
        for name in ('\xe9"; filename="evil.html', "a\u2028b\u0130", "a%0d%0aSet-Cookie: x", "a\\b;c=d"):
            path = f"{OBJECTS}/d/{percent(name.encode())}"
            self.assertEqual(app.request("PUT", path, USER, b"x").status, 201)
            shown = app.request("GET", path, USER).header("content-disposition") or ""
            self.assertTrue(
                shown.isascii() and shown.isprintable() and shown.count('"') == 2,
                shown,
            )
            self.assertTrue(shown.endswith(f"; filename*=UTF-8''{quote(name, safe='')}"), shown)
        answer = app.upload(form(part("file", b"x", "a%0d%0aSet-Cookie: x", "text/plain")))
        self.assertEqual(answer.status, 201)
        for row in list(app.tables.objects.values()):
            stored = app.request("GET", f"{OBJECTS}/{percent(row.key.encode())}", USER)
            self.assertIsNone(stored.header("set-cookie"))


class Announced(TestCase):
    def test_a_stream_of_another_length_than_announced_is_aborted(self) -> None:
        for written, sent in ((b"abc", b"abc"), (b"abcHTTP/1.1 200 forged", b"")):

            async def source(sink: Sink, data: bytes = written) -> None:
                sink.write(data)

            client = streaming(source, 5).connect()
            client.send(raw_request("GET", "/x", {}, None) * 2)
            self.assertEqual(client.received().partition(b"\r\n\r\n")[2], sent)
            self.assertTrue(client.transport.aborted)
            self.assertEqual(len(self.flushLoggedErrors(BadLength)), 1)


class Comparing(TestCase):
    def test_a_presented_key_is_compared_with_every_known_one_by_digest(self) -> None:
        known = [keys.make("anon", bytes([n]).__mul__) for n in range(5)]

        class Rows:
            async def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
                return [(digest(key), "anon") for key in known]

        ring = keys.KeyRing(Rows())
        self.successResultOf(ring.reload())
        compared: list[tuple[bytes, bytes]] = []
        real = hmac.compare_digest

        def counting(one: bytes, other: bytes) -> bool:
            compared.append((one, other))
            return real(one, other)

        self.patch(hmac, "compare_digest", counting)
        for presented in (known[0], known[-1], known[0][:-1] + "x", "rubbish", ""):
            compared.clear()
            ring.kind_of(presented)
            # Digests of equal length are compared, so nothing of a key decides how long it takes.
            self.assertEqual(compared, [(digest(key), digest(presented)) for key in known])
