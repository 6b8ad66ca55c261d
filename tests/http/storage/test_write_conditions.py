"""Conditions and quotas of writes, and settings that change while the service runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import md5
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.settings.model import Storage as StorageSettings
from project_service.storage.values import BucketRules, ObjectRow, Viewer
from tests.fakes.common import Client, Response
from tests.fakes.storage import START, FakeObjects
from tests.http.storage.app import (
    FORM,
    OBJECTS,
    USER,
    StorageApp,
    file_form,
    form,
    head,
    part,
    refused,
)

ONE = f'"{md5(b"one", usedforsecurity=False).hexdigest()}"'
BEFORE, NOW = "Fri, 20 Nov 2026 23:59:59 GMT", "Sat, 21 Nov 2026 00:00:00 GMT"


class Conditions(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.etag = json.loads(self.app.put("k", b"one").body)["etag"]

    def test_without_conditions_an_object_is_overwritten(self) -> None:
        response = self.app.put("k", b"two")
        self.assertEqual((response.status, self.app.stored()), (200, [b"two"]))

    def test_without_conditions_the_object_is_not_looked_up(self) -> None:
        def never(*_: object) -> None:
            raise AssertionError("looked at")

        self.patch(FakeObjects, "find", never)
        self.assertEqual(self.app.put("k", b"two").status, 200)
        self.assertEqual(self.app.upload(file_form(b"three", key="k")).status, 201)

    def test_an_empty_tag_matches_nothing(self) -> None:
        self.assertEqual(self.app.put("k", b"two", If_None_Match='W/""').status, 200)
        for tags in ('""', '"", "x"'):
            self.assertEqual(refused(self.app.put("k", b"two", If_Match=tags)), (412, "precondition_failed"))

    def test_if_none_match(self) -> None:
        self.assertEqual(refused(self.app.put("k", b"two", If_None_Match="*")), (412, "object_exists"))
        for tag in (f'"{self.etag}"', f'W/"{self.etag}"'):
            response = self.app.put("k", b"two", If_None_Match=tag)
            self.assertEqual(refused(response), (412, "precondition_failed"))
        self.assertEqual(self.app.put("new", b"two", If_None_Match="*").status, 201)
        response = self.app.upload(file_form(key="k"), headers={**USER, "If-None-Match": "*"})
        self.assertEqual(refused(response), (412, "object_exists"))
        late = form(part("file", b"x", "n"), part("key", b"k"))
        self.assertEqual(
            refused(self.app.upload(late, headers={**USER, "If-None-Match": "*"})), (412, "object_exists")
        )
        self.assertEqual(sorted(self.app.stored()), [b"one", b"two"])

    def test_x_upsert_says_whether_an_object_may_be_replaced(self) -> None:
        """As Supabase's clients send it. Whatever is not ``true`` replaces nothing."""
        self.app.put("source", b"two")
        copy = {"from": "source", "to": "k"}
        for said in ("false", "FALSE", "no", "undefined", "", "true, false"):
            sent = {**USER, "X-Upsert": said}
            planned = {"key": "k", "size": 1}
            for response in (
                self.app.put("k", b"two", X_Upsert=said),
                self.app.upload(file_form(b"two", key="k"), headers=sent),
                self.app.upload(file_form(b"two", "k"), headers=sent),
                self.app.post(f"{OBJECTS}?dry_run=true", planned, sent),
                self.app.post("/storage/buckets/open/copy", copy, sent),
                self.app.post("/storage/buckets/open/move", copy, sent),
            ):
                self.assertEqual(refused(response), (412, "object_exists"), said)
        self.assertEqual(self.app.get("k").body, b"one")
        # What makes no object is not about replacing one.
        sent = {**USER, "X-Upsert": "false", "Content-Type": "application/json"}
        self.assertEqual(self.app.request("PATCH", f"{OBJECTS}/k", sent, b'{"metadata": {}}').status, 200)
        self.assertEqual(self.app.request("DELETE", f"{OBJECTS}/k", sent).status, 204)
        self.assertEqual(self.app.put("k", b"new", X_Upsert="false").status, 201)
        for said in ("true", "True", "true, true"):
            self.assertEqual(self.app.put("k", said.encode(), X_Upsert=said).status, 200)
            self.assertEqual(self.app.get("k").body, said.encode())

    def test_if_match(self) -> None:
        for tag in ('"other"', f'W/"{self.etag}"'):
            self.assertEqual(refused(self.app.put("k", b"2", If_Match=tag)), (412, "precondition_failed"))
        self.assertEqual(refused(self.app.put("no", b"2", If_Match="*")), (412, "precondition_failed"))
        self.assertEqual(self.app.put("k", b"2", If_Match=f'"x", "{self.etag}"').status, 200)
        self.assertEqual(self.app.put("k", b"3", If_Match="*").status, 200)

    def test_conditions_are_checked_before_the_body_is_read(self) -> None:
        for name, value in (("None-Match", "*"), ("Match", '"other"'), ("Unmodified-Since", BEFORE)):
            client = self.app.connect()
            lines = {"Content-Length": "3", "Expect": "100-continue", f"If-{name}": value}
            client.send(head(lines, "PUT", OBJECTS + "/k"))
            self.assertTrue(client.received().startswith(b"HTTP/1.1 412 "), name)

    def test_conditions_hold_when_the_object_is_switched_too(self) -> None:
        client = self.app.connect()
        client.send(head({"Content-Length": "3", "If-None-Match": "*"}, "PUT", OBJECTS + "/race"))
        self.app.put("race", b"won")
        client.send(b"two")
        self.assertIn(b"object_exists", client.received())
        self.assertEqual(sorted(self.app.stored()), [b"one", b"won"])

    def test_an_object_overwritten_since_it_was_looked_up_is_not_deleted(self) -> None:
        stale = self.app.tables.objects["open", "k"]
        self.app.put("k", b"newer")

        async def looked_at_before(*_: object) -> ObjectRow:
            return stale

        self.patch(FakeObjects, "find", looked_at_before)
        sent = {**USER, "If-Match": f'"{self.etag}"'}
        response = self.app.request("DELETE", f"{OBJECTS}/k", sent)
        self.assertEqual(refused(response), (412, "precondition_failed"))
        self.assertEqual(self.app.stored(), [b"newer"])


