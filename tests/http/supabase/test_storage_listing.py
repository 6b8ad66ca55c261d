"""``/storage/v1/object/list`` and ``list-v2``: shapes, orders, pages, cursors."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.errors import ApiError
from project_service.storage.values import Entries
from project_service.supabase.storage.listing import decode_cursor, encode_cursor
from tests.http.storage.app import ALICE
from tests.http.supabase.storage_app import ANON, OTHER, SERVICE, USER, V1, ClientApp, told
from tests.http.supabase.test_storage_objects import own_folder

INVALID = (400, "400", "InvalidRequest")
KEYS = ("f/b.txt", "f/a/1", "f/c.txt", "f/a/2", "g", "f/B2.txt")


class Listing(TestCase):
    def setUp(self) -> None:
        self.app = ClientApp()
        self.app.tables.policies = own_folder
        for key in KEYS:
            self.put(key)

    def put(self, key: str, headers: dict[str, str] = SERVICE) -> None:
        self.app.clock.advance(1)
        made = self.app.request(
            "PUT", f"{V1}/object/policed/{key}", {**headers, "Content-Type": "a/b"}, b"hello"
        )
        self.assertEqual(made.status, 200)

    def names(self, headers: dict[str, str] = SERVICE, **body: Any) -> list[str]:
        listed = self.app.value("POST", "/object/list/policed", {"prefix": "f", **body}, headers)
        return [one["name"] for one in listed]

    def test_objects_and_folders(self) -> None:
        listed = self.app.value("POST", "/object/list/policed", {"prefix": "f"}, SERVICE)
        nothing = dict.fromkeys(("id", "updated_at", "created_at", "last_accessed_at", "metadata"))
        self.assertEqual(listed[1], {"name": "a", **nothing})
        row = self.app.tables.objects["policed", "f/b.txt"]
        at = "2026-11-21T00:00:01.000Z"
        self.assertEqual(
            listed[2],
            {
                "name": "b.txt",
                "id": str(row.id),
                "updated_at": at,
                "created_at": at,
                "last_accessed_at": at,
                "metadata": {
                    "eTag": f'"{row.etag}"',
                    "size": 5,
                    "mimetype": "a/b",
                    "cacheControl": "no-cache",
                    "lastModified": at,
                    "contentLength": 5,
                    "httpStatusCode": 200,
                },
            },
        )

    def test_a_prefix_is_a_folder(self) -> None:
        for prefix in ("f", "f/", "/f", "/f/"):
            self.assertEqual(self.names(prefix=prefix), ["B2.txt", "a", "b.txt", "c.txt"])
        self.assertEqual(self.names(prefix="f/a"), ["1", "2"])
        for body in ({"prefix": ""}, {"prefix": None}, {}):
            listed = self.app.value("POST", "/object/list/policed", body, SERVICE)
            self.assertEqual([one["name"] for one in listed], ["f", "g"])
        self.assertEqual(self.names(prefix="none"), [])

    def test_orders_pages_and_search(self) -> None:
        everything = ["B2.txt", "a", "b.txt", "c.txt"]
        self.assertEqual(self.names(limit=2, offset=1), everything[1:3])
        self.assertEqual(self.names(sortBy={"column": "name", "order": "desc"}), everything[::-1])
        self.put("f/b.txt")
        by_made = ["a", "b.txt", "c.txt", "B2.txt"]
        for column in ("created_at", "last_accessed_at"):
            self.assertEqual(self.names(sortBy={"column": column}), by_made)
        changed = ["a", "b.txt", "B2.txt", "c.txt"]
        self.assertEqual(self.names(sortBy={"column": "updated_at", "order": "desc"}), changed)
        self.assertEqual(
            self.names(sortBy={"column": "updated_at", "order": "desc"}, offset=1, limit=1), ["b.txt"]
        )
        self.assertEqual(self.names(search="b"), ["B2.txt", "b.txt"])
        self.assertEqual(self.names(search="b", offset=1), ["b.txt"])
        self.assertEqual(self.names(limit=None, offset=None, search=None, sortBy=None), everything)

    def test_refusals(self) -> None:
        for body in (
            {"limit": 0},
            {"offset": -1},
            {"limit": "many"},
            {"prefix": 5},
            {"sortBy": "name"},
            {"sortBy": {"column": "owner"}},
            {"sortBy": {"column": "name", "order": "up"}},
            {"sortBy": {"column": ["name"]}},
            {"search": ["x"]},
        ):
            self.assertEqual(told(self.app.ask("POST", "/object/list/policed", body, SERVICE)), INVALID, body)
        for what in ("list", "list-v2"):
            missing = self.app.ask("POST", f"/object/{what}/none", {}, SERVICE)
            self.assertEqual(told(missing), (400, "404", "NoSuchBucket"))
            self.assertEqual(told(self.app.ask("POST", f"/object/{what}/shut", {}, ANON))[1], "403")
            unread = self.app.request("POST", f"{V1}/object/{what}/policed", SERVICE, b"{}")
            self.assertEqual(told(unread)[1], "415")

    def test_callers_see_what_policies_show(self) -> None:
        self.put(f"{ALICE}/x", USER)
        for headers, names in ((USER, [ALICE]), (OTHER, []), (ANON, [])):
            self.assertEqual(self.names(headers, prefix=""), names)
            self.assertEqual(self.page(headers)["objects"], self.page(headers)["objects"][: len(names)])

    def page(self, headers: dict[str, str] = SERVICE, **body: Any) -> Any:
        return self.app.value("POST", "/object/list-v2/policed", body, headers)

    def pages(self, **body: Any) -> list[str]:
        """All names, page by page."""
        names: list[str] = []
        cursor: dict[str, Any] = {"cursor": ""}
        while True:
            page = self.page(**body, **cursor)
            there = [one["name"] for one in (*page["folders"], *page["objects"])]
            self.assertLessEqual(len(there), body["limit"])
            names += there
            if not page["hasNext"]:
                self.assertNotIn("nextCursor", page)
                return names
            cursor = {"cursor": page["nextCursor"]}

    def test_pages_after_a_cursor(self) -> None:
        flat = sorted(KEYS)
        orders: list[tuple[dict[str, Any], list[str]]] = [
            ({}, flat),
            ({"sortBy": {"column": "name", "order": "desc"}}, flat[::-1]),
            ({"sortBy": {"column": "created_at", "order": "asc"}}, [*KEYS]),
            ({"sortBy": {"column": "updated_at", "order": "desc"}}, [*KEYS][::-1]),
            ({"with_delimiter": True}, ["f/", "g"]),
            ({"with_delimiter": True, "prefix": "f/"}, ["f/B2.txt", "f/a/", "f/b.txt", "f/c.txt"]),
            ({"prefix": "f/a"}, ["f/a/1", "f/a/2"]),
        ]
        for body, expected in orders:
            for limit in range(1, len(expected) + 2):
                self.assertEqual(sorted(self.pages(limit=limit, **body)), sorted(expected), body)
                if "with_delimiter" not in body:
                    self.assertEqual(self.pages(limit=limit, **body), expected, body)

    def test_the_shape_of_a_page(self) -> None:
        page = self.page(with_delimiter=True, limit=1)
        self.assertEqual(page["folders"], [{"key": "f", "name": "f/"}])
        self.assertEqual((page["objects"], page["hasNext"]), ([], True))
        last = self.page(with_delimiter=True, limit=1, cursor=page["nextCursor"])
        self.assertEqual([one["name"] for one in last["objects"]], ["g"])
        self.assertEqual(last["objects"][0]["key"], "g")
        self.assertFalse(last["hasNext"])

    def test_a_cursor_is_of_one_listing(self) -> None:
        cursor = self.page(limit=1)["nextCursor"]
        for body in ({"prefix": "f"}, {"with_delimiter": True}, {"sortBy": {"column": "created_at"}}):
            refused = self.app.ask("POST", "/object/list-v2/policed", {"cursor": cursor, **body}, SERVICE)
            self.assertEqual(told(refused), INVALID)


class Cursors(TestCase):
    @given(st.text(), st.booleans(), st.integers(0, 10**6))
    def test_one_that_was_made_is_read(self, last: str, descending: bool, offset: int) -> None:
        wanted = Entries("", "name", descending)
        try:
            text = encode_cursor(wanted, last, offset)
        except TypeError:  # no UTF-8, which no key has
            return
        try:
            after, passed = decode_cursor(text, wanted)
        except ApiError as refusal:
            self.assertEqual(refusal.code, "validation_failed")
        else:
            self.assertEqual((after, passed), (None, offset) if descending else (last, 0))

    @given(st.one_of(st.text(), st.lists(st.one_of(st.none(), st.text(), st.integers())).map(json.dumps)))
    def test_everything_else_is_refused(self, text: str) -> None:
        with self.assertRaises(ApiError) as caught:
            decode_cursor(text, Entries(""))
        self.assertEqual(caught.exception.code, "validation_failed")
