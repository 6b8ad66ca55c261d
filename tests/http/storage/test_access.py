"""Every cell of the access matrix of storage, buckets that do not exist, and owner_only_writes."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.storage.values import BucketRules
from tests.fakes.common import ANON_KEY, Response
from tests.fakes.storage import START
from tests.http.storage.app import (
    ALICE,
    ANON,
    BOB,
    FORM,
    OBJECTS,
    OTHER,
    SERVICE,
    USER,
    StorageApp,
    file_form,
    form,
    head,
    part,
    refused,
)

JSON = {"Content-Type": "application/json"}
SHUT = "/storage/buckets/shut"
NEEDS_USER = (401, "authentication_required")


class Matrix(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        for bucket in ("open", "shut"):
            self.assertEqual(self.app.put("a.txt", bucket=bucket).status, 201)

    def base(self, bucket: str) -> str:
        return f"/storage/buckets/{bucket}/objects"

    def test_reading_a_public_bucket_needs_only_the_project_key(self) -> None:
        for headers in (ANON, USER, SERVICE):
            self.assertEqual(self.app.request("GET", self.base("open"), headers).status, 200)
            self.assertEqual(self.app.request("GET", self.base("open") + "/a.txt", headers).status, 200)

    def test_reading_a_private_bucket_needs_a_user(self) -> None:
        for path in (self.base("shut"), self.base("shut") + "/a.txt"):
            self.assertEqual(refused(self.app.request("GET", path, ANON)), NEEDS_USER)
            self.assertEqual(self.app.request("HEAD", path, ANON).status, 401)
            for headers in (USER, SERVICE):
                self.assertEqual(self.app.request("GET", path, headers).status, 200)

    def test_writing_needs_a_user_in_every_bucket(self) -> None:
        before = dict(self.app.tables.objects)
        for bucket in ("open", "shut"):
            base = self.base(bucket)
            tries = [
                self.app.request("POST", base, {**ANON, **FORM}, file_form()),
                self.app.request("PUT", base + "/b", ANON, b"x"),
                self.app.request("DELETE", base + "/a.txt", ANON),
                self.app.post(f"/storage/buckets/{bucket}/copy", {"from": "a.txt", "to": "b"}, ANON),
                self.app.post(f"/storage/buckets/{bucket}/move", {"from": "a.txt", "to": "b"}, ANON),
                self.app.post(f"/storage/buckets/{bucket}/delete", {"keys": ["a.txt"]}, ANON),
                # This is checked before anything else that is wrong.
                self.app.request("PUT", base + "/a//b", ANON, b"x"),
                self.app.request("DELETE", base + "/none", ANON),
                self.app.post(f"/storage/buckets/{bucket}/copy", {}, ANON),
            ]
            self.assertEqual([refused(response) for response in tries], [NEEDS_USER] * len(tries))
        self.assertEqual(self.app.tables.objects, before)

    def test_the_service_key_writes_without_a_user(self) -> None:
        base = self.base("open")
        self.assertEqual(self.app.request("PUT", base + "/s", SERVICE, b"x").status, 201)
        self.assertEqual(self.app.upload(file_form(), headers=SERVICE).status, 201)
        self.assertEqual(self.app.request("DELETE", base + "/s", SERVICE).status, 204)

    def test_without_a_valid_project_key(self) -> None:
        no_key = {"Authorization": USER["Authorization"]}
        self.assertEqual(
            refused(self.app.request("GET", self.base("open"), no_key)), (401, "project_key_required")
        )
        wrong = {**USER, "X-Service-Key": "no"}
        self.assertEqual(
            refused(self.app.request("GET", self.base("open"), wrong)), (401, "project_key_invalid")
        )

    def test_an_invalid_token_is_refused_even_on_a_public_bucket(self) -> None:
        bad = {**ANON, "Authorization": "Bearer nonsense"}
        response = self.app.request("GET", self.base("open"), bad)
        self.assertEqual(refused(response), (401, "invalid_token"))
        self.assertIn('error="invalid_token"', response.header("www-authenticate") or "")

    def test_credentials_of_s3_are_refused(self) -> None:
        signed = "AWS4-HMAC-SHA256 Credential=AKID/20261121/us-east-1/s3/aws4_request, Signature=0"
        sent = {**ANON, "Authorization": signed}
        for method, path in (("PUT", self.base("open") + "/b"), ("GET", self.base("shut") + "/a.txt")):
            self.assertEqual(refused(self.app.request(method, path, sent)), (401, "invalid_token"))

    def test_presign_needs_what_a_download_needs(self) -> None:
        wanted = {"key": "a.txt"}
        self.assertEqual(self.app.post("/storage/buckets/open/presign", wanted, ANON).status, 200)
        self.assertEqual(refused(self.app.post("/storage/buckets/shut/presign", wanted, ANON)), NEEDS_USER)
        self.assertEqual(self.app.post("/storage/buckets/shut/presign", wanted, USER).status, 200)

    def test_a_bucket_made_private_during_a_presign_request_is_respected(self) -> None:
        """A body that was begun in time may take hours; its link would open the object to whoever has it."""
        client = self.app.connect()
        client.send(
            b"POST /storage/buckets/open/presign HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"X-Service-Key: " + ANON_KEY.encode() + b'\r\nContent-Length: 16\r\n\r\n{"key": "a.txt"'
        )
        self.app.tables.buckets["open"] = (BucketRules("private"), START)
        self.app.clock.advance(1)
        client.send(b"}")
        self.assertIn(b"authentication_required", client.received())
        self.assertEqual(self.app.tables.links, {})

    def test_a_bucket_that_does_not_exist_is_404(self) -> None:
        for name in ("none", "No", "a" * 64, "-a", "a_", "%00", "..", "a%2Fb"):
            for method, path in (
                ("GET", self.base(name)),
                ("GET", self.base(name) + "/k"),
                ("DELETE", self.base(name) + "/k"),
            ):
                response = self.app.request(method, path, USER)
                self.assertEqual(refused(response), (404, "bucket_not_found"), (method, path))

    def test_refusals_known_from_the_headers_come_before_the_body(self) -> None:
        lines, json_lines = (
            {"Content-Length": "9", "Expect": "100-continue"},
            {"Content-Type": "application/json"},
        )
        for method, path, more in (
            ("POST", "objects", FORM),
            ("PUT", "objects/k", {}),
            *(("POST", what, json_lines) for what in ("presign", "copy", "move", "delete")),
        ):
            for bucket, status in (("shut", b"401"), ("none", b"404")):
                request = head({**lines, **more}, method, f"/storage/buckets/{bucket}/{path}")
                client = self.app.connect()
                client.send(request.replace(b"Authorization", b"X-Not") if bucket == "shut" else request)
                self.assertEqual(client.received()[9:12], status, (bucket, path))


class Owners(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("mine")
        self.app.rules("open", owner_only_writes=True)

    def test_another_user_may_neither_overwrite_nor_delete(self) -> None:
        path = "/storage/buckets/open/objects/mine"
        tries = [
            self.app.request("PUT", path, OTHER, b"x"),
            self.app.upload(file_form(key="mine"), headers=OTHER),
            self.app.request("DELETE", path, OTHER),
            self.app.post("/storage/buckets/open/delete", {"keys": ["mine", "none"]}, OTHER),
            self.app.post("/storage/buckets/open/move", {"from": "mine", "to": "b"}, OTHER),
        ]
        self.app.request("PUT", "/storage/buckets/open/objects/his", OTHER, b"x")
        tries.append(self.app.post("/storage/buckets/open/copy", {"from": "his", "to": "mine"}, OTHER))
        tries.append(self.app.post("/storage/buckets/open/move", {"from": "his", "to": "mine"}, OTHER))
        self.assertEqual([refused(response) for response in tries], [(403, "not_owner")] * len(tries))
        self.assertEqual(sorted(self.app.stored()), [b"hello", b"x"])

    def test_without_owner_only_writes_any_user_may(self) -> None:
        self.app.rules("open")
        path = "/storage/buckets/open/objects/mine"
        self.assertEqual(self.app.request("PUT", path, OTHER, b"x").status, 200)
        self.assertEqual(self.app.upload(file_form(key="mine"), headers=USER).status, 201)
        self.assertEqual(self.app.request("DELETE", path, OTHER).status, 204)

    def test_the_owner_and_the_service_key_may(self) -> None:
        self.assertEqual(self.app.put("mine", b"two").status, 200)
        path = "/storage/buckets/open/objects/mine"
        # Nor does an overwrite by the service key change whose the object is.
        self.app.put("other")
        for response in (
            self.app.request("PUT", path, SERVICE, b"three"),
            self.app.upload(file_form(key="mine"), headers=SERVICE),
            self.app.post("/storage/buckets/open/copy", {"from": "other", "to": "mine"}, SERVICE),
        ):
            self.assertIn(response.status, (200, 201))
            self.assertEqual(self.app.put("mine", b"four").status, 200)
            self.assertEqual(refused(self.app.request("PUT", path, OTHER, b"x")), (403, "not_owner"))
        self.assertEqual(self.app.request("DELETE", path, SERVICE).status, 204)

    def test_the_service_key_names_the_owner_of_an_upload(self) -> None:
        def upload(number: int, key: str) -> Response:
            named, field = {**SERVICE, "X-Object-Owner": BOB}, part("owner", BOB.encode())
            file = part("file", b"x", key)
            if number == 0:
                return self.app.request("PUT", f"{OBJECTS}/{key}", named, b"x")
            if number == 1:
                return self.app.post("/storage/buckets/open/copy", {"from": "other", "to": key}, named)
            bodies = (form(file), form(field, file), form(file, field))
            return self.app.upload(bodies[number - 2], headers=named if number == 2 else SERVICE)

        self.app.put("other")
        for number in range(5):
            self.app.request(
                "PATCH", f"{OBJECTS}/mine", {**SERVICE, **JSON}, json.dumps({"owner": ALICE}).encode()
            )
            for key in (f"new{number}", "mine"):
                self.assertIn(upload(number, key).status, (200, 201), number)
                self.assertEqual(refused(self.app.put(key)), (403, "not_owner"), number)
                self.assertEqual(self.app.request("PUT", f"{OBJECTS}/{key}", OTHER, b"x").status, 200)

    def test_only_the_service_key_names_an_owner(self) -> None:
        named = {**OTHER, "X-Object-Owner": BOB}
        field = form(part("owner", BOB.encode()), part("file", b"x", "new"))
        for response in (
            self.app.request("PUT", f"{OBJECTS}/new", named, b"x"),
            self.app.upload(file_form(key="new"), headers=named),
            self.app.upload(field, headers=OTHER),
            self.app.request("PATCH", f"{OBJECTS}/mine", {**USER, **JSON}, b'{"owner": null}'),
        ):
            self.assertEqual(refused(response), (403, "service_key_required"))
        self.assertIn(b"Only the service key can set owner.", self.app.upload(field, headers=OTHER).body)
        for owner in ("", "bob", BOB[:-1], BOB + "0"):
            named = {**SERVICE, "X-Object-Owner": owner}
            response = self.app.request("PUT", f"{OBJECTS}/new", named, b"x")
            self.assertEqual(refused(response), (422, "validation_failed"), owner)
            body = form(part("owner", owner.encode()), part("file", b"x", "new"))
            self.assertEqual(refused(self.app.upload(body, headers=SERVICE)), (422, "validation_failed"))
        self.assertEqual(self.app.stored(), [b"hello"])

    def test_an_owner_named_where_no_object_is_made_is_refused(self) -> None:
        self.app.put("other")
        for method, path, body in (
            ("POST", "/storage/buckets/open/move", {"from": "other", "to": "new"}),
            ("POST", "/storage/buckets/open/delete", {"keys": ["other"]}),
            ("PATCH", f"{OBJECTS}/other", {"owner": None}),
            ("DELETE", f"{OBJECTS}/other", None),
        ):
            raw = b"" if body is None else json.dumps(body).encode()
            for headers, expected in ((SERVICE, (400, "bad_request")), (USER, (403, "service_key_required"))):
                named = {**headers, **(JSON if body is not None else {}), "X-Object-Owner": BOB}
                self.assertEqual(refused(self.app.request(method, path, named, raw)), expected, method)
        self.assertEqual(self.app.request("GET", f"{OBJECTS}/other", SERVICE).status, 200)

    def test_the_service_key_changes_the_owner(self) -> None:
        def patch(key: str, value: Any, **headers: str) -> Response:
            sent = {**SERVICE, **JSON, **headers}
            return self.app.request("PATCH", f"{OBJECTS}/{key}", sent, json.dumps(value).encode())

        before = json.loads(self.app.put("mine").body)
        response = patch("mine", {"owner": BOB})
        shown = json.loads(response.body)
        details = dict.fromkeys(("max_age_seconds", "cache_control", "content_language", "metadata"))
        digest = sha256(b"hello").hexdigest()
        self.assertEqual(
            (response.status, shown), (200, {**before, "owner": BOB, **details, "sha256": digest})
        )
        self.assertEqual(response.header("cache-control"), "no-store")
        self.assertEqual(refused(self.app.put("mine")), (403, "not_owner"))
        self.assertEqual(self.app.request("PUT", f"{OBJECTS}/mine", OTHER, b"x").status, 200)
        self.assertIsNone(json.loads(patch("mine", {"owner": None}).body)["owner"])
        self.assertEqual(json.loads(patch("mine", {}).body)["owner"], None)
        for value in (
            {"owner": "bob"},
            {"owner": 1},
            {"key": "x"},
            {"max_age_seconds": -1},
            {"max_age_seconds": "1"},
        ):
            self.assertEqual(refused(patch("mine", value)), (422, "validation_failed"), value)
        self.assertEqual(refused(patch("none", {"owner": BOB})), (404, "object_not_found"))
        self.assertEqual(refused(patch("mine", {}, **{"If-Match": '"x"'})), (412, "precondition_failed"))
        self.assertEqual(refused(patch("a//b", {})), (422, "invalid_key"))

    def test_one_object_of_another_refuses_a_whole_bulk_delete(self) -> None:
        self.app.request("PUT", "/storage/buckets/open/objects/his", OTHER, b"x")
        response = self.app.post("/storage/buckets/open/delete", {"keys": ["his", "mine"]}, OTHER)
        self.assertEqual(refused(response), (403, "not_owner"))
        self.assertEqual(len(self.app.stored()), 2)

    def test_not_owner_is_refused_before_the_body_is_read(self) -> None:
        client = self.app.connect()
        client.send(
            b"PUT /storage/buckets/open/objects/mine HTTP/1.1\r\nHost: x\r\nX-Service-Key: anon-key\r\n"
            b"Authorization: " + OTHER["Authorization"].encode() + b"\r\n"
            b"Content-Length: 10\r\nExpect: 100-continue\r\n\r\n"
        )
        self.assertTrue(client.received().startswith(b"HTTP/1.1 403 "))


class OwnObjectsAlone(TestCase):
    """A bucket with owner_only_reads, in which USER has ``d/his`` and OTHER has ``hers``."""

    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.rules("shut", owner_only_reads=True)
        self.app.put("d/his", bucket="shut")
        self.assertEqual(self.app.request("PUT", f"{SHUT}/objects/hers", OTHER, b"x").status, 201)

    def test_reading(self) -> None:
        for name in ("d/his", "none"):
            for response in (
                self.app.request("GET", f"{SHUT}/objects/{name}", OTHER),
                self.app.request("GET", f"{SHUT}/objects/{name}", {**OTHER, "If-Match": '"x"'}),
                self.app.request("GET", f"{SHUT}/objects/{name}", {**OTHER, "If-None-Match": "*"}),
                self.app.post(f"{SHUT}/presign", {"key": name}, OTHER),
                self.app.post(f"{SHUT}/copy", {"from": name, "to": "new"}, OTHER),
                self.app.post(f"{SHUT}/move", {"from": name, "to": "new"}, OTHER),
                self.app.request("DELETE", f"{SHUT}/objects/{name}", OTHER),
            ):
                self.assertEqual(refused(response), (404, "object_not_found"), name)
            self.assertEqual(self.app.request("HEAD", f"{SHUT}/objects/{name}", OTHER).status, 404)
            dated = {**OTHER, "If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}
            given = refused(self.app.request("DELETE", f"{SHUT}/objects/{name}", dated))
            self.assertEqual(given, (404, "object_not_found"), name)
            tagged = {**OTHER, "If-Match": "*"}
            given = refused(self.app.request("DELETE", f"{SHUT}/objects/{name}", tagged))
            self.assertEqual(given, (412, "precondition_failed"), name)
        for headers in (USER, SERVICE):
            self.assertEqual(self.app.request("GET", f"{SHUT}/objects/d/his", headers).body, b"hello")
            self.assertEqual(self.app.post(f"{SHUT}/presign", {"key": "d/his"}, headers).status, 200)
            copied = self.app.post(f"{SHUT}/copy", {"from": "d/his", "to": "copy"}, headers)
            self.assertEqual(copied.status, 201)

    def test_listing(self) -> None:
        for headers, objects, folders in (
            (USER, [], ["d/"]),
            (OTHER, ["hers"], []),
            (SERVICE, ["hers"], ["d/"]),
            ({**SERVICE, "Authorization": OTHER["Authorization"]}, ["hers"], ["d/"]),
        ):
            page = json.loads(self.app.request("GET", f"{SHUT}/objects", headers).body)
            self.assertEqual(([one["key"] for one in page["objects"]], page["folders"]), (objects, folders))

    def test_a_key_that_is_taken_cannot_be_written(self) -> None:
        """As with owner_only_writes, which need not be set: what one may not see, one may not change."""
        path = f"{SHUT}/objects/d/his"
        for response in (
            self.app.request("PUT", path, OTHER, b"x"),
            self.app.request("PUT", path, {**OTHER, "If-None-Match": "*"}, b"x"),
            self.app.request("PUT", path, {**OTHER, "If-Match": '"x"'}, b"x"),
            self.app.upload(file_form(key="d/his"), "shut", OTHER),
            self.app.post(f"{SHUT}/copy", {"from": "hers", "to": "d/his"}, OTHER),
            self.app.post(f"{SHUT}/move", {"from": "hers", "to": "d/his"}, OTHER),
        ):
            self.assertEqual(refused(response), (403, "not_owner"))
        self.assertEqual(sorted(self.app.stored()), [b"hello", b"x"])

    def test_deleting_several(self) -> None:
        gone = self.app.post(f"{SHUT}/delete", {"keys": ["d/his", "hers", "none"]}, OTHER)
        self.assertEqual(json.loads(gone.body), {"deleted": ["hers"], "missing": ["d/his", "none"]})
        self.assertEqual(self.app.stored(), [b"hello"])

    def test_what_nobody_owns_is_for_the_service_key(self) -> None:
        self.app.request("PUT", f"{SHUT}/objects/nobodys", SERVICE, b"x")
        for headers, status in ((USER, 404), (SERVICE, 200)):
            self.assertEqual(self.app.request("GET", f"{SHUT}/objects/nobodys", headers).status, status)

    def test_a_link_opens_what_its_maker_may_see(self) -> None:
        """Also when the key holds an object of somebody else by then."""
        body = {"key": "d/his", "uses": 0}
        links = [json.loads(self.app.post(f"{SHUT}/presign", body, by).body)["url"] for by in (USER, SERVICE)]
        paths = ["/" + link.split("/", 3)[3] for link in links]
        self.assertEqual([self.app.request("GET", path, {}).body for path in paths], [b"hello"] * 2)
        self.assertEqual(self.app.request("DELETE", f"{SHUT}/objects/d/his", USER).status, 204)
        self.app.request("PUT", f"{SHUT}/objects/d/his", OTHER, b"hers")
        his, any_owner = (self.app.request("GET", path, {}) for path in paths)
        self.assertEqual((his.status, any_owner.body), (404, b"hers"))

    def test_anonymous_callers_are_refused_as_in_every_private_bucket(self) -> None:
        for path in (f"{SHUT}/objects", f"{SHUT}/objects/d/his"):
            self.assertEqual(refused(self.app.request("GET", path, ANON)), (401, "authentication_required"))

    def test_bytes_in_memory_are_the_owners_too(self) -> None:
        self.assertEqual([self.app.get("d/his", "shut").body for _ in range(2)], [b"hello"] * 2)
        self.assertEqual(self.app.request("GET", f"{SHUT}/objects/d/his", OTHER).status, 404)

    def test_the_rule_is_for_private_buckets(self) -> None:
        change = {"owner_only_reads": True, "visibility": "public"}
        for method, path, body in (
            ("POST", "/admin/buckets", {**change, "name": "new"}),
            ("PATCH", "/admin/buckets/open", {"owner_only_reads": True}),
            ("PATCH", "/admin/buckets/shut", {"visibility": "public"}),
            ("PATCH", "/admin/buckets/shut", change),
        ):
            sent = {**SERVICE, "Content-Type": "application/json"}
            response = self.app.request(method, path, sent, json.dumps(body).encode())
            self.assertEqual(refused(response), (422, "validation_failed"))
            self.assertIn("owner_only_reads", json.loads(response.body)["error"]["details"])