WAYS: dict[str, Callable[[StorageApp, dict[str, str]], Response]] = {
    "put": lambda app, sent: app.request("PUT", OBJECTS + "/k", sent, b"two"),
    "form": lambda app, sent: app.upload(file_form(key="k"), headers=sent),
    "late": lambda app, sent: app.upload(form(part("file", b"x", "n"), part("key", b"k")), headers=sent),
    "copy": lambda app, sent: app.post("/storage/buckets/open/copy", {"from": "other", "to": "k"}, sent),
    "move": lambda app, sent: app.post("/storage/buckets/open/move", {"from": "other", "to": "k"}, sent),
    "delete": lambda app, sent: app.request("DELETE", OBJECTS + "/k", sent),
}


class UnmodifiedSince(TestCase):
    """If-Unmodified-Since (RFC 9110 section 13.1.4): an object that has changed since is neither replaced nor
    deleted."""

    def changed(self, way: str, **sent: str) -> bool:
        """Sends a change of ``k`` and returns whether it was made; if not, asserts that the response is 412 and
        nothing has changed."""
        app = StorageApp()
        app.put("k", b"one")
        app.put("other", b"other")
        headers = {**USER, **{name.replace("_", "-"): value for name, value in sent.items()}}
        answer = WAYS[way](app, headers)
        if answer.status < 300:
            self.assertNotIn(b"one", app.stored())
            return True
        self.assertEqual(refused(answer), (412, "precondition_failed"))
        self.assertEqual(sorted(app.stored()), [b"one", b"other"])
        return False

    def test_it_holds_for_every_kind_of_change(self) -> None:
        for way in WAYS:
            self.assertFalse(self.changed(way, If_Unmodified_Since=BEFORE), way)
            self.assertTrue(self.changed(way, If_Unmodified_Since=NOW), way)

    def test_a_tag_wins_over_the_date_and_an_invalid_date_is_ignored(self) -> None:
        self.assertTrue(self.changed("put", If_Unmodified_Since=BEFORE, If_Match="*"))
        self.assertFalse(self.changed("put", If_Unmodified_Since=NOW, If_Match='"other"'))
        self.assertTrue(self.changed("put", If_Unmodified_Since="nonsense"))
        self.assertFalse(self.changed("put", If_Unmodified_Since=BEFORE, If_None_Match='"other"'))
        self.assertFalse(self.changed("move", If_Unmodified_Since=NOW, If_None_Match=ONE))

    def test_a_missing_object_has_no_date(self) -> None:
        app = StorageApp()
        sent = {**USER, "If-Unmodified-Since": BEFORE}
        self.assertEqual(refused(WAYS["delete"](app, sent)), (404, "object_not_found"))
        self.assertEqual(WAYS["put"](app, sent).status, 201)

    def test_a_change_at_the_last_moment_is_not_lost(self) -> None:
        """It happens after the row was looked up, so the database compares the tag when it switches."""
        for already in (True, False):
            app = StorageApp()
            if already:
                app.put("k", b"one")
            client = app.connect()
            client.send(head({"Content-Length": "3", "If-Unmodified-Since": NOW}, "PUT", OBJECTS + "/k"))
            self.overtaken(app)
            client.send(b"two")
            self.assertTrue(client.received().startswith(b"HTTP/1.1 412 "))
            self.assertEqual(app.stored(), [b"won"])

    def overtaken(self, app: StorageApp) -> None:
        """After the next look at a row, somebody else changes it first."""
        find = FakeObjects.find

        async def slow(
            rows: FakeObjects, bucket: str, key: str, viewer: Viewer | None = None
        ) -> ObjectRow | None:
            row = await find(rows, bucket, key, viewer)
            self.patch(FakeObjects, "find", find)
            app.put("k", b"won")
            return row

        self.patch(FakeObjects, "find", slow)


