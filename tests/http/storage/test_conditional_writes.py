"""``If-Match``, ``If-None-Match`` and ``If-Unmodified-Since`` on requests that change an object."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import md5

from twisted.trial.unittest import TestCase

from project_service.storage.values import ObjectRow
from tests.fakes.common import Response
from tests.fakes.storage import FakeObjects
from tests.http.storage.app import (
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

        async def slow(rows: FakeObjects, bucket: str, key: str) -> ObjectRow | None:
            row = await find(rows, bucket, key)
            self.patch(FakeObjects, "find", find)
            app.put("k", b"won")
            return row

        self.patch(FakeObjects, "find", slow)
