"""Download links: made, used once, expired, forgotten; the token stays out of sight."""

from __future__ import annotations

import json
from typing import Any, cast

from twisted.logger import ILogObserver, globalLogPublisher
from twisted.trial.unittest import TestCase

from tests.http.storage_app import ANON, SERVICE, USER, StorageApp, refused

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

    def test_what_presign_answers(self) -> None:
        made = self.made()
        self.assertEqual(made["method"], "GET")
        self.assertEqual(made["expires_at"], "2026-11-21T01:00:00.000Z")
        self.assertRegex(
            made["url"], r"^http://api\.example\.test/storage/download\?token=[A-Za-z0-9_-]{43}$"
        )
        self.assertEqual(self.made(expires_in_seconds=604800)["expires_at"], "2026-11-28T00:00:00.000Z")

    def test_only_a_digest_is_kept(self) -> None:
        token = self.path().partition("=")[2]
        (kept,) = self.app.tables.links
        self.assertEqual(len(kept), 32)
        self.assertNotIn(token, repr(self.app.tables.links))

    def test_one_get_without_any_header(self) -> None:
        path = self.path()
        response = self.app.request("GET", path)
        self.assertEqual((response.status, response.body), (200, b"hello"))
        self.assertEqual(response.header("referrer-policy"), "no-referrer")
        self.assertEqual(response.header("cache-control"), "no-store")
        self.assertIn("attachment", response.header("content-disposition") or "")
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_used"))
        self.assertEqual(self.app.request("HEAD", path).status, 410)

    def test_a_partial_answer_uses_it_too(self) -> None:
        path = self.path()
        response = self.app.request("GET", path, {"Range": "bytes=1-2"})
        self.assertEqual((response.status, response.body), (206, b"el"))
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_used"))

    def test_what_does_not_use_it(self) -> None:
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

    def test_several_uses_and_any_number(self) -> None:
        twice, always = self.path(uses=2), self.path(uses=0)
        self.assertEqual([self.app.request("GET", twice).status for _ in range(3)], [200, 200, 410])
        self.assertEqual([self.app.request("GET", always).status for _ in range(5)], [200] * 5)

    def test_expired(self) -> None:
        path = self.path(expires_in_seconds=10, uses=0)
        self.app.clock.advance(9.9)
        self.assertEqual(self.app.request("GET", path).status, 200)
        self.app.clock.advance(0.1)
        self.assertEqual(refused(self.app.request("GET", path)), (410, "token_expired"))

    def test_unknown(self) -> None:
        for token in ("x", "a" * 43, "%00", "%C3%A4"):
            response = self.app.request("GET", f"/storage/download?token={token}")
            self.assertEqual(refused(response), (404, "token_not_found"))
        for query in ("", "?token=", "?other=x"):
            self.assertEqual(
                refused(self.app.request("GET", f"/storage/download{query}")), (422, "validation_failed")
            )

    def test_a_link_that_loses_the_race_drops_its_read(self) -> None:
        path = self.path()
        links = self.app.storage._routes[0].links
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
        self.assertTrue(self.app.store.opened[-1].dropped)

    def test_it_is_bound_to_its_key(self) -> None:
        path = self.path(uses=0)
        self.app.put("d/k.txt", b"newer", bucket="shut")
        self.assertEqual(self.app.request("GET", path).body, b"newer")
        self.app.post("/storage/buckets/shut/move", {"from": "d/k.txt", "to": "other"})
        self.assertEqual(refused(self.app.request("GET", path)), (404, "object_not_found"))

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
        events: list[dict[str, Any]] = []
        globalLogPublisher.addObserver(cast(ILogObserver, events.append))
        self.addCleanup(globalLogPublisher.removeObserver, cast(ILogObserver, events.append))
        path = self.path()
        token = path.partition("=")[2]
        for _ in range(2):
            self.app.request("GET", path, {**SERVICE, "Referer": "http://x/"})
        self.assertTrue(events)
        self.assertNotIn(token, repr(events))
        self.assertNotIn(token.encode(), self.app.metrics.exposition())