CONTINUE = b"HTTP/1.1 100 "


class AtTheSwitch(TestCase):
    def test_the_quota_counts_replaced_and_deleted_objects(self) -> None:
        app = StorageApp()
        app.rules("open", max_bucket_bytes=10)
        self.assertEqual(app.put("a", b"x" * 6).status, 201)
        self.assertEqual(refused(app.put("b", b"x" * 5)), (413, "payload_too_large"))
        self.assertEqual(refused(app.put("b", b"x" * 11)), (413, "payload_too_large"))
        self.assertEqual(app.put("a", b"x" * 10).status, 200)
        self.assertEqual(app.request("DELETE", OBJECTS + "/a", USER).status, 204)
        self.assertEqual(app.put("b", b"x" * 10).status, 201)
        app.rules("open", max_bucket_bytes=5)
        self.assertEqual(refused(app.put("b", b"x" * 11)), (413, "payload_too_large"))
        for smaller in (9, 4):
            self.assertEqual(app.put("b", b"x" * smaller).status, 200)
            self.assertEqual(app.upload(file_form(b"x" * smaller, key="b")).status, 201)

    def test_the_details_tell_the_quota_from_the_object_limit(self) -> None:
        app = StorageApp()
        app.rules("open", max_bucket_bytes=10)
        app.put("a", b"x" * 6)
        for sent in (b"x" * 5, b"x" * 11):
            for response in (app.put("b", sent), app.upload(file_form(sent))):
                self.assertEqual(list(json.loads(response.body)["error"]["details"]), ["bucket"])
        client = app.connect()
        client.send(head({"Content-Length": "11", "Expect": "100-continue"}, "PUT", OBJECTS + "/b"))
        self.assertIn(b"max_bucket_bytes", client.received())
        # The same holds for a body of unknown length.
        client = app.connect()
        client.send(head({"Transfer-Encoding": "chunked"}, "PUT", OBJECTS + "/b") + b"b\r\n" + b"x" * 11)
        self.assertIn(b"max_bucket_bytes", client.received())
        for quota in (10, None):
            app.rules("open", max_object_bytes=4, max_bucket_bytes=quota)
            self.assertNotIn("details", json.loads(app.put("b", b"x" * 5).body)["error"])


