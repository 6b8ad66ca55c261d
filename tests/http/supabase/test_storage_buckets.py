"""``/storage/v1/bucket``: shapes, sizes, and who may."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.errors import ApiError
from project_service.storage.values import (
    MAX_OBJECT_BYTES,
    USER_ROLE,
    Bucket,
    BucketRules,
    Identity,
)
from project_service.supabase.storage.buckets import read_size
from tests.captured_log import logged_until_the_end
from tests.fakes.common import ANON_KEY, SERVICE_KEY
from tests.http.storage.app import ALICE
from tests.http.supabase.storage_app import ANON, SERVICE, USER, V1, ClientApp, told


class Buckets(TestCase):
    def setUp(self) -> None:
        self.app = ClientApp()

    def create(self, headers: dict[str, str] = SERVICE, **body: Any) -> Any:
        return self.app.ask("POST", "/bucket", {"name": "avatars", **body}, headers)

    def shown(self, name: str = "avatars") -> Any:
        return self.app.value("GET", f"/bucket/{name}", headers=SERVICE)

    def test_one_is_made_with_policies_and_shown(self) -> None:
        made = self.create(id="avatars", type="STANDARD", unheard_of=True)
        self.assertEqual((made.status, json.loads(made.body)), (200, {"name": "avatars"}))
        rules, _ = self.app.tables.buckets["avatars"]
        self.assertEqual(rules, BucketRules("private", policies=True))
        at = "2026-11-21T00:00:00.000Z"
        expected = {
            "id": "avatars",
            "name": "avatars",
            "owner": "",
            "public": False,
            "file_size_limit": None,
            "allowed_mime_types": None,
            "created_at": at,
            "updated_at": at,
        }
        self.assertEqual(self.shown(), expected)
        listed = self.app.value("GET", "/bucket", headers=SERVICE)
        self.assertIn({**expected, "type": "STANDARD"}, listed)

    def test_a_public_one_may_be_read_by_anybody(self) -> None:
        self.create(public=True, file_size_limit="20MB", allowed_mime_types=["image/*"])
        rules, _ = self.app.tables.buckets["avatars"]
        expected = BucketRules(
            "public",
            max_object_bytes=20_000_000,
            allowed_content_types=("image/*",),
            anonymous_reads=True,
            policies=True,
        )
        self.assertEqual(rules, expected)
        self.assertIn("avatars", self.app.tables.open_buckets)
        shown = self.shown()
        self.assertEqual(
            (shown["public"], shown["file_size_limit"], shown["allowed_mime_types"]),
            (True, 20_000_000, ["image/*"]),
        )

    def test_what_is_absent_stays_when_it_is_changed(self) -> None:
        self.create(public=True, file_size_limit=5, allowed_mime_types=["a/b"])
        self.app.clock.advance(3)

        def change(**body: Any) -> Any:
            answer = self.app.value(
                "PUT", "/bucket/avatars", {"id": "avatars", "name": "avatars", **body}, SERVICE
            )
            self.assertEqual(answer, {"message": "Successfully updated"})
            shown = self.shown()
            return shown["public"], shown["file_size_limit"], shown["allowed_mime_types"]

        self.assertEqual(change(file_size_limit="1kb"), (True, 1000, ["a/b"]))
        self.assertEqual(change(public=False), (False, 1000, ["a/b"]))
        self.assertNotIn("avatars", self.app.tables.open_buckets)
        self.assertEqual(self.app.tables.buckets["avatars"][0].visibility, "private")
        self.assertEqual(change(file_size_limit=None, allowed_mime_types=None), (False, None, None))
        self.assertEqual(change(public=True), (True, None, None))
        self.assertEqual(self.shown()["updated_at"], "2026-11-21T00:00:03.000Z")

    def test_they_are_listed_in_pages_and_sorted(self) -> None:
        self.app.clock.advance(1)
        self.create()

        def names(query: str = "") -> list[str]:
            return [one["name"] for one in self.app.value("GET", f"/bucket{query}", headers=SERVICE)]

        everything = ["avatars", "open", "policed", "shown", "shut"]
        self.assertEqual(names(), everything)
        self.assertEqual(names("?limit=2&offset=1"), everything[1:3])
        self.assertEqual(names("?search=SH"), ["shown", "shut"])
        self.assertEqual(names("?sortColumn=created_at&sortOrder=desc")[0], "avatars")
        for query in ("?limit=0", "?offset=-1", "?sortColumn=owner", "?sortOrder=up", "?limit=x"):
            self.assertEqual(
                told(self.app.ask("GET", f"/bucket{query}", headers=SERVICE)), (400, "400", "InvalidRequest")
            )

    def test_one_is_emptied_and_deleted(self) -> None:
        self.create()
        self.app.put("k", bucket="shut")
        self.app.request("PUT", "/storage/buckets/avatars/objects/k", SERVICE_HEADERS, b"x")
        self.assertEqual(
            told(self.app.ask("DELETE", "/bucket/avatars", {}, SERVICE)), (400, "409", "ResourceNotEmpty")
        )
        emptied = self.app.value("POST", "/bucket/avatars/empty", {}, SERVICE)
        self.assertIn("message", emptied)
        self.assertEqual([key for _, key in self.app.tables.objects], ["k"])
        deleted = self.app.value("DELETE", "/bucket/avatars", {}, SERVICE)
        self.assertEqual(deleted, {"message": "Successfully deleted"})
        for method, path in (
            ("GET", "/bucket/avatars"),
            ("DELETE", "/bucket/avatars"),
            ("POST", "/bucket/avatars/empty"),
        ):
            refused = self.app.ask(method, path, None, SERVICE)
            self.assertEqual(told(refused), (400, "404", "NoSuchBucket"))
            self.assertEqual(json.loads(refused.body)["message"], "Bucket not found")
        self.assertEqual(
            told(self.app.ask("PUT", "/bucket/avatars", {}, SERVICE)), (400, "404", "NoSuchBucket")
        )

    def test_what_the_service_key_changes_is_recorded(self) -> None:
        before = len(self.app.tables.events)
        self.create()
        self.app.ask("PUT", "/bucket/avatars", {"public": True}, SERVICE)
        self.app.request("PUT", "/storage/buckets/avatars/objects/k", SERVICE_HEADERS, b"x")
        for method, path in (("POST", "/bucket/avatars/empty"), ("DELETE", "/bucket/avatars")):
            self.app.value(method, path, {}, SERVICE)
        self.app.tables.bucket_policies = lambda command, bucket, identity: True
        self.assertEqual(self.create(USER).status, 200)
        self.assertEqual(
            [(event.actor, event.action, event.subject) for event in self.app.tables.events[before:]],
            [
                ("service", "create_bucket", "avatars"),
                ("service", "change_bucket", "avatars"),
                ("service", "delete_objects", "avatars/"),
                ("service", "delete_bucket", "avatars"),
            ],
        )

    def test_refusals(self) -> None:
        self.create()
        self.assertEqual(told(self.create()), (400, "409", "BucketAlreadyExists"))
        for body in (
            {"name": "no/such/id"},
            {"name": 5},
            {"name": "b", "public": "yes"},
            {"name": "b", "file_size_limit": "20 pounds"},
            {"name": "b", "allowed_mime_types": ["image"]},
        ):
            refused = self.app.ask("POST", "/bucket", body, SERVICE)
            self.assertEqual(told(refused), (400, "400", "InvalidRequest"), body)

    def test_without_policies_only_the_service_key_changes_them_and_others_see_none(self) -> None:
        before = {**self.app.tables.buckets}
        for headers in (ANON, USER):
            self.assertEqual(told(self.create(headers)), (400, "403", "AccessDenied"))
            for method, path, body in (
                ("PUT", "/bucket/shown", {"public": True}),
                ("PUT", "/bucket/shown", {}),
                ("POST", "/bucket/shown/empty", {}),
                ("DELETE", "/bucket/shown", {}),
                ("GET", "/bucket/shown", None),
            ):
                self.assertEqual(
                    told(self.app.ask(method, path, body, headers)), (400, "404", "NoSuchBucket")
                )
            self.assertEqual(self.app.value("GET", "/bucket", headers=headers), [])
        self.assertEqual(self.app.tables.buckets, before)

    def test_others_do_what_policies_let_them(self) -> None:
        allowed: set[str] = set()

        def allows(command: str, bucket: Bucket, identity: Identity) -> bool:
            mine = bucket.name in ("mine", "My files") and identity.role == USER_ROLE
            return mine and command in allowed and not (command == "check" and bucket.open)

        self.app.tables.bucket_policies = allows

        def ask(method: str, path: str = "/mine", body: Any = None, headers: Any = USER) -> str:
            answer = self.app.ask(method, f"/bucket{path}", body, headers)
            return "done" if answer.status == 200 else told(answer)[2]

        self.assertEqual(ask("POST", "", {"name": "mine"}), "AccessDenied")
        allowed.add("insert")
        self.assertEqual(ask("POST", "", {"name": "mine"}, ANON), "AccessDenied")
        self.assertEqual(ask("POST", "", {"name": "other"}), "AccessDenied")
        self.assertEqual(ask("POST", "", {"name": "mine"}), "done")
        self.assertEqual(ask("POST", "", {"name": "mine"}), "BucketAlreadyExists")
        self.assertEqual(ask("POST", "", {"name": "My files"}), "done")
        self.assertEqual(ask("GET"), "NoSuchBucket")
        allowed |= {"select", "check"}
        self.assertEqual(self.app.value("GET", "/bucket/mine")["owner"], str(ALICE))
        names = [one["name"] for one in self.app.value("GET", "/bucket?sortOrder=desc")]
        self.assertEqual(names, ["mine", "My files"])
        self.assertEqual(self.app.value("GET", "/bucket", headers=ANON), [])
        for method, path, body in (
            ("PUT", "/mine", {"file_size_limit": 5}),
            ("DELETE", "/mine", {}),
        ):
            self.assertEqual(ask(method, path, body), "AccessDenied")
        self.assertEqual(ask("PUT", "/mine", {}), "done")  # nothing
        allowed |= {"update", "delete"}
        self.assertEqual(ask("PUT", "/mine", {"public": True}), "AccessDenied")
        self.assertEqual(ask("PUT", "/mine", {"file_size_limit": 5}), "done")
        self.assertEqual(self.shown("mine")["file_size_limit"], 5)
        self.assertEqual(ask("DELETE", "/mine", {}, ANON), "NoSuchBucket")
        self.assertEqual(ask("DELETE", "/mine", {}), "done")

    def test_who_sees_a_bucket_empties_it_of_what_they_may_delete(self) -> None:
        self.app.tables.bucket_policies = lambda command, bucket, identity: command == "select"
        deletable = {"a", "b"}
        self.app.tables.policies = lambda command, row, identity: command != "delete" or row.key in deletable
        for key in ("a", "b", "kept"):
            put = self.app.request("POST", f"{V1}/object/policed/{key}", SERVICE, b"x")
            self.assertEqual(put.status, 200, put.body)
        refused = self.app.ask("POST", "/bucket/policed/empty", {})
        self.assertEqual(told(refused), (400, "403", "AccessDenied"))
        self.assertEqual(len(self.app.tables.objects), 3)
        deletable.add("kept")
        self.assertIn("message", self.app.value("POST", "/bucket/policed/empty", {}))
        self.assertEqual(self.app.tables.objects, {})

    def test_a_policy_that_fails_refuses(self) -> None:
        def fails(command: str, bucket: Bucket, identity: Identity) -> bool:
            raise ZeroDivisionError

        self.app.tables.bucket_policies = fails
        for method, path, body, code in (
            ("GET", "", None, "AccessDenied"),
            ("POST", "", {"name": "mine"}, "AccessDenied"),
            ("GET", "/shown", None, "NoSuchBucket"),
            ("PUT", "/shown", {"public": False}, "NoSuchBucket"),
            ("DELETE", "/shown", {}, "NoSuchBucket"),
        ):
            answer = self.app.ask(method, f"/bucket{path}", body)
            self.assertEqual(told(answer)[2], code, (method, path))

    def test_no_types_are_all_types(self) -> None:
        self.create(allowed_mime_types=[])
        self.assertEqual(self.shown()["allowed_mime_types"], None)
        self.app.value("PUT", "/bucket/avatars", {"allowed_mime_types": []}, SERVICE)
        self.assertEqual(self.shown()["allowed_mime_types"], None)

    def test_a_key_is_needed_wherever_it_is_and_never_logged(self) -> None:
        log = logged_until_the_end(self)
        for headers, query in (
            ({"apikey": SERVICE_KEY}, ""),
            ({"Authorization": f"Bearer {SERVICE_KEY}"}, ""),
            ({}, f"?apikey={SERVICE_KEY}"),
        ):
            self.assertTrue(self.app.value("GET", f"/bucket{query}", headers=headers))
        self.assertEqual(told(self.app.ask("GET", "/bucket", headers={})), (400, "400", "AccessDenied"))
        for headers in ({"apikey": "wrong"}, {"Authorization": "Bearer wrong"}):
            self.assertEqual(
                told(self.app.ask("GET", "/bucket", headers=headers)), (400, "403", "AccessDenied")
            )
        ended = {"apikey": ANON_KEY, "Authorization": "Bearer what"}
        self.assertEqual(told(self.app.ask("GET", "/bucket", headers=ended)), (400, "403", "AccessDenied"))
        for secret in (SERVICE_KEY, ANON_KEY, "wrong"):
            self.assertNotIn(secret, str(log))
        self.assertIn("/storage/v1/bucket", str(log))


SERVICE_HEADERS = {"apikey": SERVICE_KEY}


class Sizes(TestCase):
    def test_units_are_decimal(self) -> None:
        for text, size in (
            ("20MB", 20_000_000),
            ("20mb", 20_000_000),
            ("1.5 kB", 1500),
            ("7", 7),
            ("7b", 7),
            ("2GB", 2 * 10**9),
            (7, 7),
            (7.0, 7),
            (None, None),
            (0, None),
            ("0", None),
        ):
            self.assertEqual(read_size("n", text), size)

    @given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.integers())))
    def test_everything_else_is_refused(self, value: object) -> None:
        try:
            size = read_size("n", value)
        except ApiError as refusal:
            self.assertEqual((refusal.code, [*(refusal.details or ())]), ("validation_failed", ["n"]))
        else:
            self.assertTrue(size is None or 0 < size <= MAX_OBJECT_BYTES)
