"""``If-Match`` and ``If-None-Match`` on what changes an object."""

from __future__ import annotations

import json

from twisted.trial.unittest import TestCase

from project_service.storage.model import ObjectRow
from tests.http.storage_app import (
    OBJECTS,
    USER,
    StorageApp,
    file_form,
    form,
    head,
    part,
    refused,
)
from tests.storage_fakes import FakeObjects


class Conditions(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.etag = json.loads(self.app.put("k", b"one").body)["etag"]

    def test_overwriting_is_the_rule_and_the_old_version_goes(self) -> None:
        response = self.app.put("k", b"two")
        self.assertEqual((response.status, self.app.stored()), (200, [b"two"]))

    def test_an_empty_tag_is_nobodys(self) -> None:
        self.assertEqual(self.app.put("k", b"two", If_None_Match='W/""').status, 200)
        for tags in ('""', '"", "x"'):
            self.assertEqual(refused(self.app.put("k", b"two", If_Match=tags)), (412, "precondition_failed"))

    def test_if_none_match(self) -> None:
        self.assertEqual(refused(self.app.put("k", b"two", If_None_Match="*")), (412, "object_exists"))
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

    def test_they_are_told_before_the_body_is_asked_for(self) -> None:
        client = self.app.connect()
        lines = {"Content-Length": "3", "Expect": "100-continue", "If-None-Match": "*"}
        client.send(head(lines, "PUT", OBJECTS + "/k"))
        self.assertTrue(client.received().startswith(b"HTTP/1.1 412 "))

    def test_they_hold_at_the_switch_too(self) -> None:
        client = self.app.connect()
        client.send(head({"Content-Length": "3", "If-None-Match": "*"}, "PUT", OBJECTS + "/race"))
        self.app.put("race", b"won")
        client.send(b"two")
        self.assertIn(b"object_exists", client.received())
        self.assertEqual(sorted(self.app.stored()), [b"one", b"won"])

    def test_an_object_overwritten_since_it_was_looked_at_is_not_deleted(self) -> None:
        stale = self.app.tables.objects["open", "k"]
        self.app.put("k", b"newer")

        async def looked_at_before(*_: object) -> ObjectRow:
            return stale

        self.patch(FakeObjects, "find", looked_at_before)
        sent = {**USER, "If-Match": f'"{self.etag}"'}
        response = self.app.request("DELETE", f"{OBJECTS}/k", sent)
        self.assertEqual(refused(response), (412, "precondition_failed"))
        self.assertEqual(self.app.stored(), [b"newer"])