class FromTheHeaders(TestCase):
    """The quota is 10 bytes, of which the object ``a`` has 6."""

    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.rules("open", max_bucket_bytes=10)
        self.app.put("a", b"x" * 6)
        self.app.clock.advance(1)

    def asked(self, length: int, path: str = "/b", method: str = "PUT", **lines: str) -> Client:
        client = self.app.connect()
        sent = {"Content-Length": str(length), "Expect": "100-continue", **lines}
        client.send(head(sent, method, OBJECTS + path))
        return client

    def test_an_upload_that_cannot_fit_is_refused_before_its_body(self) -> None:
        for key, length in (("/b", 5), ("/a", 11), ("/b", 10)):
            answer = self.asked(length, key).received()
            self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer)
            self.assertIn(b"max_bucket_bytes", answer)
        self.assertEqual(self.app.stored(), [b"x" * 6])

    def test_an_upload_that_may_fit_is_read(self) -> None:
        for key, length in (("/b", 4), ("/a", 10), ("/a", 7), ("/b", 0)):
            client = self.asked(length, key)
            self.assertEqual(client.received()[:13], CONTINUE if length else b"HTTP/1.1 201 ", (key, length))
            client.hang_up()

    def test_in_a_bucket_beyond_its_quota_an_object_may_be_replaced_by_a_smaller_one(self) -> None:
        self.app.rules("open", max_bucket_bytes=3)
        self.assertTrue(self.asked(6, "/a").received().startswith(CONTINUE))
        self.assertTrue(self.asked(7, "/a").received().startswith(b"HTTP/1.1 413 "))
        self.assertTrue(self.asked(1, "/b").received().startswith(b"HTTP/1.1 413 "))

    def test_space_freed_a_moment_ago_counts(self) -> None:
        self.app.get("a")  # the bucket is remembered as it is now
        self.app.request("DELETE", OBJECTS + "/a", USER)
        self.assertTrue(self.asked(10).received().startswith(CONTINUE))

    def test_a_quota_lifted_a_moment_ago_refuses_nothing(self) -> None:
        self.app.get("a")
        self.app.tables.buckets["open"] = (BucketRules("public"), START)
        self.assertTrue(self.asked(10).received().startswith(CONTINUE))

    def test_with_enough_room_the_database_is_not_queried(self) -> None:
        def never(*_: object) -> None:
            raise AssertionError("asked")

        self.patch(FakeObjects, "room", never)
        self.assertEqual(self.app.put("b", b"x" * 4).status, 201)
        self.app.rules("open")
        self.assertEqual(self.app.put("b", b"x" * 40).status, 200)

    def test_a_form_with_a_known_key_is_refused_before_its_file(self) -> None:
        for least, refusal in ((5, True), (4, False)):
            client = self.asked(256 * 1024 + least, "", "POST", **FORM)
            self.assertEqual(client.received()[:13], CONTINUE)
            client.send(part("key", b"b") + part("file", b"x", "f")[:-3])
            self.assertEqual(b"max_bucket_bytes" in client.received(), refusal)
            client.hang_up()
        self.assertEqual(self.app.stored(), [b"x" * 6])

    def test_the_size_of_a_form_is_not_that_of_its_file(self) -> None:
        self.assertEqual(self.app.upload(file_form(b"x" * 4, key="b")).status, 201)


class InForce(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("k")

    def set(self, **settings: Any) -> None:
        self.app.storage.live.settings = StorageSettings(**settings)

    def test_default_expires_in_seconds(self) -> None:
        for seconds, expires_at in ((60, "2026-11-21T00:01:00.000Z"), (7200, "2026-11-21T02:00:00.000Z")):
            self.set(default_expires_in_seconds=seconds)
            made = self.app.post("/storage/buckets/open/presign", {"key": "k"})
            self.assertEqual(json.loads(made.body)["expires_at"], expires_at)

    def test_public_max_age_seconds(self) -> None:
        for seconds, caching in ((0, "public, no-cache"), (60, "public, max-age=60")):
            self.set(public_max_age_seconds=seconds)
            self.assertEqual(self.app.get("k").header("cache-control"), caching)

    def test_max_object_bytes(self) -> None:
        self.set(max_object_bytes=4)
        self.assertEqual(refused(self.app.put("k")), (413, "payload_too_large"))
        self.set(max_object_bytes=5)
        self.assertEqual(self.app.put("k").status, 200)

    def test_keep_removed_seconds(self) -> None:
        self.set(keep_removed_seconds=100)
        self.assertEqual(self.app.request("DELETE", "/storage/buckets/open/objects/k", USER).status, 204)
        self.assertEqual(len(self.app.store.objects), 1)
        self.app.put("k")
        self.set()
        self.assertEqual(self.app.request("DELETE", "/storage/buckets/open/objects/k", USER).status, 204)
        self.assertEqual(len(self.app.store.objects), 1)
