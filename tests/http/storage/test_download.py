"""Downloads: conditions, ranges, headers, the cache of small objects, and bodies that come in any way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from urllib.parse import urlsplit

from attrs import evolve
from twisted.trial.unittest import TestCase

from project_service.storage.s3.reading import ObjectLost
from tests.fakes.common import Response
from tests.fakes.store import FakeStream
from tests.http.storage.app import ANON, FORM, SERVICE, USER, StorageApp, form, part, refused

BASE = "/storage/buckets/open/objects"
PAYLOAD = bytes(range(100))
FIRST = "Sat, 21 Nov 2026 00:00:00 GMT"
SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self'"
BEYOND = "1 Jan 99999999999999999999 0:0"


class Whole(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.etag = json.loads(self.app.put("d/%C3%B6.png", PAYLOAD).body)["etag"]

    def test_headers_and_bytes(self) -> None:
        response = self.app.get("d/%C3%B6.png")
        self.assertEqual((response.status, response.body), (200, PAYLOAD))
        expected = {
            "Content-Type": "image/png",
            "Content-Length": "100",
            "Content-Disposition": "attachment; filename=\"_.png\"; filename*=UTF-8''%C3%B6.png",
            "X-Content-Type-Options": "nosniff",
            "ETag": f'"{self.etag}"',
            "Last-Modified": FIRST,
            "Accept-Ranges": "bytes",
            "Cache-Control": "public, no-cache",
            "Content-Security-Policy": SANDBOX,
        }
        self.assertEqual({name: response.header(name) for name in expected}, expected)

    def test_isolated_pages_may_show_what_every_origin_may_read(self) -> None:
        """Cross-Origin-Resource-Policy, without which a page with COEP ``require-corp`` shows no image."""
        made = self.app.post("/storage/buckets/open/presign", {"key": "d/ö.png", "uses": 0})
        link = json.loads(made.body)["url"].removeprefix("http://api.example.test")
        for path in (f"{BASE}/d/%C3%B6.png", link):
            for headers, status in (({}, 200), ({"Range": "bytes=1-2"}, 206), ({"If-None-Match": "*"}, 304)):
                for origins, policy in ((("*",), "cross-origin"), (("https://a.test",), None)):
                    self.app.edge.settings = evolve(self.app.edge.settings, cors_origins=origins)
                    response = self.app.request("GET", path, {**ANON, **headers})
                    self.assertEqual(response.status, status)
                    self.assertEqual(response.header("cross-origin-resource-policy"), policy, (path, headers))

    def test_head_has_the_same_headers_and_does_not_ask_the_store(self) -> None:
        reads = len(self.app.store.streams)
        for headers in ({}, {"Range": "bytes=1-2"}, {"If-None-Match": "*"}):
            sent = {**ANON, **headers}
            headed = self.app.request("HEAD", f"{BASE}/d/%C3%B6.png", sent)
            self.assertEqual(len(self.app.store.streams), reads)
            got = self.app.request("GET", f"{BASE}/d/%C3%B6.png", sent)
            self.assertEqual((headed.status, headed.headers), (got.status, got.headers))
            reads = len(self.app.store.streams)

    def test_inline(self) -> None:
        for value, kind in {"true": "inline", "false": "attachment"}.items():
            response = self.app.get(f"d/%C3%B6.png?inline={value}")
            self.assertTrue((response.header("content-disposition") or "").startswith(kind + ";"))
            self.assertEqual(response.header("content-security-policy"), SANDBOX)
            self.assertEqual(response.header("x-content-type-options"), "nosniff")
        for bad in ("", "1", "TRUE", "yes"):
            self.assertEqual(refused(self.app.get(f"d/%C3%B6.png?inline={bad}")), (422, "validation_failed"))

    def test_what_is_saved_is_in_the_sandbox_too(self) -> None:
        for content_type in ("text/html", "image/svg+xml", "application/pdf", "text/plain"):
            self.app.put("x", Content_Type=content_type)
            for query in ("", "?download=a.html", "?inline=false", "?inline=true"):
                for headers in ({}, {"Range": "bytes=1-2"}):
                    response = self.app.get(f"x{query}", **headers)
                    self.assertEqual(response.header("content-security-policy"), SANDBOX, query)
                    self.assertEqual(response.header("content-type"), content_type)

    def test_what_consists_of_parts_is_sent_as_bytes_of_no_type(self) -> None:
        """A browser would take the parts out, as of multipart/x-mixed-replace and of MHTML."""
        for content_type in (
            "multipart/x-mixed-replace; boundary=x",
            "Multipart/Related",
            "multipart/mixed",
            "message/rfc822",
            "MESSAGE/http; version=1.1",
        ):
            self.app.put("x", Content_Type=content_type)
            for query in ("", "?inline=true"):
                for headers in ({}, {"Range": "bytes=1-2"}):
                    response = self.app.get(f"x{query}", **headers)
                    self.assertEqual(response.header("content-type"), "application/octet-stream")
            # It is sent so, and stays what it is.
            info = json.loads(self.app.get("x?info=true").body)
            self.assertEqual(info["content_type"], content_type)

    def test_refusals_may_be_neither_sniffed_nor_cached(self) -> None:
        for key, headers, status in (
            ("none", {}, 404),
            ("d/%C3%B6.png", {"Range": "bytes=500-"}, 416),
            ("d/%C3%B6.png", {"If_Match": '"other"'}, 412),
            ("a//b", {}, 422),
        ):
            response = self.app.get(key, **headers)
            self.assertEqual(response.status, status)
            self.assertEqual(response.header("x-content-type-options"), "nosniff", status)
            self.assertEqual(response.header("cache-control"), "no-store", status)
        self.app.store.away = True
        response = self.app.get("d/%C3%B6.png")
        self.assertEqual((response.status, response.header("x-content-type-options")), (503, "nosniff"))

    def test_private_objects_may_not_be_cached(self) -> None:
        self.app.put("k", bucket="shut")
        self.assertEqual(self.app.get("k", bucket="shut").header("cache-control"), "private, no-store")
        listing = self.app.request("GET", "/storage/buckets/shut/objects", SERVICE)
        self.assertEqual((listing.status, listing.header("cache-control")), (200, "private, no-store"))

    def test_a_private_object_that_says_for_how_long_is_kept_by_its_reader_alone(self) -> None:
        self.app.storage.live.settings = evolve(self.app.storage.live.settings, public_max_age_seconds=9)
        for said, expected in (
            ("max-age=60", "private, max-age=60"),
            ("public, max-age=60, immutable", "private, max-age=60"),
            ("Max-Age=60, S-MaxAge=600, Proxy-Revalidate", "private, max-age=60"),
            ("private, max-age=60, must-revalidate", "private, max-age=60, must-revalidate"),
            ("max-age=60, no-transform, unknown=1", "private, max-age=60, no-transform"),
            ("max-age=60, stale-while-revalidate=5", "private, max-age=60, stale-while-revalidate=5"),
            ('max-age=60, stale-if-error="5, public"', "private, max-age=60"),
            ('max-age="60", private="Set-Cookie"', "private, max-age=60"),
            ("no-cache", "private, no-cache"),
            ('no-cache="X", max-age=60', "private, max-age=60, no-cache"),
            ("max-age=0", "private, max-age=0"),
            ("max-age=60, no-store", "private, no-store"),
        ):
            self.app.put("k", bucket="shut", Cache_Control=said)
            etag = self.app.get("k", "shut").header("etag") or ""
            for headers, status in (({}, 200), ({"Range": "bytes=1-2"}, 206), ({"If-None-Match": etag}, 304)):
                response = self.app.get("k", "shut", **headers)
                self.assertEqual((response.status, response.header("cache-control")), (status, expected))
                if "no-store" not in said:
                    self.assertEqual(response.header("vary"), "Authorization")
        # Without an age browsers would choose one.
        for said in ("public", "immutable", "s-maxage=60", "must-revalidate", "private", "max-age", ""):
            self.app.put("k", bucket="shut", Cache_Control=said)
            self.assertEqual(self.app.get("k", "shut").header("cache-control"), "private, no-store", said)
        change = {**USER, "Content-Type": "application/json"}
        path = "/storage/buckets/shut/objects/k"
        for age, expected in ((b"5", "max-age=5"), (b"0", "no-cache"), (b"null", "no-store")):
            self.app.request("PATCH", path, change, b'{"max_age_seconds": %s}' % age)
            self.assertEqual(self.app.get("k", "shut").header("cache-control"), f"private, {expected}")
        # What the service key may read, nobody without it gets from a cache that both use.
        self.app.put("k", bucket="shut", Cache_Control="max-age=60")
        vary = self.app.request("GET", path, SERVICE).header("vary")
        self.assertEqual(vary, "Authorization, apikey, X-Service-Key")

    def test_an_object_may_have_an_age_of_its_own(self) -> None:
        """By the header that S3 keeps, by a field of the form, or afterwards by the service key."""

        def caching(key: str, bucket: str = "open") -> str | None:
            return self.app.get(key, bucket).header("cache-control")

        self.app.put("raw", Cache_Control="public, max-age=60, immutable")
        self.app.upload(form(part("file", b"x", "field"), part("max_age_seconds", b"70")))
        sent = {**USER, **FORM, "Cache-Control": "max-age=80"}
        self.app.request("POST", BASE, sent, form(part("file", b"x", "form")))
        self.app.post("/storage/buckets/open/copy", {"from": "raw", "to": "copied"})
        self.app.post("/storage/buckets/open/move", {"from": "form", "to": "moved"})
        for key, age in (("raw", "60, immutable"), ("field", 70), ("copied", "60, immutable"), ("moved", 80)):
            self.assertEqual(caching(key), f"public, max-age={age}", key)
        change = {**SERVICE, "Content-Type": "application/json"}
        for body, expected in (
            (b'{"max_age_seconds": 5}', "public, max-age=5"),
            (b"{}", "public, max-age=5"),
            (b'{"max_age_seconds": 0}', "public, no-cache"),
        ):
            self.assertEqual(self.app.request("PATCH", f"{BASE}/raw", change, body).status, 200)
            self.assertEqual(caching("raw"), expected)
        self.app.storage.live.settings = evolve(self.app.storage.live.settings, public_max_age_seconds=9)
        self.assertEqual(caching("raw"), "public, no-cache")
        self.app.request("PATCH", f"{BASE}/raw", change, b'{"max_age_seconds": null}')
        # An overwrite that says nothing begins anew.
        self.app.put("field")
        self.assertEqual((caching("raw"), caching("field")), ("public, max-age=9",) * 2)

    def test_the_cache_control_of_an_upload_is_that_of_its_downloads(self) -> None:
        """It is public unless it says otherwise. Directives have no case (RFC 9111, 5.2)."""
        self.app.storage.live.settings = evolve(self.app.storage.live.settings, public_max_age_seconds=9)
        for headers_sent, expected in (
            ("MAX-AGE=60", "public, MAX-AGE=60"),
            ("Public, Max-Age=60", "Public, Max-Age=60"),
            ("max-age=60, no-store", "max-age=60, no-store"),
            ("No-Cache, max-age=60", "public, No-Cache, max-age=60"),
            ("private, max-age=60", "private, max-age=60"),
            ("no-store", "no-store"),
            (
                "max-age=60, s-maxage=600, stale-while-revalidate=5",
                "public, max-age=60, s-maxage=600, stale-while-revalidate=5",
            ),
            ("max-age", "public, max-age=9"),
            ("", "public, max-age=9"),
        ):
            self.app.put("k", Cache_Control=headers_sent)
            self.assertEqual(self.app.get("k").header("cache-control"), expected, headers_sent)

    def test_invalid_ages(self) -> None:
        for headers_sent in (
            "max-age=-1",
            "max-age=x",
            "max-age=1.5",
            "max-age=2147483648",
            f"max-age={'9' * 5000}",
        ):
            self.assertEqual(
                refused(self.app.put("k", Cache_Control=headers_sent)),
                (422, "validation_failed"),
                headers_sent,
            )
        for headers_sent in ("no-cache", "max-age", ""):
            self.app.put("k", Cache_Control=headers_sent)
            self.assertEqual(self.app.get("k").header("cache-control"), "public, no-cache", headers_sent)
        body = form(part("file", b"x", "field"), part("max_age_seconds", b"soon"))
        self.assertEqual(refused(self.app.upload(body)), (422, "validation_failed"))

    def test_missing_and_empty_objects(self) -> None:
        self.assertEqual(refused(self.app.get("none")), (404, "object_not_found"))
        self.app.put("empty", b"")
        self.app.store.away = True
        response = self.app.get("empty")
        self.assertEqual((response.status, response.body, response.header("content-length")), (200, b"", "0"))


class Ranges(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.etag = json.loads(self.app.put("k", PAYLOAD).body)["etag"]

    def test_one_range(self) -> None:
        for sent, first, last in (
            ("bytes=0-0", 0, 0), ("bytes=10-19", 10, 19), ("bytes=90-", 90, 99), ("bytes=-5", 95, 99),
            ("bytes=-500", 0, 99), ("bytes=50-5000", 50, 99), ("BYTES=1-2", 1, 2), ("bytes= 1-2 , ,", 1, 2),
            ("bytes=98-99999999999999999999", 98, 99), (f"bytes=-{'9' * 5000}", 0, 99),
            (f"bytes={'0' * 30}7-8", 7, 8),
        ):  # fmt: skip
            response = self.app.get("k", Range=sent)
            self.assertEqual(response.status, 206, sent)
            self.assertEqual(response.body, PAYLOAD[first : last + 1], sent)
            self.assertEqual(response.header("content-range"), f"bytes {first}-{last}/100", sent)

    def test_invalid_and_unsatisfiable_ranges_are_416(self) -> None:
        for sent in (
            "bytes=100-", "bytes=200-300", "bytes=-0", "bytes=5-2", "bytes=", "bytes", "bytes=a-b", "bytes=-",
            "bytes=1-2-3", "bytes=--1", "bytes=1", "bytes=0x1-2", "bytes=1.5-2", "bytes=,", "bytes=٣-٤",
            "bytes=99999999999999999999999-", "bytes=100-,200-", "bytes=0-1,x", "bytes=-,0-1",
            "bytes 0-1", "0-1", "=0-1",
        ):  # fmt: skip
            response = self.app.get("k", Range=sent.encode().decode("latin-1"))
            self.assertEqual(refused(response), (416, "range_not_satisfiable"), sent)
            self.assertEqual(response.header("content-range"), "bytes */100", sent)
            self.assertEqual(response.header("accept-ranges"), "bytes", sent)

    def test_other_units_and_several_ranges_return_the_whole(self) -> None:
        for sent in ("items=0-1", "bytes=0-1,5-6", "bytes=200-,0-1", "bytes=-0,0-1"):
            response = self.app.get("k", Range=sent)
            self.assertEqual((response.status, response.body), (200, PAYLOAD), sent)

    def test_no_range_of_an_empty_object_is_satisfiable(self) -> None:
        self.app.put("empty", b"")
        for sent in ("bytes=0-", "bytes=-1", "bytes=0-0"):
            response = self.app.get("empty", Range=sent)
            self.assertEqual((response.status, response.header("content-range")), (416, "bytes */0"))

    def test_if_range(self) -> None:
        for condition, status in {
            f'"{self.etag}"': 206,
            f'W/"{self.etag}"': 200,
            '"other"': 200,
            "Sat, 21 Nov 2026 00:00:01 GMT": 200,
            "nonsense": 200,
            BEYOND: 200,
        }.items():
            response = self.app.get("k", Range="bytes=0-1", If_Range=condition)
            self.assertEqual(response.status, status, condition)

    def date_of(self, key: str) -> int:
        return self.app.get(key, Range="bytes=0-1", If_Range=FIRST).status

    def test_a_date_counts_when_its_second_is_over(self) -> None:
        """RFC 9110 section 8.8.2.2: until then the object may still get other bytes with the same date."""
        for seconds, status in ((0, 200), (0.9, 200), (0.1, 206), (60, 206)):
            self.app.clock.advance(seconds)
            self.assertEqual(self.date_of("k"), status, seconds)

    def test_a_date_does_not_count_for_a_key_that_had_other_bytes_in_its_second(self) -> None:
        self.app.put("once")
        self.app.put("k", b"other bytes")
        for key in ("source", "deleted", "removed", "left"):
            self.app.put(key)
        self.app.post("/storage/buckets/open/move", {"from": "source", "to": "onto"})
        self.app.put("target")
        self.app.post("/storage/buckets/open/move", {"from": "onto", "to": "target"})
        self.app.request("DELETE", f"{BASE}/deleted", USER)
        self.app.post("/storage/buckets/open/delete", {"keys": ["removed"]})
        self.app.post("/storage/buckets/open/move", {"from": "left", "to": "elsewhere"})
        for key in ("deleted", "removed", "left"):
            self.app.put(key)
        self.app.clock.advance(10)
        dates = {
            key: self.date_of(key)
            for key in ("once", "elsewhere", "k", "target", "deleted", "removed", "left")
        }
        expected = {
            "once": 206,
            "elsewhere": 206,
            "k": 200,
            "target": 200,
            "deleted": 200,
            "removed": 200,
            "left": 200,
        }
        self.assertEqual(dates, expected)
        # Who has such a date does not get 304 for it either, unless they saw the object later.
        for key, date, status in (
            ("k", FIRST, 200),
            ("once", FIRST, 304),
            ("k", "Sat, 21 Nov 2026 00:00:01 GMT", 304),
        ):
            self.assertEqual(self.app.get(key, If_Modified_Since=date).status, status, (key, date))
        self.app.put("k", b"much later")
        self.app.clock.advance(1)
        later = self.app.get("k", Range="bytes=0-1", If_Range="Sat, 21 Nov 2026 00:00:10 GMT")
        self.assertEqual(later.status, 206)


class Conditions(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.etag = json.loads(self.app.put("k", PAYLOAD).body)["etag"]

    def test_an_impossible_date_counts_as_absent(self) -> None:
        for name in ("If-Modified-Since", "If-Unmodified-Since"):
            for method in ("GET", "HEAD"):
                response = self.app.request(method, f"{BASE}/k", {**ANON, name: BEYOND})
                self.assertEqual(response.status, 200, (method, name))

    def test_not_modified(self) -> None:
        for headers in (
            {"If_None_Match": f'"{self.etag}"'},
            {"If_None_Match": f'"x", W/"{self.etag}"'},
            {"If_None_Match": "*"},
            # Sent as two lines, which are one list (RFC 9110 section 5.3).
            {"If_None_Match": '"x"', "if_none_match": f'"{self.etag}"'},
            {"If_Modified_Since": FIRST},
            {"If_Modified_Since": "Sun, 22 Nov 2026 00:00:00 GMT"},
        ):
            response = self.app.get("k", **headers)
            self.assertEqual((response.status, response.body), (304, b""), headers)
            self.assertEqual(response.header("etag"), f'"{self.etag}"')
            self.assertEqual(response.header("cache-control"), "public, no-cache")
            self.assertEqual(response.header("x-content-type-options"), "nosniff")

    def test_modified(self) -> None:
        for headers in (
            {"If_None_Match": '"other"'},
            {"If_Modified_Since": "Fri, 20 Nov 2026 00:00:00 GMT"},
            {"If_Modified_Since": "nonsense"},
            {"If_None_Match": '"other"', "If_Modified_Since": FIRST},
            {"If_Match": f'"{self.etag}"'},
            {"If_Match": "*"},
            {"If_Unmodified_Since": FIRST},
        ):
            self.assertEqual(self.app.get("k", **headers).status, 200, headers)

    def test_precondition_failed(self) -> None:
        for headers in (
            {"If_Match": '"other"'},
            {"If_Match": f'W/"{self.etag}"'},
            {"If_Unmodified_Since": "Fri, 20 Nov 2026 00:00:00 GMT"},
        ):
            self.assertEqual(refused(self.app.get("k", **headers)), (412, "precondition_failed"), headers)
        # RFC 9110 section 13.2.2: beside If-Match the date does not count.
        both = {"If_Match": f'"{self.etag}"', "If_Unmodified_Since": "Fri, 20 Nov 2026 00:00:00 GMT"}
        self.assertEqual(self.app.get("k", **both).status, 200)


class Failing(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("k", PAYLOAD)

    def test_a_store_that_is_away_is_503(self) -> None:
        self.app.store.away = True
        response = self.app.get("k")
        self.assertEqual(refused(response), (503, "store_unavailable"))
        self.assertIsNotNone(response.header("retry-after"))

    def test_an_object_whose_bytes_are_lost_is_500(self) -> None:
        self.app.store.objects.clear()
        response = self.app.get("k")
        self.assertEqual(response.status, 500)
        self.assertNotIn(b"open/", response.body)
        self.assertEqual(len(self.flushLoggedErrors(ObjectLost)), 1)

    def test_an_object_overwritten_while_its_row_is_read_is_returned_in_its_new_version(self) -> None:
        """The old version is gone by the time it is asked for."""
        rows, store = self.app.storage.downloads.reading.rows, self.app.store
        find = type(rows).find
        stale = [next(iter(self.app.tables.objects.values()))]
        self.app.put("k", b"new")

        async def behind(mine: object, bucket: str, key: str, viewer: object = None) -> object:
            return stale.pop() if stale else await find(rows, bucket, key)

        self.patch(type(rows), "find", behind)
        self.assertEqual(self.app.get("k").body, b"new")
        self.assertEqual(store.calls[-2:], ["open", "open"])


KEY = "a.txt"


class FromMemory(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put(KEY, b"hello")
        self.app.get(KEY)

    def fetched(self) -> int:
        return len(self.app.store.streams)

    def test_the_store_is_read_once(self) -> None:
        before = self.fetched()
        first, second = self.app.get(KEY), self.app.get(KEY)
        self.assertEqual((first.status, first.body, first.headers), (200, b"hello", second.headers))
        self.assertEqual(self.fetched(), before)

    def test_a_store_that_is_away_is_not_needed(self) -> None:
        self.app.store.away = True
        self.assertEqual((self.app.get(KEY).status, self.app.get(KEY).body), (200, b"hello"))

    def test_ranges_are_served_from_the_cache(self) -> None:
        before = self.fetched()
        for asked, body, content_range in (
            ("bytes=1-2", b"el", "bytes 1-2/5"),
            ("bytes=-2", b"lo", "bytes 3-4/5"),
            ("bytes=4-9", b"o", "bytes 4-4/5"),
        ):
            got = self.app.get(KEY, Range=asked)
            self.assertEqual((got.status, got.body, got.header("content-range")), (206, body, content_range))
            self.assertEqual(got.header("content-length"), str(len(body)))
        self.assertEqual(self.app.get(KEY, Range="bytes=5-").status, 416)
        self.assertEqual(self.fetched(), before)

    def test_a_range_is_not_cached_as_the_whole_object(self) -> None:
        self.app.put("other", b"other bytes")
        self.assertEqual(self.app.get("other", Range="bytes=0-4").body, b"other")
        self.assertEqual(self.app.get("other").body, b"other bytes")

    def test_an_overwrite_is_seen_at_once(self) -> None:
        self.app.put(KEY, b"new")
        self.assertEqual(self.app.get(KEY).body, b"new")
        self.assertEqual(self.app.get(KEY).body, b"new")

    def test_a_deleted_object_is_404(self) -> None:
        self.app.request("DELETE", f"/storage/buckets/open/objects/{KEY}", USER)
        self.assertEqual(refused(self.app.get(KEY)), (404, "object_not_found"))

    def test_a_moved_object_is_still_cached(self) -> None:
        before = self.fetched()
        self.app.post("/storage/buckets/open/move", {"from": KEY, "to": "b.html"})
        moved = self.app.get("b.html")
        self.assertEqual((moved.status, moved.body, self.fetched()), (200, b"hello", before))
        self.assertEqual(refused(self.app.get(KEY)), (404, "object_not_found"))

    def test_a_cached_private_object_still_needs_a_user(self) -> None:
        self.app.put(KEY, b"secret", bucket="shut")
        self.assertEqual(self.app.get(KEY, bucket="shut").body, b"secret")
        refusal = self.app.request("GET", f"/storage/buckets/shut/objects/{KEY}", ANON)
        self.assertEqual(refused(refusal), (401, "authentication_required"))
        self.assertEqual(self.app.get(KEY).body, b"hello")

    def test_a_link_is_used_up_by_a_cached_object_too(self) -> None:
        made = self.app.post("/storage/buckets/open/presign", {"key": KEY})
        address = urlsplit(json.loads(made.body)["url"])
        path = f"{address.path}?{address.query}"
        self.assertEqual(self.app.request("GET", path, {}).body, b"hello")
        self.assertEqual(refused(self.app.request("GET", path, {})), (410, "token_used"))

    def test_large_objects_are_not_cached(self) -> None:
        self.app.put("large", bytes(5000))
        before = self.fetched()
        for _ in range(2):
            self.assertEqual(self.app.get("large").body, bytes(5000))
        self.assertEqual(self.fetched(), before + 2)

    def test_the_cache_can_be_switched_off(self) -> None:
        app = StorageApp(cache_bytes=0)
        app.put(KEY, b"hello")
        self.assertEqual([app.get(KEY).body for _ in range(2)], [b"hello"] * 2)
        self.assertEqual(len(app.store.streams), 2)


LATER, EARLIER = "Sun, 22 Nov 2026 00:00:00 GMT", "Fri, 20 Nov 2026 00:00:00 GMT"
# "{etag}" is the object's.
RANGES: tuple[dict[str, str], ...] = (
    {},
    {"Range": "bytes=0-0"},
    {"Range": "bytes=1-2"},
    {"Range": "bytes=2-"},
    {"Range": "bytes=-2"},
    {"Range": "bytes=0-"},
    {"Range": "bytes=0-99999999"},
    {"Range": "bytes=99999999-"},
    {"Range": "bytes=2-1"},
    {"Range": "bytes=0-0,2-3"},
    {"Range": "items=0-0"},
    {"Range": "bytes=1-2", "If-Range": '"{etag}"'},
    {"Range": "bytes=1-2", "If-Range": '"other"'},
)
CONDITIONS: tuple[dict[str, str], ...] = (
    {},
    {"If-Match": '"{etag}"'},
    {"If-Match": '"other"'},
    {"If-None-Match": 'W/"{etag}"'},
    {"If-None-Match": '"other"', "If-Modified-Since": LATER},
    {"If-Modified-Since": LATER},
    {"If-Modified-Since": EARLIER},
    {"If-Unmodified-Since": EARLIER},
)
# These headers depend on which caches may store the response.
OF_THE_WAY = ("cache-control", "referrer-policy", "x-request-id")


class Variants:
    """The same object reached by several paths: in a public and a private bucket, and by a link."""

    def __init__(self, payload: bytes, **settings: Any) -> None:
        self.app = StorageApp(**settings)
        for bucket in ("open", "shut"):
            self.etag = json.loads(self.app.put("k.txt", payload, bucket).body)["etag"]
        made = self.app.post("/storage/buckets/shut/presign", {"key": "k.txt", "uses": 0})
        link = str(json.loads(made.body)["url"]).removeprefix("http://api.example.test")
        self.paths = {
            "anybody": ("/storage/buckets/open/objects/k.txt?", ANON),
            "a user": ("/storage/buckets/shut/objects/k.txt?", USER),
            "a link": (link + "&", {}),
        }

    def ask(self, caller: str, method: str, inline: str, headers_sent: dict[str, str]) -> Response:
        path, headers = self.paths[caller]
        sent = {name: value.replace("{etag}", self.etag) for name, value in headers_sent.items()}
        # With an Origin every response has the CORS headers, which cacheable ones have anyway.
        return self.app.request(
            method, f"{path}inline={inline}", {"Origin": "https://a.test", **headers, **sent}
        )


def essence(answer: Response) -> tuple[int, list[tuple[str, str]], bytes]:
    """The parts of a response that must be equal."""
    headers = [(name.lower(), value) for name, value in answer.headers]
    return answer.status, sorted(pair for pair in headers if pair[0] not in OF_THE_WAY), answer.body


def questions() -> Iterator[tuple[str, str, dict[str, str]]]:
    asked = [*RANGES, *CONDITIONS, *({**RANGES[2], **headers_sent} for headers_sent in CONDITIONS)]
    for method, headers_sent in product(("GET", "HEAD"), asked):
        yield method, "false", headers_sent
    yield "GET", "true", {}


class Alike(TestCase):
    def answers(self, payload: bytes, **settings: int) -> Callable[..., Response]:
        variants = Variants(payload, **settings)
        for caller in variants.paths:
            self.assertEqual(variants.ask(caller, "GET", "false", {}).body, payload)
        return variants.ask

    def test_from_memory_from_the_store_and_streamed(self) -> None:
        for payload in (b"", b"hello"):
            memory, fetched = self.answers(payload), self.answers(payload, cache_bytes=0)
            expected: dict[str, object] = {}
            for caller in ("anybody", "a user", "a link"):
                for asked in questions():
                    response = essence(memory(caller, *asked))
                    self.assertEqual(response, essence(fetched(caller, *asked)), (caller, asked))
                    with_body = self.patch(FakeStream, "buffered", lambda _: None)
                    self.assertEqual(response, essence(fetched(caller, *asked)), (caller, asked))
                    with_body.restore()
                    self.assertEqual(response, expected.setdefault(str(asked), response), (caller, asked))
