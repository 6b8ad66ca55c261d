"""Copy, move, bulk delete and changes of metadata, and what their errors say."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.lifecycle import start
from project_service.storage.s3.errors import NoSuchObject, StoreError, StoreUnreachable
from project_service.storage.s3.reading import MAX_READS, ObjectLost
from project_service.storage.values import BucketRules
from tests.fakes.common import parse_response, raw_request
from tests.fakes.store import MemoryStore
from tests.http.storage.app import OBJECTS, SERVICE, USER, StorageApp, refused


class CopyMoveDelete(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("a", b"aaa", Content_Type="text/x-a")

    def post(self, what: str, source: str, target: str, **headers: str) -> Any:
        sent = {**USER, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.app.post(f"/storage/buckets/open/{what}", {"from": source, "to": target}, sent)

    def test_copy_duplicates_the_object(self) -> None:
        response = self.post("copy", "a", "b/c")
        self.assertEqual((response.status, response.header("location")), (201, f"{OBJECTS}/b/c"))
        value = json.loads(response.body)
        self.assertEqual((value["key"], value["size"], value["content_type"]), ("b/c", 3, "text/x-a"))
        self.assertEqual(self.app.stored(), [b"aaa", b"aaa"])

    def test_move_changes_only_rows(self) -> None:
        calls = list(self.app.store.calls)
        response = self.post("move", "a", "b")
        self.assertEqual((response.status, json.loads(response.body)["key"]), (200, "b"))
        self.assertEqual(self.app.store.calls, calls)
        self.assertEqual(refused(self.app.get("a")), (404, "object_not_found"))
        self.assertEqual(self.app.get("b").body, b"aaa")

    def test_copy_and_move_overwrite_unless_if_none_match(self) -> None:
        for what in ("copy", "move"):
            self.app.put("a", b"aaa")
            self.app.put("b", b"bbb")
            self.app.store.calls.clear()
            self.assertEqual(refused(self.post(what, "a", "b", If_None_Match="*")), (412, "object_exists"))
            self.assertEqual(self.app.store.calls, [])
            self.assertIn(self.post(what, "a", "b").status, (200, 201))
            self.assertEqual(self.app.get("b").body, b"aaa")
        self.assertEqual(self.app.stored(), [b"aaa"])

    def test_invalid_copies_and_moves_are_refused(self) -> None:
        for what in ("copy", "move"):
            self.assertEqual(refused(self.post(what, "none", "b")), (404, "object_not_found"))
            self.assertEqual(refused(self.post(what, "a", "a")), (422, "validation_failed"))
            for source, target, wrong in (("a", "../b", "to"), ("a//b", "b", "from")):
                response = self.post(what, source, target)
                self.assertEqual(refused(response), (422, "invalid_key"))
                self.assertEqual(list(json.loads(response.body)["error"]["details"]), [wrong])
            path = f"/storage/buckets/open/{what}"
            for body in (
                {"from": "a"},
                {"to": "a"},
                {"from": 1, "to": "b"},
                {"from": "a", "to": "b", "x": 1},
            ):
                self.assertEqual(refused(self.app.post(path, body)), (422, "validation_failed"))
            details = json.loads(self.app.post(path, {"to": 1}).body)["error"]["details"]
            self.assertEqual(details, {"from": "is required", "to": "must be a string"})
        self.assertEqual(self.app.stored(), [b"aaa"])

    def test_a_copy_of_an_object_that_is_replaced_during_it_is_tried_again(self) -> None:
        replaced = [b"2", b"3", b"four"]
        real = MemoryStore.copy

        async def late(store: MemoryStore, source: str, *how: Any) -> str:
            if replaced:
                self.app.put("a", replaced.pop(0))
            return await real(store, source, *how)

        self.patch(MemoryStore, "copy", late)
        copied = json.loads(self.post("copy", "a", "b").body)
        self.assertEqual((copied["size"], copied["content_type"]), (4, "application/octet-stream"))
        self.assertEqual(self.app.stored(), [b"four", b"four"])
        replaced.extend([b"5"] * 2 * MAX_READS)
        self.assertEqual(refused(self.post("copy", "a", "b")), (503, "store_unavailable"))
        self.assertEqual((len(replaced), sorted(self.app.stored())), (MAX_READS, [b"5", b"four"]))

    def test_a_copy_never_gets_into_a_new_bucket_of_the_same_name(self) -> None:
        real = MemoryStore.copy

        async def slow(store: MemoryStore, source: str, *how: Any) -> str:
            etag = await real(store, source, *how)
            self.app.request("DELETE", "/admin/buckets/open?force=true", SERVICE)
            self.app.clock.advance(60)
            self.app.tables.buckets["open"] = (BucketRules("public"), self.app.now())
            return etag

        self.patch(MemoryStore, "copy", slow)
        self.assertEqual(refused(self.post("copy", "a", "b")), (404, "bucket_not_found"))
        self.assertEqual(self.app.stored(), [])

    def test_a_failed_copy_leaves_nothing(self) -> None:
        """The fakes of the rows answer at once, and so may PostgreSQL."""
        asked: list[Deferred[str]] = []

        async def copy(*_: object) -> str:
            asked.append(Deferred())
            return await asked[-1]

        self.patch(MemoryStore, "copy", copy)
        sent = {**USER, "Content-Type": "application/json"}
        request = raw_request("POST", "/storage/buckets/open/copy", sent, b'{"from": "a", "to": "b"}')
        denied, gone = self.app.connect(), self.app.connect()
        for client in (denied, gone):
            client.send(request)
        asked[0].errback(StoreError(403, "AccessDenied"))
        self.assertEqual(refused(parse_response(denied.received())), (503, "store_unavailable"))
        self.app.request("DELETE", "/storage/buckets/open/objects/a", USER)
        asked[1].errback(NoSuchObject(404, "NoSuchKey"))
        self.assertEqual(refused(parse_response(gone.received())), (404, "object_not_found"))
        self.assertEqual(self.app.stored(), [])

    def test_copying_an_object_whose_bytes_are_lost_is_500(self) -> None:
        self.app.store.objects.clear()
        self.assertEqual(self.post("copy", "a", "b").status, 500)
        self.assertEqual(len(self.flushLoggedErrors(ObjectLost)), 1)

    def test_a_copy_respects_the_quota(self) -> None:
        self.app.rules("open", max_bucket_bytes=5)
        self.assertEqual(refused(self.post("copy", "a", "b")), (413, "payload_too_large"))
        self.assertEqual(self.app.stored(), [b"aaa"])
        # The store must not even begin, since clients could keep it busy that way.
        self.assertNotIn("copy", self.app.store.calls)

    def test_a_copy_respects_the_rules_that_the_bucket_has_by_now(self) -> None:
        for rules, code in (
            ({"max_object_bytes": 2}, (413, "payload_too_large")),
            (
                {"max_object_bytes": None, "allowed_content_types": ["image/*"]},
                (415, "unsupported_media_type"),
            ),
        ):
            self.app.rules("open", **rules)
            self.assertEqual(refused(self.post("copy", "a", "b")), code)
        # A move makes no new object.
        self.assertEqual(self.post("move", "a", "b").status, 200)

    def test_a_copy_that_replaces_an_object_fits_where_that_was(self) -> None:
        self.app.put("b", b"bbb")
        self.app.rules("open", max_bucket_bytes=6)
        self.assertEqual(self.post("copy", "a", "b").status, 201)
        self.assertEqual(refused(self.post("copy", "a", "c")), (413, "payload_too_large"))
        # The cached numbers of the bucket are older than this.
        self.app.request("DELETE", "/storage/buckets/open/objects/b", USER)
        self.assertEqual(self.post("copy", "a", "c").status, 201)

    def test_an_object_is_deleted(self) -> None:
        path = "/storage/buckets/open/objects/a"
        response = self.app.request("DELETE", path, USER)
        self.assertEqual(
            (response.status, response.body, response.header("content-length")), (204, b"", None)
        )
        self.assertEqual(self.app.stored(), [])
        self.assertEqual(refused(self.app.request("DELETE", path, USER)), (404, "object_not_found"))

    def test_an_object_is_deleted_later_if_the_store_is_away(self) -> None:
        self.app.store.away = True
        self.assertEqual(self.app.request("DELETE", "/storage/buckets/open/objects/a", USER).status, 204)
        self.assertEqual((len(self.app.tables.objects), len(self.app.tables.garbage)), (0, 1))

    def test_bulk_delete_reports_deleted_and_missing_keys(self) -> None:
        self.app.put("b")
        response = self.app.post("/storage/buckets/open/delete", {"keys": ["b", "x", "a", "b"]})
        self.assertEqual(
            (response.status, json.loads(response.body)), (200, {"deleted": ["b", "a"], "missing": ["x"]})
        )
        self.assertEqual(self.app.stored(), [])
        unknown = self.app.post("/storage/buckets/open/delete", {"keys": ["a"], "force": True})
        self.assertEqual(refused(unknown), (422, "validation_failed"))
        for keys, expected in (
            ([], "validation_failed"), (["x"] * 1001, "validation_failed"), ("a", "validation_failed"),
            ([1], "validation_failed"), (["../x"], "invalid_key"), (None, "validation_failed"),
        ):  # fmt: skip
            refusal = self.app.post("/storage/buckets/open/delete", {"keys": keys})
            self.assertEqual(refused(refusal), (422, expected))
        wanted = [f"k{number}" for number in range(1000)]
        response = self.app.post("/storage/buckets/open/delete", {"keys": wanted})
        self.assertEqual(json.loads(response.body), {"deleted": [], "missing": wanted})

    def test_removed_bytes_are_kept_as_long_as_configured(self) -> None:
        """So that a copy of the store has whatever a dump of the database refers to."""
        app = StorageApp(keep_removed_seconds=100)
        app.put("a", b"first")
        app.put("a", b"second")
        self.assertEqual(app.request("DELETE", "/storage/buckets/open/objects/a", USER).status, 204)

        def held() -> list[bytes]:
            return sorted(one.payload for one in app.store.objects.values())

        self.assertEqual(held(), [b"first", b"second"])
        sweeper = app.storage.sweeper
        app.clock.advance(99)
        self.successResultOf(start(sweeper.sweep(orphans=True)))
        self.assertEqual(held(), [b"first", b"second"])
        app.clock.advance(1)
        self.successResultOf(start(sweeper.sweep()))
        self.assertEqual((held(), len(app.tables.garbage)), ([], 0))

    def test_verify_without_a_store_says_that_it_is_away(self) -> None:
        app = StorageApp()
        for key in ("a", "b"):
            app.put(key, b"bytes")
        app.store.away = True
        self.failureResultOf(start(app.storage.sweeper.verify()), StoreUnreachable)


BUCKET = "/storage/buckets/open"


class Details(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("k")

    def named(self, method: str, path: str, value: Any = None, headers: dict[str, str] = USER) -> list[str]:
        sent = headers if value is None else {**headers, "Content-Type": "application/json"}
        response = self.app.request(method, path, sent, b"" if value is None else json.dumps(value).encode())
        self.assertEqual(response.status, 422, response.body)
        details: dict[str, str] = json.loads(response.body)["error"]["details"]
        self.assertNotIn("", details.values())
        return sorted(details)

    def test_query_parameters_are_named(self) -> None:
        for path, name in (
            (f"{OBJECTS}?max_keys=0", "max_keys"), (f"{OBJECTS}?recursive=x", "recursive"),
            (f"{OBJECTS}?page_token=x", "page_token"), (f"{OBJECTS}?prefix=%00", "prefix"),
            (f"{OBJECTS}/k?inline=x", "inline"), (f"{OBJECTS}/a//b", "key"), ("/storage/download", "token"),
        ):  # fmt: skip
            self.assertEqual(self.named("GET", path), [name], path)
        for path, name in (("/open?force=x", "force"), ("/open/objects", "prefix")):
            self.assertEqual(self.named("DELETE", f"/admin/buckets{path}", headers=SERVICE), [name], path)

    def test_body_fields_are_named(self) -> None:
        for path, value, names in (
            ("presign", {}, ["key"]), ("presign", {"key": "../k"}, ["key"]), ("presign", {"key": "k", "x": 1}, ["x"]),
            ("presign", {"key": "k", "expires_in_seconds": 0}, ["expires_in_seconds"]),
            ("presign", {"key": "k", "uses": -1}, ["uses"]),
            ("copy", {}, ["from", "to"]), ("copy", {"from": "a", "to": 1}, ["to"]),
            ("copy", {"from": "../k", "to": "a"}, ["from"]), ("copy", {"from": "k", "to": "../a"}, ["to"]),
            ("move", {"from": "k", "to": "k"}, ["to"]), ("move", {"from": "k", "to": "a", "x": 1}, ["x"]),
            ("delete", {}, ["keys"]), ("delete", {"keys": ["k", 1]}, ["keys"]),
            ("delete", {"keys": ["../k"]}, ["keys"]), ("delete", {"keys": ["k"], "x": 1}, ["x"]),
        ):  # fmt: skip
            self.assertEqual(self.named("POST", f"{BUCKET}/{path}", value), names, (path, value))
        self.assertEqual(self.app.stored(), [b"hello"])
