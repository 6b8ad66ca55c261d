"""The quota of a bucket: exact when an object is switched, and checked early if the headers say the size."""

from __future__ import annotations

import json

from twisted.trial.unittest import TestCase

from project_service.storage.values import BucketRules
from tests.fakes.common import Client
from tests.fakes.storage import START, FakeObjects
from tests.http.storage.app import FORM, OBJECTS, USER, StorageApp, file_form, head, part, refused

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

    def test_with_enough_room_the_database_is_not_asked(self) -> None:
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
