"""What an object has beside its bytes: Cache-Control, language, metadata, and the SHA-256 of the bytes."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import md5, sha256, sha512
from typing import Any

from attrs import evolve
from twisted.trial.unittest import TestCase

from project_service.storage.parsing.details import MAX_METADATA_BYTES
from tests.fakes.common import Response
from tests.http.storage.app import (
    ALICE,
    ANON,
    OBJECTS,
    OTHER,
    SERVICE,
    USER,
    StorageApp,
    form,
    part,
    refused,
)

JSON = {"Content-Type": "application/json"}
HELLO = sha256(b"hello").hexdigest()
NOTHING = dict.fromkeys(("max_age_seconds", "cache_control", "content_language", "metadata"))


def encoded(value: Any) -> str:
    return b64encode(json.dumps(value).encode()).decode()


def digest(data: bytes, name: str = "sha-256") -> str:
    return f"{name}=:{b64encode({'sha-256': sha256, 'sha-512': sha512, 'md5': md5}[name](data).digest()).decode()}:"


class DetailsApp(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()

    def info(self, key: str, headers: dict[str, str] = USER, bucket: str = "open") -> Any:
        path = f"/storage/buckets/{bucket}/objects/{key}?info=true"
        response = self.app.request("GET", path, headers)
        self.assertEqual(response.status, 200)
        return json.loads(response.body)

    def details(self, key: str) -> dict[str, Any]:
        shown = self.info(key)
        return {name: shown[name] for name in NOTHING}

    def change(self, key: str, value: Any, headers: dict[str, str] = USER, bucket: str = "open") -> Response:
        path = f"/storage/buckets/{bucket}/objects/{key}"
        return self.app.request("PATCH", path, {**headers, **JSON}, json.dumps(value).encode())


class Said(DetailsApp):
    def test_by_headers(self) -> None:
        said = {"album": "trip", "tags": ["é", 1, None, 2.5]}
        self.app.put(
            "k", Cache_Control="max-age=60, immutable", Content_Language="de, en-GB", X_Metadata=encoded(said)
        )
        expected = {
            "max_age_seconds": 60,
            "cache_control": "max-age=60, immutable",
            "content_language": "de, en-GB",
            "metadata": said,
        }
        self.assertEqual(self.details("k"), expected)
        self.assertEqual(self.app.get("k").header("content-language"), "de, en-GB")
        # A copy and a move keep it, an overwrite begins anew.
        self.app.post("/storage/buckets/open/copy", {"from": "k", "to": "copied"})
        self.app.post("/storage/buckets/open/move", {"from": "k", "to": "moved"})
        for key in ("copied", "moved"):
            self.assertEqual(self.details(key), expected)
            self.assertEqual(self.info(key)["sha256"], HELLO)
        self.app.put("moved", b"")
        self.assertEqual(self.details("moved"), NOTHING)
        self.assertEqual(self.info("moved")["sha256"], sha256().hexdigest())

    def test_by_fields_of_a_form(self) -> None:
        said = {"a": "ü"}
        fields = (
            part("cache_control", b"max-age=60, immutable"),
            part("content_language", b"de"),
            part("metadata", json.dumps(said).encode()),
        )
        file = part("file", b"hello", "k")
        expected = {
            "max_age_seconds": 60,
            "cache_control": "max-age=60, immutable",
            "content_language": "de",
            "metadata": said,
        }
        for body in (form(*fields, file), form(file, *fields)):
            self.assertEqual(self.app.upload(body).status, 201)
            self.assertEqual(self.details("k"), expected)
        # A field counts before the header of its name, and of the two fields about caches the later one.
        sent = {**USER, "Cache-Control": "no-store", "Content-Language": "fr", "X-Metadata": encoded({})}
        self.app.upload(form(*fields, part("max_age_seconds", b"7"), file), headers=sent)
        self.assertEqual(self.details("k"), {**expected, "max_age_seconds": 7, "cache_control": None})
        self.app.upload(form(file), headers=sent)
        self.assertEqual(
            self.details("k"),
            {"max_age_seconds": 0, "cache_control": "no-store", "content_language": "fr", "metadata": {}},
        )

    def test_what_is_not_allowed_stores_nothing(self) -> None:
        large = {"a": "x" * (16 * 1024 - 8)}
        self.assertEqual(len(json.dumps(large, separators=(",", ":"))), 16 * 1024)
        self.assertEqual(self.app.put("fits", X_Metadata=encoded(large)).status, 201)
        self.assertEqual(self.info("fits")["metadata"], large)
        large["a"] += "x"
        for headers in (
            {"X-Metadata": "{}"},
            {"X-Metadata": encoded([])},
            {"X-Metadata": encoded(None)},
            {"X-Metadata": b64encode(b'{"a": 1, "a": 2}').decode()},
            {"X-Metadata": b64encode(b"{").decode()},
            {"X-Metadata": encoded(large)},
            {"X-Metadata": encoded({"a": "\0"})},
            {"X-Metadata": encoded({"a": 2**70})},
            {"Content-Language": ""},
            {"Content-Language": "de;q=1"},
            {"Content-Language": "deutschland"},
            {"Content-Language": ", ".join(["de"] * 100)},
            {"Cache-Control": "x" * 256},
            {"Cache-Control": "max-age=1;\xe9"},
        ):
            response = self.app.request("PUT", f"{OBJECTS}/k", {**USER, **headers}, b"x")
            self.assertEqual(refused(response), (422, "validation_failed"), headers)
            self.assertIn(next(iter(headers)).encode(), response.body)
        for headers, reason in (
            ({"X-Metadata": b64encode(b'{"a": 1, "a": 2}').decode()}, b"without a key twice"),
            ({"X-Metadata": b64encode(b'{"a":' * 201 + b"1" + b"}" * 201).decode()}, b"at most 200 levels"),
            ({"Cache-Control": "max-age=soon"}, b"must have as max-age a whole number"),
        ):
            response = self.app.request("PUT", f"{OBJECTS}/k", {**USER, **headers}, b"x")
            self.assertEqual(refused(response), (422, "validation_failed"), headers)
            self.assertIn(reason, response.body)
        for name, value in (
            ("metadata", b"[]"),
            ("metadata", b"x"),
            ("content_language", b"?"),
            ("cache_control", b"\x01"),
        ):
            body = form(part(name, value), part("file", b"x", "k"))
            self.assertEqual(refused(self.app.upload(body)), (422, "validation_failed"), name)
        self.assertEqual(self.app.stored(), [b"hello"])


class Changed(DetailsApp):
    def setUp(self) -> None:
        super().setUp()
        self.app.put("k", Cache_Control="max-age=60")

    def test_members_that_are_not_sent_stay(self) -> None:
        before = self.info("k")
        for change, expected in (
            ({"metadata": {"a": 1}}, {"metadata": {"a": 1}}),
            ({"content_language": "de"}, {"content_language": "de"}),
            ({"cache_control": " no-cache "}, {"cache_control": "no-cache", "max_age_seconds": 0}),
            ({"max_age_seconds": 5}, {"cache_control": None, "max_age_seconds": 5}),
            (
                {"cache_control": "max-age=9, immutable"},
                {"cache_control": "max-age=9, immutable", "max_age_seconds": 9},
            ),
            ({"cache_control": None, "max_age_seconds": 3}, {"cache_control": None, "max_age_seconds": 3}),
            ({"cache_control": None}, {"max_age_seconds": None}),
            ({"metadata": None, "content_language": None}, {"metadata": None, "content_language": None}),
            ({}, {}),
        ):
            self.app.clock.advance(1)
            response = self.change("k", change)
            before = {**before, **expected}
            self.assertEqual((response.status, json.loads(response.body)), (200, before), change)
            self.assertEqual(self.info("k"), before)

    def test_by_whoever_may_overwrite_the_object(self) -> None:
        change: dict[str, Any] = {"metadata": {}}
        self.assertEqual(self.change("k", change, OTHER).status, 200)
        self.assertEqual(refused(self.change("k", change, ANON)), (401, "authentication_required"))
        self.app.rules("open", owner_only_writes=True)
        self.assertEqual(refused(self.change("k", change, OTHER)), (403, "not_owner"))
        for headers in (USER, SERVICE):
            self.assertEqual(self.change("k", change, headers).status, 200)
        self.app.put("hidden", bucket="shut")
        self.app.rules("shut", owner_only_reads=True)
        self.assertEqual(refused(self.change("hidden", change, OTHER, "shut")), (404, "object_not_found"))
        self.assertEqual(refused(self.change("k", {"owner": None})), (403, "service_key_required"))

    def test_what_is_not_allowed(self) -> None:
        refusals: tuple[dict[str, Any], ...] = (
            {"cache_control": "max-age=1", "max_age_seconds": 1},
            {"cache_control": ""},
            {"cache_control": 1},
            {"cache_control": "max-age=x"},
            {"content_language": ""},
            {"metadata": []},
            {"metadata": "{}"},
            {"metadata": {"a": "x" * MAX_METADATA_BYTES}},
            {"metadata": {"\0": 1}},
            {"sha256": None},
        )
        for value in refusals:
            self.assertEqual(refused(self.change("k", value)), (422, "validation_failed"), value)
        self.assertEqual(self.details("k"), {**NOTHING, "cache_control": "max-age=60", "max_age_seconds": 60})


class Shown(DetailsApp):
    def test_the_owner_is_shown_to_the_owner_and_the_service_key(self) -> None:
        self.app.put("k")
        for headers, expected in ((USER, ALICE), (SERVICE, ALICE), (OTHER, None), (ANON, None)):
            self.assertEqual(self.info("k", headers).get("owner"), expected)

    def test_it_needs_what_a_download_needs_and_is_never_cached(self) -> None:
        self.app.put("k")
        self.app.put("k", bucket="shut")
        shut = "/storage/buckets/shut/objects/k?info=true"
        self.assertEqual(refused(self.app.request("GET", shut, ANON)), (401, "authentication_required"))
        for path, expected in ((shut, "private, no-store"), (f"{OBJECTS}/k?info=true", "no-store")):
            for method in ("GET", "HEAD"):
                response = self.app.request(method, path, USER)
                self.assertEqual((response.status, response.header("cache-control")), (200, expected))
                self.assertEqual(response.header("content-type"), "application/json; charset=utf-8")
        self.app.rules("shut", owner_only_reads=True)
        self.assertEqual(refused(self.app.request("GET", shut, OTHER)), (404, "object_not_found"))
        self.assertEqual(refused(self.app.get("none?info=true")), (404, "object_not_found"))
        self.assertEqual(refused(self.app.get("k?info=1")), (422, "validation_failed"))
        self.assertEqual(self.app.get("k?info=false").body, b"hello")

    def test_an_object_from_before_has_no_sha256(self) -> None:
        self.app.put("k")
        row = self.app.tables.objects["open", "k"]
        self.app.tables.objects["open", "k"] = evolve(row, sha256=None)
        self.assertIsNone(self.info("k")["sha256"])
        self.assertIsNone(self.app.get("k", Want_Repr_Digest="sha-256=1").header("repr-digest"))


class Digests(DetailsApp):
    def test_the_sha256_is_of_the_whole_object(self) -> None:
        self.app = StorageApp(part_bytes=4)
        for payload in (b"", b"hello", b"x" * 25):
            expected = sha256(payload).hexdigest()
            self.app.put("k", payload)
            self.assertEqual(self.info("k")["sha256"], expected)
            self.app.upload(form(part("key", b"form"), part("file", payload, "f")))
            self.assertEqual(self.info("form")["sha256"], expected)

    def test_a_download_has_it_where_it_is_wanted(self) -> None:
        self.app.put("k")
        expected = digest(b"hello")
        for wanted, sent in (
            ("sha-256=1", expected),
            ("sha-512=3, sha-256=10", expected),
            ("sha-256=0", None),
            ("sha-512=1", None),
            ("nonsense", None),
        ):
            self.assertEqual(self.app.get("k", Want_Repr_Digest=wanted).header("repr-digest"), sent, wanted)
        ranged = self.app.get("k", Want_Repr_Digest="sha-256=1", Range="bytes=1-2")
        self.assertEqual((ranged.status, ranged.header("repr-digest")), (206, expected))
        head = self.app.request("HEAD", f"{OBJECTS}/k", {**USER, "Want-Repr-Digest": "sha-256=1"})
        self.assertEqual(head.header("repr-digest"), expected)
        self.assertIsNone(self.app.get("k").header("repr-digest"))

    def test_one_that_is_sent_is_verified(self) -> None:
        right, other = digest(b"hello"), digest(b"other")
        long, other_long = digest(b"hello", "sha-512"), digest(b"other", "sha-512")
        self.app.put("k")
        for name in ("Content-Digest", "Repr-Digest"):
            for value in (right, long, f"{long}, {right}", digest(b"other", "md5")):
                self.assertEqual(self.put("k", name, value).status, 200, value)
            for value in (other, other_long, f"{right},{other_long}"):
                self.assertEqual(refused(self.put("wrong", name, value)), (400, "bad_digest"), value)
            for value in ("", "sha-256", "sha-256=abc", "sha-256=:abc:", "sha-256=:eA==:", "sha-256=:x", ","):
                refusal = self.put("wrong", name, value)
                self.assertEqual(refused(refusal), (400, "bad_digest"), value)
                self.assertIn(name.encode(), refusal.body)
        self.assertEqual(self.app.stored(), [b"hello"])

    def test_each_body_behind_the_same_header_lines_is_checked(self) -> None:
        client, sent = self.app.connect(), {**USER, "Content-Digest": digest(b"hello")}
        for body, status in ((b"hello", 201), (b"hello", 200), (b"jello", 400), (b"hello", 200)):
            self.assertEqual(client.request("PUT", f"{OBJECTS}/k", sent, body).status, status)
        self.assertEqual(self.app.stored(), [b"hello"])

    def put(self, key: str, header: str, value: str) -> Response:
        return self.app.request("PUT", f"{OBJECTS}/{key}", {**USER, header: value}, b"hello")

    def test_that_of_a_form_is_of_the_whole_form(self) -> None:
        body = form(part("file", b"hello", "k"))
        self.assertEqual(self.app.upload(body, headers={**USER, "Content-Digest": digest(body)}).status, 201)
        refusal = self.app.upload(
            form(part("file", b"x", "k")), headers={**USER, "Content-Digest": digest(body)}
        )
        self.assertEqual(refused(refusal), (400, "bad_digest"))
        self.assertEqual(self.app.stored(), [b"hello"])
