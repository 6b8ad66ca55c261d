"""The operator's endpoints below /admin/buckets: creating, changing, listing and deleting buckets."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch
from weakref import ref

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.audit import By
from project_service.errors import ApiError, database_unavailable
from project_service.lifecycle import start
from project_service.storage import buckets as buckets_module
from project_service.storage.objects import EMPTYINGS
from project_service.storage.values import MAX_BYTES, Bucket, BucketRules, Writer
from tests.fakes.common import raw_request
from tests.fakes.storage import START, FakeBuckets
from tests.http.storage.app import ANON, SERVICE, USER, StorageApp, refused


class Admin(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()

    def change(self, name: str, /, **rules: Any) -> Any:
        sent = {**SERVICE, "Content-Type": "application/json"}
        return self.app.request("PATCH", f"/admin/buckets/{name}", sent, json.dumps(rules).encode())

    def test_admin_routes_need_the_service_key(self) -> None:
        for headers in (ANON, USER):
            for method, path in (
                ("GET", "/admin/buckets"), ("POST", "/admin/buckets"), ("GET", "/admin/buckets/open"),
                ("PATCH", "/admin/buckets/open"), ("DELETE", "/admin/buckets/open"),
                ("DELETE", "/admin/buckets/open/objects?prefix="), ("GET", "/admin/buckets/open/usage"),
            ):  # fmt: skip
                self.assertEqual(
                    refused(self.app.request(method, path, headers)), (403, "service_key_required")
                )
        self.assertEqual(refused(self.app.request("GET", "/admin/buckets")), (401, "project_key_required"))

    def test_a_bucket_is_created_shown_and_listed(self) -> None:
        given = {
            "name": "b.new",
            "visibility": "public",
            "max_object_bytes": 10,
            "max_bucket_bytes": 100,
            "allowed_content_types": ["image/*"],
            "owner_only_writes": True,
            "owner_only_reads": False,
            "anonymous_reads": True,
            "policies": False,
            "cache_control": "max-age=60",
        }
        response = self.app.post("/admin/buckets", given, SERVICE)
        self.assertEqual((response.status, response.header("location")), (201, "/admin/buckets/b.new"))
        expected = {**given, "object_count": 0, "total_bytes": 0, "created_at": "2026-11-21T00:00:00.000Z"}
        self.assertEqual(json.loads(response.body), expected)
        self.assertEqual(json.loads(self.app.request("GET", "/admin/buckets/b.new", SERVICE).body), expected)
        names = [
            b["name"] for b in json.loads(self.app.request("GET", "/admin/buckets", SERVICE).body)["buckets"]
        ]
        self.assertEqual(names, ["b.new", "open", "shut"])
        self.assertEqual(refused(self.app.post("/admin/buckets", given, SERVICE)), (409, "bucket_exists"))

    def test_responses_may_not_be_cached(self) -> None:
        for path in ("/admin/buckets", "/admin/buckets/open"):
            self.assertEqual(self.app.request("GET", path, SERVICE).header("cache-control"), "no-store", path)

    def test_a_new_bucket_is_private(self) -> None:
        response = self.app.post("/admin/buckets", {"name": "n"}, SERVICE)
        self.assertEqual(json.loads(response.body)["visibility"], "private")

    def test_invalid_values_are_422(self) -> None:
        for given in (
            {}, {"name": 1}, {"name": "No"}, {"name": ""}, {"name": "a" * 64}, {"name": "a-"}, {"name": "a/b"},
            {"name": "n", "visibility": "secret"}, {"name": "n", "max_object_bytes": 0},
            {"name": "n", "max_object_bytes": "1"}, {"name": "n", "max_bucket_bytes": -1},
            {"name": "n", "max_bucket_bytes": True}, {"name": "n", "max_bucket_bytes": 2**63},
            {"name": "n", "max_bucket_bytes": 10**400}, {"name": "n", "max_bucket_bytes": 1.5},
            {"name": "n", "allowed_content_types": "image/*"}, {"name": "n", "allowed_content_types": ["image"]},
            {"name": "n", "allowed_content_types": {"a/b": True}}, {"name": "n", "allowed_content_types": [1]},
            {"name": "n", "allowed_content_types": ["a/b"] * 101}, {"name": "n", "allowed_content_types": 1},
            {"name": "n", "owner_only_writes": 1}, {"name": "n", "object_count": 5}, {"name": "n", "other": 1},
            {"name": "n", "allowed_content_types": ["a/b", "image"]},
            {"name": "n", "cache_control": ""}, {"name": "n", "cache_control": "max-age"},
            {"name": "n", "cache_control": "max-age=-1"}, {"name": "n", "cache_control": "no-store\r\nX: y"},
            {"name": "n", "cache_control": 60}, {"name": "n", "cache_control": f"max-age={'0' * 248}"},
        ):  # fmt: skip
            response = self.app.post("/admin/buckets", given, SERVICE)
            self.assertEqual(refused(response), (422, "validation_failed"), given)
            self.assertNotIn("", json.loads(response.body)["error"]["details"].values(), given)
        self.assertEqual(sorted(self.app.tables.buckets), ["open", "shut"])

    def test_the_name_is_checked_also_for_buckets_made_otherwise(self) -> None:
        making = start(self.app.storage.buckets.create("No", BucketRules()))
        self.assertEqual(self.failureResultOf(making, ApiError).value.code, "validation_failed")
        self.assertEqual(sorted(self.app.tables.buckets), ["open", "shut"])

    def test_bounds_are_included(self) -> None:
        allowed: tuple[dict[str, Any], ...] = (
            {"max_object_bytes": 1},
            {"max_object_bytes": 5 * 1024**4},
            {"max_bucket_bytes": MAX_BYTES["max_bucket_bytes"]},
            {"allowed_content_types": ["a/b"] * 100},
            {"cache_control": f"max-age={'0' * 247}"},
            {"cache_control": "max-age=2147483647"},
        )
        for number, rules in enumerate(allowed):
            response = self.app.post("/admin/buckets", {"name": f"n{number}", **rules}, SERVICE)
            self.assertEqual(response.status, 201, rules)
            shown = json.loads(response.body)
            self.assertEqual({name: shown[name] for name in rules}, rules)

    def test_no_object_is_larger_than_s3_has_them(self) -> None:
        for number in (5 * 1024**4 + 1, 5 * 1024**4 + 1024.0, 10**400):
            response = self.app.post("/admin/buckets", {"name": "n", "max_object_bytes": number}, SERVICE)
            self.assertEqual(refused(response), (422, "validation_failed"))
            self.assertIn(b"from 1 to 5497558138880", response.body)

    def test_a_size_may_be_written_as_a_float(self) -> None:
        response = self.app.post("/admin/buckets", {"name": "n", "max_object_bytes": 1e6}, SERVICE)
        self.assertIn(b'"max_object_bytes":1000000,', response.body)

    def test_every_wrong_field_is_named(self) -> None:
        for given in ({"name": "No", "visibility": "x", "other": 1}, {"visibility": "x", "other": 1}):
            response = self.app.post("/admin/buckets", given, SERVICE)
            details = json.loads(response.body)["error"]["details"]
            self.assertEqual(set(details), {"name", "visibility", "other"}, given)

    def test_a_change_takes_effect_at_once_in_this_process(self) -> None:
        self.app.put("k", bucket="shut")
        path = "/storage/buckets/shut/objects/k"
        self.assertEqual(self.app.request("GET", path, ANON).status, 401)
        self.assertEqual(self.change("shut", visibility="public").status, 200)
        self.assertEqual(self.app.request("GET", path, ANON).status, 200)
        self.assertEqual(self.change("shut", visibility="private", max_object_bytes=3).status, 200)
        self.assertEqual(self.app.request("GET", path, ANON).status, 401)
        self.assertEqual(refused(self.app.put("l", b"1234", bucket="shut")), (413, "payload_too_large"))
        self.change("shut", max_object_bytes=None)
        self.assertEqual(self.app.put("l", b"1234", bucket="shut").status, 201)
        self.assertEqual(refused(self.change("none", visibility="public")), (404, "bucket_not_found"))
        self.assertEqual(refused(self.change("shut", name="x")), (422, "validation_failed"))

    def test_an_impossible_name_is_404_without_asking_the_database(self) -> None:
        """PostgreSQL would refuse a text with NUL."""
        sent = {**SERVICE, "Content-Type": "application/json"}
        for method in ("GET", "PATCH", "DELETE"):
            response = self.app.request(method, "/admin/buckets/%00", sent, b"{}")
            self.assertEqual(refused(response), (404, "bucket_not_found"), method)

    def test_a_bucket_is_read_at_most_twice_a_second(self) -> None:
        find, asked = FakeBuckets.find, []

        async def counted(rows: FakeBuckets, name: str) -> Bucket | None:
            asked.append(name)
            return await find(rows, name)

        self.patch(FakeBuckets, "find", counted)
        self.app.clock.advance(100)
        for passed, times in ((0, 1), (0.4, 1), (0.2, 2)):
            self.app.clock.advance(passed)
            for bucket, status in (("open", 200), ("shut", 401)):
                url = f"/storage/buckets/{bucket}/objects"
                self.assertEqual(self.app.request("GET", url, ANON).status, status)
            self.assertEqual(asked, ["open", "shut"] * times)

    def test_the_cache_of_buckets_is_bounded(self) -> None:
        self.patch(buckets_module, "MAX_CACHED", 3)
        app = StorageApp()
        buckets, tables = app.storage.buckets, app.tables
        first = ref(self.successResultOf(start(buckets.get("open"))))
        self.assertIsNotNone(first())
        for number in range(3):
            tables.buckets[f"n{number}"] = (BucketRules(), START)
            self.successResultOf(start(buckets.get(f"n{number}")))
        self.assertIsNone(first())

    def test_the_age_of_a_cached_bucket_counts_from_its_query(self) -> None:
        """A slow database must not make a bucket's old rules hold for longer."""
        path, find = "/storage/buckets/open/objects", FakeBuckets.find

        async def slow(rows: FakeBuckets, name: str) -> Bucket | None:
            bucket = await find(rows, name)
            self.app.clock.advance(0.6)
            self.app.tables.buckets["open"] = self.app.tables.buckets["shut"]
            return bucket

        self.app.clock.advance(1)
        with patch.object(FakeBuckets, "find", slow):
            self.assertEqual(self.app.request("GET", path, ANON).status, 200)
        self.assertEqual(self.app.request("GET", path, ANON).status, 401)

    def test_one_request_reads_a_bucket_again_while_others_go_by_what_is_known(self) -> None:
        path, find, held = (
            "/storage/buckets/open/objects",
            FakeBuckets.find,
            [Deferred[None](), Deferred[None]()],
        )
        asked: list[Deferred[None]] = []

        async def slow(rows: FakeBuckets, name: str) -> Bucket | None:
            asked.append(held[len(asked)])
            await asked[-1]
            return await find(rows, name)

        self.app.request("GET", path, ANON)
        self.app.clock.advance(0.5)
        with patch.object(FakeBuckets, "find", slow):
            first = self.app.connect()
            first.send(raw_request("GET", path, ANON, None))
            self.assertEqual(self.app.request("GET", path, ANON).status, 200)
            self.app.clock.advance(0.4)
            # It might have changed nearly a second ago.
            second = self.app.connect()
            second.send(raw_request("GET", path, ANON, None))
            self.assertEqual((first.received(), second.received(), len(asked)), (b"", b"", 2))
            for one in held:
                one.callback(None)
        for client in (first, second):
            self.assertIn(b"200 OK", client.received())

    def test_a_bucket_that_could_not_be_read_is_read_by_the_next_request(self) -> None:
        path = "/storage/buckets/open/objects"
        self.app.request("GET", path, ANON)
        self.app.clock.advance(0.5)
        with patch.object(FakeBuckets, "find", side_effect=database_unavailable()):
            for _ in range(2):
                self.assertEqual(self.app.request("GET", path, ANON).status, 503)

    def test_a_bucket_that_was_deleted_is_dropped_from_the_cache(self) -> None:
        self.app.put("k")
        del self.app.tables.buckets["open"]
        for method, path in (("DELETE", "/admin/buckets/open"), ("GET", "/storage/buckets/open/objects/k")):
            response = self.app.request(method, path, SERVICE)
            self.assertEqual(refused(response), (404, "bucket_not_found"), path)

    def test_a_change_elsewhere_takes_effect_within_a_second(self) -> None:
        path = "/storage/buckets/shut/objects"
        self.assertEqual(self.app.request("GET", path, ANON).status, 401)
        self.app.tables.buckets["shut"] = self.app.tables.buckets["open"]
        self.app.clock.advance(0.9)
        self.assertEqual(self.app.request("GET", path, ANON).status, 200)

    def test_deleting_a_bucket_needs_it_to_be_empty_or_force(self) -> None:
        self.app.put("a/1")
        self.app.put("b")
        path = "/admin/buckets/open"
        self.assertEqual(refused(self.app.request("DELETE", path, SERVICE)), (409, "bucket_not_empty"))
        self.assertEqual(
            refused(self.app.request("DELETE", path + "?force=1", SERVICE)), (422, "validation_failed")
        )
        self.assertEqual(self.app.request("DELETE", path + "?force=true", SERVICE).status, 204)
        self.assertEqual(self.app.stored(), [])
        self.assertEqual(refused(self.app.get("b")), (404, "bucket_not_found"))
        self.assertEqual(refused(self.app.request("DELETE", path, SERVICE)), (404, "bucket_not_found"))

    def test_uploads_during_a_forced_deletion_are_deleted_a_few_times(self) -> None:
        delete, late = FakeBuckets.delete, ["1", "2"]

        async def put_before(buckets: FakeBuckets, name: str, writer: Writer, by: By | None) -> None:
            if late:
                self.app.put(late.pop())
            await delete(buckets, name, writer, by)

        self.patch(FakeBuckets, "delete", put_before)
        for times, status in ((2, 204), (EMPTYINGS - 1, 204), (EMPTYINGS, 409)):
            self.app.tables.buckets["open"] = (BucketRules(), START)
            late[:] = [str(number) for number in range(times)]
            answer = self.app.request("DELETE", "/admin/buckets/open?force=true", SERVICE)
            self.assertEqual((answer.status, late), (status, []))

    def test_objects_below_a_prefix_are_deleted(self) -> None:
        for key in ("a/1", "a/b/2", "a2", "b"):
            self.app.put(key)
        path = "/admin/buckets/open/objects"
        self.app.rules("open", owner_only_writes=True)
        self.assertEqual(refused(self.app.request("DELETE", path, SERVICE)), (422, "validation_failed"))
        response = self.app.request("DELETE", path + "?prefix=a/", SERVICE)
        self.assertEqual((response.status, json.loads(response.body)), (200, {"deleted": 2}))
        self.assertEqual(sorted(key for _, key in self.app.tables.objects), ["a2", "b"])
        self.assertEqual(len(self.app.stored()), 2)

    def test_objects_below_a_prefix_are_counted(self) -> None:
        for key in ("a/1", "a/b/2", "a2", "b"):
            self.app.put(key, b"12")
        for query, count in (("", 4), ("?prefix=", 4), ("?prefix=a/", 2), ("?prefix=a", 3), ("?prefix=c", 0)):
            response = self.app.request("GET", f"/admin/buckets/open/usage{query}", SERVICE)
            self.assertEqual(
                (response.status, json.loads(response.body)),
                (200, {"object_count": count, "total_bytes": 2 * count}),
            )
        for path, refusal in (
            ("open/usage?prefix=%01", (422, "invalid_key")),
            ("c/usage", (404, "bucket_not_found")),
        ):
            self.assertEqual(refused(self.app.request("GET", f"/admin/buckets/{path}", SERVICE)), refusal)

    def test_changes_are_recorded(self) -> None:
        headers = {**SERVICE, "X-Request-Id": "r-1", "User-Agent": "tester"}
        self.app.post("/admin/buckets", {"name": "new"}, headers)
        self.app.request(
            "PATCH",
            "/admin/buckets/new",
            {**headers, "Content-Type": "application/json"},
            b'{"max_object_bytes": 5}',
        )
        for key in ("a/1", "a/2", "b"):
            self.app.put(key)
        for path in ("open/objects?prefix=c", "open/objects?prefix=a/", "open?force=true", "new"):
            self.app.request("DELETE", f"/admin/buckets/{path}", headers)
        events = self.app.tables.events
        self.assertEqual(
            [(event.action, event.subject) for event in events],
            [
                ("create_bucket", "new"),
                ("change_bucket", "new"),
                ("delete_objects", "open/a/"),
                ("delete_objects", "open/"),
                ("delete_bucket", "open"),
                ("delete_bucket", "new"),
            ],
        )
        self.assertEqual(
            {(event.at, event.actor, event.result) for event in events}, {(START, "service", "ok")}
        )
        self.assertEqual(
            {(event.origin.request_id, event.origin.user_agent) for event in events}, {("r-1", "tester")}
        )

    def test_object_count_and_total_bytes(self) -> None:
        self.app.put("a", b"123")
        self.app.put("a", b"12345")
        self.app.put("b", b"1")
        value = json.loads(self.app.request("GET", "/admin/buckets/open", SERVICE).body)
        self.assertEqual((value["object_count"], value["total_bytes"]), (2, 6))
