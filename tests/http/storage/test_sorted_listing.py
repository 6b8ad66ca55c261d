"""Listings that are sorted or searched, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode
from uuid import UUID

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service import base64url
from tests.http.storage.app import ANON, OBJECTS, OTHER, SERVICE, USER, StorageApp, refused


class Sorted(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        for key, size in (("b/Photo.png", 3), ("a/photo-2.png", 2), ("c", 2), ("a/text", 1)):
            self.app.put(key, b"x" * size)
            self.app.clock.advance(1)

    def page(self, headers: dict[str, str] = ANON, **query: Any) -> Any:
        response = self.app.request("GET", f"{OBJECTS}?{urlencode(query)}", headers)
        self.assertEqual(response.status, 200, response.body)
        return json.loads(response.body)

    def listed(self, headers: dict[str, str] = ANON, **query: Any) -> list[str]:
        """The keys on all pages, of one object and of all."""
        outcomes = []
        for limit in (1, 100):
            listed: list[str] = []
            page = self.page(headers, max_keys=limit, **query)
            while True:
                self.assertEqual(
                    (page["folders"], page["is_truncated"]), ([], page["next_token"] is not None)
                )
                listed += [one["key"] for one in page["objects"]]
                if page["next_token"] is None:
                    break
                page = self.page(headers, max_keys=limit, page_token=page["next_token"], **query)
            outcomes.append(listed)
        self.assertEqual(*outcomes)
        return listed

    def test_by_size_date_and_key_either_way(self) -> None:
        by_key = ["a/photo-2.png", "a/text", "b/Photo.png", "c"]
        by_size = ["a/text", "a/photo-2.png", "c", "b/Photo.png"]
        by_date = ["b/Photo.png", "a/photo-2.png", "c", "a/text"]
        self.assertEqual(self.listed(sort="key", order="desc"), by_key[::-1])
        for sort, expected in (("size", by_size), ("last_modified", by_date)):
            self.assertEqual(self.listed(sort=sort), expected)
            self.assertEqual(self.listed(sort=sort, order="desc", recursive="true"), expected[::-1])
        self.assertEqual(self.listed(sort="size", prefix="a/"), ["a/text", "a/photo-2.png"])

    def test_a_search_is_for_part_of_what_follows_the_prefix_in_either_case(self) -> None:
        self.assertEqual(self.listed(search="PHOTO"), ["a/photo-2.png", "b/Photo.png"])
        self.assertEqual(
            self.listed(search="photo", sort="size", order="desc"), ["b/Photo.png", "a/photo-2.png"]
        )
        self.assertEqual(self.listed(search="a/", prefix="a/"), [])
        self.assertEqual(self.listed(search="te", prefix="a/"), ["a/text"])
        self.assertEqual(self.listed(search="%"), [])
        # The empty one searches for nothing: that is the listing with folders.
        self.assertEqual(self.page(search="", order="asc", sort="key")["folders"], ["a/", "b/"])

    def test_it_shows_what_the_caller_may_see(self) -> None:
        self.app.put("mine", bucket="shut")
        self.app.request("PUT", "/storage/buckets/shut/objects/theirs", OTHER, b"x")
        path = "/storage/buckets/shut/objects?sort=size"
        self.assertEqual(refused(self.app.request("GET", path, ANON)), (401, "authentication_required"))
        self.app.rules("shut", owner_only_reads=True)
        for headers, expected in ((USER, ["mine"]), (OTHER, ["theirs"]), (SERVICE, ["theirs", "mine"])):
            response = self.app.request("GET", path, headers)
            self.assertEqual([one["key"] for one in json.loads(response.body)["objects"]], expected)
            self.assertEqual(response.header("cache-control"), "private, no-store")

    def test_invalid_parameters(self) -> None:
        token = self.page(sort="size", max_keys=1)["next_token"]
        for query in (
            {"sort": "name"},
            {"order": "up"},
            {"search": "x" * 256},
            {"search": "\0"},
            {"sort": "size", "page_token": "x"},
            {"sort": "last_modified", "page_token": token},
            {"sort": "size", "order": "desc", "page_token": token},
            {"sort": "size", "search": "x", "page_token": token},
            {"sort": "size", "prefix": "a", "page_token": token},
            {"page_token": token},
        ):
            response = self.app.request("GET", f"{OBJECTS}?{urlencode(query)}", ANON)
            self.assertEqual(refused(response), (422, "validation_failed"), query)

    @given(
        st.sampled_from(["key", "size", "last_modified"]),
        st.one_of(st.text(), st.integers(), st.none()),
        st.one_of(st.text(), st.integers(), st.none()),
    )
    def test_a_forged_token_is_refused_or_is_a_place(self, sort: str, value: Any, key: Any) -> None:
        token = base64url.encode(json.dumps([1, value, key, "", sort, True, ""]).encode())
        query = urlencode({"sort": sort, "order": "desc", "page_token": token})
        self.assertIn(self.app.request("GET", f"{OBJECTS}?{query}", ANON).status, (200, 422))


class VisibleBuckets(TestCase):
    def test_users_see_all_buckets_and_others_the_public_ones(self) -> None:
        app = StorageApp()
        app.rules("open", max_object_bytes=9, max_bucket_bytes=99, allowed_content_types=("a/b",))
        shown = {
            "name": "open",
            "visibility": "public",
            "max_object_bytes": 9,
            "allowed_content_types": ["a/b"],
            "owner_only_writes": False,
            "owner_only_reads": False,
            "anonymous_reads": False,
            "policies": False,
            "cache_control": None,
        }
        for headers, names in ((ANON, ["open"]), (USER, ["open", "shut"]), (SERVICE, ["open", "shut"])):
            response = app.request("GET", "/storage/buckets", headers)
            buckets = json.loads(response.body)["buckets"]
            self.assertEqual(([one["name"] for one in buckets], buckets[0]), (names, shown))
            self.assertIn("no-store", response.header("cache-control") or "")
        self.assertEqual(refused(app.request("GET", "/storage/buckets")), (401, "project_key_required"))


class CopiesIntoOtherBuckets(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("k", Content_Type="text/plain", Content_Language="de")

    def copy(self, headers: dict[str, str] = USER, source: str = "open", **body: Any) -> Any:
        return self.app.post(f"/storage/buckets/{source}/copy", {"from": "k", "to": "k", **body}, headers)

    def test_the_copy_has_all_that_the_object_has(self) -> None:
        response = self.copy(to_bucket="shut")
        location = "/storage/buckets/shut/objects/k"
        self.assertEqual((response.status, response.header("location")), (201, location))
        self.assertEqual(self.app.get("k", "shut").body, b"hello")
        self.assertEqual(self.app.get("k", "shut").header("content-language"), "de")
        self.assertEqual(self.app.stored(), [b"hello"] * 2)
        self.assertEqual(refused(self.copy(to_bucket="open")), (422, "validation_failed"))
        self.assertEqual(refused(self.copy(to_bucket=None)), (422, "validation_failed"))

    def test_the_rules_of_both_hold(self) -> None:
        for rules, expected in (
            ({"max_object_bytes": 4}, (413, "payload_too_large")),
            ({"max_bucket_bytes": 4}, (413, "payload_too_large")),
            ({"allowed_content_types": ("image/*",)}, (415, "unsupported_media_type")),
        ):
            self.app.rules("shut", **rules)
            response = self.copy(to_bucket="shut")
            self.assertEqual(refused(response), expected, rules)
            if "max_object_bytes" in rules:
                self.assertIn(b"4 bytes that the bucket's max_object_bytes allows", response.body)
        self.app.rules("shut", owner_only_writes=True)
        self.assertEqual(self.copy(to_bucket="shut").status, 201)
        self.assertEqual(refused(self.copy(OTHER, to_bucket="shut")), (403, "not_owner"))
        self.assertEqual(refused(self.copy(ANON, to_bucket="shut")), (401, "authentication_required"))
        for name in ("none", "No", ""):
            self.assertEqual(refused(self.copy(to_bucket=name)), (404, "bucket_not_found"), name)
        self.app.rules("shut", owner_only_reads=True)
        self.assertEqual(refused(self.copy(OTHER, "shut", to_bucket="open")), (404, "object_not_found"))
        self.assertEqual(len(self.app.stored()), 2)


class MovesIntoOtherBuckets(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("k", Content_Type="text/plain", Content_Language="de")

    def move(self, headers: dict[str, str] = USER, **body: Any) -> Any:
        return self.app.post("/storage/buckets/open/move", {"from": "k", "to": "k", **body}, headers)

    def test_the_object_is_in_the_other_bucket_alone(self) -> None:
        response = self.move(to_bucket="shut")
        self.assertEqual((response.status, json.loads(response.body)["key"]), (200, "k"))
        self.assertEqual(refused(self.app.get("k")), (404, "object_not_found"))
        moved = self.app.get("k", "shut")
        self.assertEqual((moved.body, moved.header("content-language")), (b"hello", "de"))
        self.assertEqual(self.app.stored(), [b"hello"])
        self.assertEqual(refused(self.move(to_bucket="shut")), (404, "object_not_found"))

    def test_one_that_is_refused_leaves_everything_as_it_was(self) -> None:
        for rules, expected in (
            ({"max_object_bytes": 4}, (413, "payload_too_large")),
            ({"max_bucket_bytes": 4}, (413, "payload_too_large")),
            ({"allowed_content_types": ("image/*",)}, (415, "unsupported_media_type")),
        ):
            self.app.rules("shut", **rules)
            self.assertEqual(refused(self.move(to_bucket="shut")), expected, rules)
        self.assertEqual(refused(self.move(to_bucket="none")), (404, "bucket_not_found"))
        self.assertEqual(refused(self.move(to_bucket="open")), (422, "validation_failed"))
        self.assertEqual(refused(self.move(ANON, to_bucket="shut")), (401, "authentication_required"))
        self.app.rules("open", owner_only_writes=True)
        self.assertEqual(refused(self.move(OTHER, to_bucket="shut")), (403, "not_owner"))
        self.assertNotIn("copy", self.app.store.calls)
        self.assertEqual(self.app.stored(), [b"hello"])
        self.assertEqual(self.app.get("k").body, b"hello")

    def test_the_rules_are_those_of_its_end(self) -> None:
        def step(name: str) -> None:
            if name == "stored":
                self.app.rules("shut", allowed_content_types=("image/*",))

        for how in ("copy", "move"):
            self.app.rules("shut")
            with patch.object(self.app, "steps", Steps(step)):
                body = {"from": "k", "to": "k", "to_bucket": "shut"}
                response = self.app.post(f"/storage/buckets/open/{how}", body)
            self.assertEqual(refused(response), (415, "unsupported_media_type"), how)
            self.assertEqual(refused(self.app.get("k", "shut")), (404, "object_not_found"))
            self.assertEqual(self.app.get("k").body, b"hello")

    def test_an_object_that_is_replaced_meanwhile_stays(self) -> None:
        def step(name: str) -> None:
            if name == "stored":
                row = self.app.tables.objects["open", "k"]
                self.app.tables.objects["open", "k"] = evolve(row, version=UUID(int=7))

        with patch.object(self.app, "steps", Steps(step)):
            self.assertEqual(refused(self.move(to_bucket="shut")), (409, "object_changed"))
        self.assertEqual(refused(self.app.get("k", "shut")), (404, "object_not_found"))
        self.assertFalse(self.app.uploading)


class Steps(list[str]):
    """Calls ``seen`` with each step that is added."""

    def __init__(self, seen: Callable[[str], None]) -> None:
        super().__init__()
        self._seen = seen

    def append(self, name: str) -> None:
        self._seen(name)
