"""The cache of small objects: each is fetched once, and always what the row refers to."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from twisted.trial.unittest import TestCase

from tests.http.storage.app import ANON, USER, StorageApp, refused

KEY = "a.txt"


class FromMemory(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put(KEY, b"hello")
        self.app.get(KEY)

    def fetched(self) -> int:
        return len(self.app.store.streams)

    def test_the_store_is_asked_once(self) -> None:
        before = self.fetched()
        first, second = self.app.get(KEY), self.app.get(KEY)
        self.assertEqual((first.status, first.body, first.headers), (200, b"hello", second.headers))
        self.assertEqual(self.fetched(), before)

    def test_a_store_that_is_away_is_not_needed(self) -> None:
        self.app.store.away = True
        self.assertEqual((self.app.get(KEY).status, self.app.get(KEY).body), (200, b"hello"))

    def test_ranges_are_served_from_the_cache(self) -> None:
        before = self.fetched()
        for asked, body, said in (
            ("bytes=1-2", b"el", "bytes 1-2/5"),
            ("bytes=-2", b"lo", "bytes 3-4/5"),
            ("bytes=4-9", b"o", "bytes 4-4/5"),
        ):
            got = self.app.get(KEY, Range=asked)
            self.assertEqual((got.status, got.body, got.header("content-range")), (206, body, said))
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
