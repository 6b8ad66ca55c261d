"""Listings: folders, order, pages that do not shift; and keys in URLs."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.storage.parsing import parameters
from tests.http.storage.app import (
    ANON,
    OBJECTS,
    SERVICE,
    USER,
    StorageApp,
    refused,
)

BASE = "/storage/buckets/open/objects"


class Listing(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        for key in ("b", "a/1", "a/2", "a/c/3", "a0", "z/y/x", "Z", "ä"):
            self.app.put(key.replace("ä", "%C3%A4"), b"x")

    def list(self, query: str = "") -> dict[str, Any]:
        response = self.app.request("GET", f"{BASE}?{query}", ANON)
        self.assertEqual(response.status, 200, response.body)
        value: dict[str, Any] = json.loads(response.body)
        value["objects"] = [entry["key"] for entry in value["objects"]]
        return value

    def test_folders_and_order(self) -> None:
        self.assertEqual(
            self.list(),
            {
                "objects": ["Z", "a0", "b", "ä"],
                "folders": ["a/", "z/"],
                "prefix": "",
                "is_truncated": False,
                "next_token": None,
            },
        )

    def test_prefixes(self) -> None:
        self.assertEqual(self.list("prefix=a/")["objects"], ["a/1", "a/2"])
        self.assertEqual(self.list("prefix=a/")["folders"], ["a/c/"])
        self.assertEqual(self.list("prefix=a")["folders"], ["a/"])
        self.assertEqual(self.list("prefix=a")["objects"], ["a0"])
        self.assertEqual(self.list("prefix=none")["objects"], [])
        self.assertEqual(self.list("prefix=a/&recursive=true")["objects"], ["a/1", "a/2", "a/c/3"])

    def test_pages_count_objects_and_folders(self) -> None:
        seen, token = [], ""
        while True:
            page = self.list(f"max_keys=2{token}")
            entries = [*page["objects"], *page["folders"]]
            self.assertLessEqual(len(entries), 2)
            seen.extend(entries)
            if not page["is_truncated"]:
                break
            token = f"&page_token={page['next_token']}"
        self.assertEqual(sorted(seen), sorted(["Z", "a/", "a0", "b", "z/", "ä"]))

    def test_the_default_page_size_is_100(self) -> None:
        for number in range(101):
            self.app.put(f"many/{number:03}", b"x")
        page = self.list("prefix=many/")
        self.assertEqual(len(page["objects"]), 100)
        self.assertTrue(page["is_truncated"])
        self.assertEqual(self.list(f"prefix=many/&page_token={page['next_token']}")["objects"], ["many/100"])

    def test_pages_do_not_shift_when_objects_change(self) -> None:
        first = self.list("max_keys=3")
        self.app.put("A", b"x")
        self.app.put("a/0", b"x")
        self.app.request("DELETE", f"{BASE}/Z", USER)
        rest = self.list(f"page_token={first['next_token']}")
        self.assertEqual((rest["objects"], rest["folders"]), (["b", "ä"], ["z/"]))

    def test_invalid_parameters_are_refused(self) -> None:
        token = self.list("max_keys=1")["next_token"]
        forged = (
            parameters.encode_page_token("b", "a", False),
            parameters.encode_page_token("a\0", "a", False),
        )
        for query in (
            *(f"prefix=a&page_token={one}" for one in forged),
            "max_keys=0", "max_keys=-1", "max_keys=1001", "max_keys=abc", "max_keys=", "max_keys=1.0",
            f"max_keys={'9' * 5000}", "max_keys=%D9%A3", "recursive=maybe", "page_token=", "page_token=abc",
            "page_token=%FF",
            f"page_token={token}&prefix=a", f"page_token={token}&recursive=true", "page_token=WzFd",
        ):  # fmt: skip
            response = self.app.request("GET", f"{BASE}?{query}", ANON)
            expected = (400, "invalid_query") if "%FF" in query else (422, "validation_failed")
            self.assertEqual(refused(response), expected, query)
        response = self.app.request("GET", f"{BASE}?prefix=%00", ANON)
        self.assertEqual(refused(response), (422, "invalid_key"))
        self.assertEqual(list(json.loads(response.body)["error"]["details"]), ["prefix"])
        for query in ("max_keys=1000", f"max_keys={'0' * 5000}7"):
            self.assertEqual(self.app.request("GET", f"{BASE}?{query}", ANON).status, 200, query)

    def test_a_listing_may_not_be_cached(self) -> None:
        listing = self.app.request("GET", BASE, ANON)
        self.assertEqual((listing.status, listing.header("cache-control")), (200, "no-store"))


class Keys(TestCase):
    """Keys in the path of a request: percent-decoded once."""

    def test_allowed_keys(self) -> None:
        app = StorageApp()
        for sent, key in {
            "a%2Fb": "a/b",
            "a%252Fb": "a%2Fb",
            "a%5Cb": "a\\b",
            "..%5C..%5Cx": "..\\..\\x",
            "%2e%2e%2e": "...",
            "a;b&c=d+e": "a;b&c=d+e",
            "100%zz%2": "100%zz%2",
            "%E2%82%AC%F0%9F%98%80": "€😀",
            "a%20b%3Fc%23": "a b?c#",
            "x" * 900: "x" * 900,
        }.items():
            response = app.request("PUT", f"{OBJECTS}/{sent}", USER, b"x")
            self.assertEqual(response.status, 201, sent)
            self.assertEqual(json.loads(response.body)["key"], key)
            self.assertEqual(app.request("GET", f"{OBJECTS}/{sent}", ANON).body, b"x")

    def test_refused_keys(self) -> None:
        app = StorageApp()
        for sent in (
            "../x", "a/../b", "%2e%2e/x", "a/%2E%2e", ".", "a/.", "/a", "a//b", "a%2F%2Fb", "a/", "%2Fa",
            "a%00b", "a%0Ab", "a%7Fb", "a%C2%85b", "%FF", "%C3", "%ED%A0%80", "x" * 901, "",
        ):  # fmt: skip
            for method in ("PUT", "GET", "DELETE"):
                response = app.request(
                    method, f"{OBJECTS}/{sent}", SERVICE, b"x" if method == "PUT" else None
                )
                self.assertEqual(refused(response), (422, "invalid_key"), (method, sent))
        self.assertEqual(app.stored(), [])