class CopyMoveDelete(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("a", b"aaa", Content_Type="text/x-a")

    def post(self, what: str, source: str, target: str, **headers: str) -> Any:
        sent = {**USER, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.app.post(f"/storage/buckets/open/{what}", {"from": source, "to": target}, sent)

    def test_copy(self) -> None:
        response = self.post("copy", "a", "b/c")
        self.assertEqual(response.status, 201)
        value = json.loads(response.body)
        self.assertEqual((value["key"], value["size"], value["content_type"]), ("b/c", 3, "text/x-a"))
        self.assertEqual(self.app.stored(), [b"aaa", b"aaa"])

    def test_move_changes_rows_alone(self) -> None:
        calls = list(self.app.store.calls)
        response = self.post("move", "a", "b")
        self.assertEqual((response.status, json.loads(response.body)["key"]), (200, "b"))
        self.assertEqual(self.app.store.calls, calls)
        self.assertEqual(refused(self.app.get("a")), (404, "object_not_found"))
        self.assertEqual(self.app.get("b").body, b"aaa")

    def test_they_overwrite_unless_told_not_to(self) -> None:
        for what in ("copy", "move"):
            self.app.put("a", b"aaa")
            self.app.put("b", b"bbb")
            self.assertEqual(refused(self.post(what, "a", "b", If_None_Match="*")), (412, "object_exists"))
            self.assertIn(self.post(what, "a", "b").status, (200, 201))
            self.assertEqual(self.app.get("b").body, b"aaa")
        self.assertEqual(self.app.stored(), [b"aaa"])

    def test_what_they_refuse(self) -> None:
        for what in ("copy", "move"):
            self.assertEqual(refused(self.post(what, "none", "b")), (404, "object_not_found"))
            self.assertEqual(refused(self.post(what, "a", "a")), (422, "validation_failed"))
            self.assertEqual(refused(self.post(what, "a", "../b")), (422, "invalid_key"))
            path = f"/storage/buckets/open/{what}"
            for body in (
                {"from": "a"},
                {"to": "a"},
                {"from": 1, "to": "b"},
                {"from": "a", "to": "b", "x": 1},
            ):
                self.assertEqual(refused(self.app.post(path, body)), (422, "validation_failed"))
        self.assertEqual(self.app.stored(), [b"aaa"])

    def test_copy_keeps_the_quota(self) -> None:
        self.app.rules("open", max_bucket_bytes=5)
        self.assertEqual(refused(self.post("copy", "a", "b")), (413, "payload_too_large"))
        self.assertEqual(self.app.stored(), [b"aaa"])

    def test_delete(self) -> None:
        path = "/storage/buckets/open/objects/a"
        response = self.app.request("DELETE", path, USER)
        self.assertEqual(
            (response.status, response.body, response.header("content-length")), (204, b"", None)
        )
        self.assertEqual(self.app.stored(), [])
        self.assertEqual(refused(self.app.request("DELETE", path, USER)), (404, "object_not_found"))

    def test_delete_while_the_store_is_away_is_done_later(self) -> None:
        self.app.store.away = True
        self.assertEqual(self.app.request("DELETE", "/storage/buckets/open/objects/a", USER).status, 204)
        self.assertEqual((len(self.app.tables.objects), len(self.app.tables.garbage)), (0, 1))

    def test_bulk_delete(self) -> None:
        self.app.put("b")
        response = self.app.post("/storage/buckets/open/delete", {"keys": ["b", "x", "a", "b"]})
        self.assertEqual(
            (response.status, json.loads(response.body)), (200, {"deleted": ["b", "a"], "missing": ["x"]})
        )
        self.assertEqual(self.app.stored(), [])
        for keys, expected in (
            ([], "validation_failed"), (["x"] * 1001, "validation_failed"), ("a", "validation_failed"),
            ([1], "validation_failed"), (["../x"], "invalid_key"), (None, "validation_failed"),
        ):  # fmt: skip
            refusal = self.app.post("/storage/buckets/open/delete", {"keys": keys})
            self.assertEqual(refused(refusal), (422, expected))


class Admin(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()

    def change(self, name: str, /, **rules: Any) -> Any:
        sent = {**SERVICE, "Content-Type": "application/json"}
        return self.app.request("PATCH", f"/admin/buckets/{name}", sent, json.dumps(rules).encode())

    def test_only_with_the_service_key(self) -> None:
        for headers in (ANON, USER):
            for method, path in (
                ("GET", "/admin/buckets"), ("POST", "/admin/buckets"), ("GET", "/admin/buckets/open"),
                ("PATCH", "/admin/buckets/open"), ("DELETE", "/admin/buckets/open"),
                ("DELETE", "/admin/buckets/open/objects?prefix="),
            ):  # fmt: skip
                self.assertEqual(
                    refused(self.app.request(method, path, headers)), (403, "service_key_required")
                )
        self.assertEqual(refused(self.app.request("GET", "/admin/buckets")), (401, "project_key_required"))

    def test_create_show_list(self) -> None:
        given = {
            "name": "b.new",
            "visibility": "public",
            "max_object_bytes": 10,
            "max_bucket_bytes": 100,
            "allowed_content_types": ["image/*"],
            "owner_only_writes": True,
        }
        response = self.app.post("/admin/buckets", given, SERVICE)
        self.assertEqual(response.status, 201)
        expected = {**given, "object_count": 0, "total_bytes": 0, "created_at": "2026-11-21T00:00:00.000Z"}
        self.assertEqual(json.loads(response.body), expected)
        self.assertEqual(json.loads(self.app.request("GET", "/admin/buckets/b.new", SERVICE).body), expected)
        names = [
            b["name"] for b in json.loads(self.app.request("GET", "/admin/buckets", SERVICE).body)["buckets"]
        ]
        self.assertEqual(names, ["b.new", "open", "shut"])
        self.assertEqual(refused(self.app.post("/admin/buckets", given, SERVICE)), (409, "bucket_exists"))

    def test_a_new_bucket_is_private(self) -> None:
        response = self.app.post("/admin/buckets", {"name": "n"}, SERVICE)
        self.assertEqual(json.loads(response.body)["visibility"], "private")

    def test_values_that_are_not_allowed(self) -> None:
        for given in (
            {}, {"name": 1}, {"name": "No"}, {"name": ""}, {"name": "a" * 64}, {"name": "a-"}, {"name": "a/b"},
            {"name": "n", "visibility": "secret"}, {"name": "n", "max_object_bytes": 0},
            {"name": "n", "max_object_bytes": "1"}, {"name": "n", "max_bucket_bytes": -1},
            {"name": "n", "max_bucket_bytes": True}, {"name": "n", "max_bucket_bytes": 10**30},
            {"name": "n", "allowed_content_types": "image/*"}, {"name": "n", "allowed_content_types": ["image"]},
            {"name": "n", "owner_only_writes": 1}, {"name": "n", "object_count": 5}, {"name": "n", "other": 1},
        ):  # fmt: skip
            self.assertEqual(
                refused(self.app.post("/admin/buckets", given, SERVICE)), (422, "validation_failed"), given
            )
        self.assertEqual(sorted(self.app.tables.buckets), ["open", "shut"])

    def test_a_change_holds_at_once_here(self) -> None:
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

    def test_a_change_elsewhere_holds_within_a_second(self) -> None:
        path = "/storage/buckets/shut/objects"
        self.assertEqual(self.app.request("GET", path, ANON).status, 401)
        self.app.tables.buckets["shut"] = self.app.tables.buckets["open"]
        self.app.clock.advance(0.9)
        self.assertEqual(self.app.request("GET", path, ANON).status, 200)

    def test_delete(self) -> None:
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

    def test_delete_a_prefix(self) -> None:
        for key in ("a/1", "a/b/2", "a2", "b"):
            self.app.put(key)
        path = "/admin/buckets/open/objects"
        self.assertEqual(refused(self.app.request("DELETE", path, SERVICE)), (422, "validation_failed"))
        response = self.app.request("DELETE", path + "?prefix=a/", SERVICE)
        self.assertEqual((response.status, json.loads(response.body)), (200, {"deleted": 2}))
        self.assertEqual(sorted(key for _, key in self.app.tables.objects), ["a2", "b"])
        self.assertEqual(len(self.app.stored()), 2)

    def test_counters(self) -> None:
        self.app.put("a", b"123")
        self.app.put("a", b"12345")
        self.app.put("b", b"1")
        value = json.loads(self.app.request("GET", "/admin/buckets/open", SERVICE).body)
        self.assertEqual((value["object_count"], value["total_bytes"]), (2, 6))
