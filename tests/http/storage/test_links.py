"""Download links: made, used once, expired and removed; their token is never stored or logged."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.http.response import JSON
from project_service.storage.s3.connection import ObjectStream
from tests.captured_log import logged_until_the_end
from tests.fakes.storage import FakeLinks
from tests.fakes.store import MemoryStore
from tests.http.storage.app import SERVICE, USER, StorageApp, code, refused

PRESIGN = "/storage/buckets/shut/presign"


class Links(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("d/k.txt", b"hello", bucket="shut")

    def made(self, **given: Any) -> dict[str, Any]:
        response = self.app.post(PRESIGN, {"key": "d/k.txt", **given})
        self.assertEqual(response.status, 200, response.body)
        self.assertEqual(response.header("cache-control"), "no-store")
        value: dict[str, Any] = json.loads(response.body)
        return value

    def path(self, **given: Any) -> str:
        url = str(self.made(**given)["url"])
        return url.removeprefix("http://api.example.test")

    def test_what_presign_returns(self) -> None:
        made = self.made()
        self.assertEqual(made["method"], "GET")
        self.assertEqual(made["expires_at"], "2026-11-21T01:00:00.000Z")
        self.assertRegex(
            made["url"], r"^http://api\.example\.test/storage/download\?token=[A-Za-z0-9_-]{43}$"
        )
        self.assertEqual(self.made(expires_in_seconds=604800)["expires_at"], "2026-11-28T00:00:00.000Z")

    def test_only_a_digest_is_stored(self) -> None:
        token = self.path().partition("=")[2]
        (kept,) = self.app.tables.links
        self.assertEqual(len(kept), 32)
        self.assertNotIn(token, repr(self.app.tables.links))

    def test_one_get_needs_no_header_and_uses_it_up(self) -> None:
        path = self.path()
        response = self.app.request("GET", path)
        self.assertEqual((response.status, response.body), (200, b"hello"))
        self.assertEqual(response.header("referrer-policy"), "no-referrer")
        self.assertEqual(response.header("cache-control"), "no-store")
        self.assertIn("attachment", response.header("content-disposition") or "")
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_used"))
        self.assertEqual(self.app.request("HEAD", path).status, 410)

    def test_refusals_may_not_be_cached(self) -> None:
        """Without the header a cache may store 404 and 410 (RFC 9110 section 15.1)."""
        path = self.path()
        for target, headers, status in (
            (path, {"Range": "bytes=9-"}, 416), (path, {"If-Match": '"x"'}, 412), (path, {}, 200), (path, {}, 410),
            ("/storage/download?token=x", {}, 404), ("/storage/download", {}, 422),
        ):  # fmt: skip
            response = self.app.request("GET", target, headers)
            self.assertEqual(response.status, status)
            self.assertEqual(response.header("cache-control"), "no-store", status)
            self.assertEqual(response.header("referrer-policy"), "no-referrer", status)

    def test_what_a_link_for_any_number_of_downloads_sends_may_be_kept_while_it_works(self) -> None:
        path = self.path(uses=0, expires_in_seconds=100)
        etag = self.app.request("GET", path).header("etag") or ""
        for method, headers, status in (
            ("GET", {}, 200),
            ("HEAD", {}, 200),
            ("GET", {"Range": "bytes=1-2"}, 206),
            ("GET", {"If-None-Match": etag}, 304),
        ):
            response = self.app.request(method, path, headers)
            self.assertEqual(response.status, status)
            self.assertEqual(response.header("cache-control"), "private, max-age=100")
            self.assertEqual(response.header("referrer-policy"), "no-referrer")
        self.assertEqual(
            self.app.request("GET", path, {"Range": "bytes=9-"}).header("cache-control"), "no-store"
        )
        self.app.clock.advance(30.5)
        self.assertEqual(self.app.request("GET", path).header("cache-control"), "private, max-age=69")
        for said, expected in (
            ("public, max-age=5, immutable", "max-age=5"),
            ("max-age=5000, stale-if-error=9", "max-age=69"),
            ("no-store", "no-store"),
            ("no-cache", "no-cache"),
            ("public", "max-age=69"),
        ):
            self.app.put("d/k.txt", b"hello", bucket="shut", Cache_Control=said)
            response = self.app.request("GET", path)
            self.assertEqual(response.header("cache-control"), f"private, {expected}", said)
        self.app.put("d/k.txt", b"hello", bucket="shut")
        self.app.rules("shut", cache_control="max-age=7")
        self.assertEqual(self.app.request("GET", path).header("cache-control"), "private, max-age=7")
        # One that counts its uses must be asked each time.
        path = self.path(uses=2)
        self.assertEqual(self.app.request("GET", path).header("cache-control"), "no-store")

    def test_inline(self) -> None:
        response = self.app.request("GET", self.path() + "&inline=true")
        self.assertTrue((response.header("content-disposition") or "").startswith("inline;"))
        self.assertTrue((response.header("content-security-policy") or "").startswith("sandbox;"))

    def test_no_project_key_is_needed_but_a_wrong_one_is_refused(self) -> None:
        path = self.path()
        response = self.app.request("GET", path, {"X-Service-Key": "psk_anon_wrong"})
        self.assertEqual(refused(response), (401, "project_key_invalid"))
        self.assertEqual(self.app.request("GET", path).status, 200)

    def test_a_bearer_token_is_ignored(self) -> None:
        """A client may send along what it has, and that may have expired."""
        response = self.app.request("GET", self.path(), {"Authorization": "Bearer expired"})
        self.assertEqual((response.status, response.body), (200, b"hello"))

    def test_a_range_uses_it_up_too(self) -> None:
        path = self.path()
        response = self.app.request("GET", path, {"Range": "bytes=1-2"})
        self.assertEqual((response.status, response.body), (206, b"el"))
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_used"))

    def test_an_empty_object_uses_it_up_too(self) -> None:
        self.app.put("d/k.txt", b"", bucket="shut")
        path = self.path()
        response = self.app.request("GET", path)
        self.assertEqual((response.status, response.body), (200, b""))
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_used"))

    def test_a_use_that_the_database_refused_opens_nothing(self) -> None:
        """That is so whatever a second look at the link says, since the clock may have been set back in between."""
        path = self.path()

        async def refuse(*_: object) -> bool:
            return False

        self.patch(FakeLinks, "use", refuse)
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_used"))

    def test_responses_without_the_object_do_not_use_it_up(self) -> None:
        path = self.path()
        etag = next(iter(self.app.tables.objects.values())).etag
        self.assertEqual(self.app.request("HEAD", path).status, 200)
        self.assertEqual(self.app.request("GET", path, {"If-None-Match": f'"{etag}"'}).status, 304)
        self.assertEqual(self.app.request("GET", path, {"If-Match": '"x"'}).status, 412)
        self.assertEqual(self.app.request("GET", path, {"Range": "bytes=9-"}).status, 416)
        self.app.store.away = True
        self.assertEqual(refused(self.app.request("GET", path)), (503, "store_unavailable"))
        self.app.store.away = False
        self.assertEqual(self.app.request("GET", path).status, 200)

    def test_a_prefetch_does_not_use_it_up(self) -> None:
        path = self.path()
        for name, value in (
            ("Sec-Purpose", "prefetch"),
            ("Sec-Purpose", "prefetch;prerender"),
            ("Sec-Purpose", "Prefetch; anonymous-client-ip"),
            ("Purpose", "prefetch"),
        ):
            for method in ("GET", "HEAD"):
                response = self.app.request(method, path, {name: value, "Accept": "text/html"})
                self.assertEqual((response.status, response.header("retry-after")), (503, "2"), value)
                self.assertEqual(response.header("cache-control"), "no-store")
                if method == "GET":
                    self.assertEqual(code(response), "prefetch_refused")
        self.assertEqual(self.app.store.streams, [])
        for other in ("navigate", "prefetching", ""):
            again = self.path()
            self.assertEqual(self.app.request("GET", again, {"Sec-Purpose": other}).status, 200, other)
        self.assertEqual(self.app.request("GET", path).status, 200)

    def test_a_link_without_a_limit_may_be_prefetched(self) -> None:
        self.assertEqual(self.app.request("GET", self.path(uses=0), {"Sec-Purpose": "prefetch"}).status, 200)

    def etag(self) -> str:
        return f'"{self.app.tables.objects["shut", "d/k.txt"].etag}"'

    def test_a_download_that_broke_off_can_be_continued_for_ten_minutes(self) -> None:
        path = self.path()
        rest = {"Range": "bytes=2-", "If-Range": self.etag()}
        self.assertEqual(self.app.request("GET", path).status, 200)
        for seconds in (0, 60, 539):
            self.app.clock.advance(seconds)
            for asked, body in (("bytes=2-", b"llo"), ("bytes=1-2", b"el"), ("bytes=-1", b"o")):
                response = self.app.request("GET", path, {**rest, "Range": asked})
                self.assertEqual((response.status, response.body), (206, body), (seconds, asked))
        self.assertEqual(self.app.request("HEAD", path, rest).status, 206)
        self.app.clock.advance(1)
        self.assertEqual(refused(self.app.request("GET", path, rest)), (410, "token_used"))

    def test_only_a_continuation_is_no_use_of_its_own(self) -> None:
        path = self.path()
        self.app.request("GET", path, {"Range": "bytes=0-1"})
        modified = {"If-Range": "Sat, 21 Nov 2026 00:00:00 GMT"}
        self.app.clock.advance(5)
        for headers in (
            {},
            {"If-Range": self.etag()},
            {"Range": "bytes=2-"},
            {"Range": "bytes=2-", "If-Range": '"other"'},
            {"Range": "bytes=2-", "If-Range": "W/" + self.etag()},
            {"Range": "bytes=2-", **modified},
            *(
                {"Range": asked, "If-Range": self.etag()}
                for asked in (
                    "bytes=0-",
                    "bytes=0-1",
                    "bytes=-5",
                    "bytes=-99",
                    "bytes=1-2,3-4",
                    "bytes=9-",
                    "x=1-",
                    "1",
                )
            ),
            {"Range": "bytes=2-", "If-Match": self.etag()},
            {"If-None-Match": self.etag()},
            {"If-Match": '"other"'},
        ):
            for method in ("GET", "HEAD"):
                response = self.app.request(method, path, headers)
                self.assertEqual(response.status, 410, (method, headers))
        rest = {"Range": "bytes=2-", "If-Range": self.etag()}
        self.assertEqual(self.app.request("GET", path, rest).status, 206)
        # The object was replaced, so there is nothing to continue.
        self.app.put("d/k.txt", b"newer", bucket="shut")
        self.assertEqual(refused(self.app.request("GET", path, rest)), (410, "token_used"))

    def test_a_continuation_leaves_the_other_uses_to_others(self) -> None:
        path = self.path(uses=2)
        rest = {"Range": "bytes=2-", "If-Range": self.etag()}
        statuses = [
            self.app.request("GET", path, headers).status for headers in ({}, rest, rest, {}, rest, {})
        ]
        self.assertEqual(statuses, [200, 206, 206, 200, 206, 410])
        # Whoever has used no link yet has nothing to continue.
        fresh = self.path()
        self.assertEqual(self.app.request("GET", fresh, rest).status, 206)
        self.assertEqual(self.app.request("GET", fresh, {}).status, 410)

    def test_nothing_is_continued_after_the_link_has_expired(self) -> None:
        path = self.path(expires_in_seconds=10)
        self.app.request("GET", path)
        self.app.clock.advance(10)
        rest = {"Range": "bytes=2-", "If-Range": self.etag()}
        self.assertEqual(refused(self.app.request("GET", path, rest)), (410, "token_expired"))

    def test_a_person_sees_a_page_instead_of_json(self) -> None:
        browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"}
        used, expired, moved = self.path(), self.path(expires_in_seconds=1), self.path()
        self.app.request("GET", used)
        self.app.post("/storage/buckets/shut/move", {"from": "d/k.txt", "to": "other"})
        self.app.clock.advance(1)
        for path, status, says in (
            (used, 410, b"This link has been used."),
            (expired, 410, b"This link has expired."),
            ("/storage/download?token=x", 404, b"There is no such link."),
            (moved, 404, b"There is no object with that key."),
        ):
            page = self.app.request("GET", path, browser)
            self.assertEqual((page.status, page.header("content-type")), (status, "text/html; charset=utf-8"))
            self.assertIn(b"<p>" + says, page.body)
            self.assertNotIn(path.partition("=")[2].encode() + b'"', page.body)
            self.assertEqual(
                page.header("content-security-policy"), "default-src 'none'; style-src 'unsafe-inline'"
            )
            for name, value in (
                ("cache-control", "no-store"),
                ("referrer-policy", "no-referrer"),
                ("x-content-type-options", "nosniff"),
            ):
                self.assertEqual(page.header(name), value)
            for accept in (
                "*/*", "application/json", "text/html;q=0", "application/json, text/html;q=0.5", "image/*", "text/*",
                "image/avif,image/webp,*/*;q=0.8", "text/htmlx", "", "nonsense", "text/html;q=x",
            ):  # fmt: skip
                plain = self.app.request("GET", path, {"Accept": accept})
                self.assertEqual((plain.status, plain.header("content-type")), (status, JSON), accept)

    def test_a_person_sees_a_page_for_a_link_that_was_cut_short(self) -> None:
        link = self.path(uses=0)
        for path, status in (
            ("/storage/download", 422),
            ("/storage/download?token=", 422),
            ("/storage/download?token=x&token=y", 400),
            (f"{link}&inline=tru", 422),
        ):
            page = self.app.request("GET", path, {"Accept": "text/html,*/*;q=0.8"})
            self.assertEqual((page.status, page.header("content-type")), (status, "text/html; charset=utf-8"))
            self.assertIn(b"<p>Its address was changed, or cut short on the way.", page.body)
            self.assertEqual(self.app.request("GET", path).header("content-type"), JSON)
        self.assertEqual(self.app.request("GET", link, {"Accept": "text/html"}).status, 200)

    def test_several_uses_and_unlimited_uses(self) -> None:
        twice, always = self.path(uses=2), self.path(uses=0)
        self.assertEqual([self.app.request("GET", twice).status for _ in range(3)], [200, 200, 410])
        self.assertEqual([self.app.request("GET", always).status for _ in range(5)], [200] * 5)

    def test_an_expired_link_is_410(self) -> None:
        path = self.path(expires_in_seconds=10, uses=0)
        self.app.clock.advance(9.9)
        self.assertEqual(self.app.request("GET", path).status, 200)
        self.app.clock.advance(0.1)
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_expired"))

    def test_a_used_link_expires_too(self) -> None:
        path = self.path(expires_in_seconds=10)
        self.app.request("GET", path)
        self.app.clock.advance(10)
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_expired"))

    def test_unknown_tokens_are_404(self) -> None:
        for token in ("x", "a" * 43, "%00", "%C3%A4"):
            response = self.app.request("GET", f"/storage/download?token={token}")
            self.assertEqual(refused(response), (404, "token_not_found"))
        for query in ("", "?token=", "?other=x"):
            self.assertEqual(
                refused(self.app.request("GET", f"/storage/download{query}")), (422, "validation_failed")
            )

    def test_a_request_that_loses_the_race_drops_its_read(self) -> None:
        path = self.path()
        links = self.app.storage.links
        token_hash = next(iter(self.app.tables.links))
        find = links.rows.find
        raced: list[bool] = []

        async def slow_find(_: object, token: bytes) -> object:
            link = await find(token)
            if not raced:
                raced.append(await links.rows.use(token_hash, self.app.now()))
            return link

        self.patch(type(links.rows), "find", slow_find)
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_used"))
        self.assertTrue(self.app.store.streams[-1].closed)

    def test_a_link_that_expires_while_the_object_is_fetched(self) -> None:
        path = self.path(expires_in_seconds=10)
        real = MemoryStore.open

        async def late(store: MemoryStore, *args: Any) -> ObjectStream:
            self.app.clock.advance(10)
            return await real(store, *args)

        self.patch(MemoryStore, "open", late)
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_expired"))
        self.assertTrue(self.app.store.streams[-1].closed)

    def test_a_link_belongs_to_its_key(self) -> None:
        path = self.path(uses=0)
        self.app.put("d/k.txt", b"newer", bucket="shut")
        self.assertEqual(self.app.request("GET", path).body, b"newer")
        self.app.post("/storage/buckets/shut/move", {"from": "d/k.txt", "to": "other"})
        self.assertEqual(refused(self.app.request("GET", path)), (404, "object_not_found"))

    def test_a_whole_number_may_be_written_in_any_way_that_json_has(self) -> None:
        headers = {**USER, "Content-Type": "application/json"}
        for text, status in (
            ("60.0", 200),
            ("6e1", 200),
            ("6.048E5", 200),
            ("1e15", 422),
            ("1e400", 422),
            ("-1e400", 422),
            ("0.5e400", 422),
            ("9" * 20, 422),
            ("9" * 400, 422),
            ("9" * 5000, 422),
            ("-" + "9" * 5000, 422),
            ("6e-1", 422),
        ):
            for field in ("expires_in_seconds", "uses"):
                body = f'{{"key": "d/k.txt", "{field}": {text}}}'.encode()
                response = self.app.request("POST", PRESIGN, headers, body)
                self.assertEqual(response.status, status, body[:80])

    def test_what_presign_refuses(self) -> None:
        self.assertEqual(refused(self.app.post(PRESIGN, {"key": "none"})), (404, "object_not_found"))
        for given in (
            {}, {"key": 1}, {"key": None}, {"key": "d/k.txt", "uses": -1}, {"key": "d/k.txt", "uses": "1"},
            {"key": "d/k.txt", "uses": True}, {"key": "d/k.txt", "more": 1},
            *({"key": "d/k.txt", "expires_in_seconds": bad} for bad in (0, -1, 604801, "60", 1.5, True, None)),
        ):  # fmt: skip
            response = self.app.post(PRESIGN, given)
            self.assertEqual(refused(response), (422, "validation_failed"), given)
        self.assertEqual(refused(self.app.post(PRESIGN, {"key": "../x"})), (422, "invalid_key"))
        self.assertEqual(refused(self.app.post(PRESIGN, ["key"])), (400, "invalid_json"))
        self.assertEqual(self.app.tables.links, {})

    def test_the_token_is_in_no_log_and_no_metric(self) -> None:
        events = logged_until_the_end(self)
        path = self.path()
        token = path.partition("=")[2]
        for _ in range(2):
            self.app.request("GET", path, {**SERVICE, "Referer": "http://x/"})
        self.assertTrue(events)
        self.assertNotIn(token, repr(events))
        self.assertNotIn(token.encode(), self.app.metrics.exposition())
