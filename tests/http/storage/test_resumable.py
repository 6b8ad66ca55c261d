"""Resumable uploads by tus 1.0.0: the protocol, rights, limits, and two requests at once."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import timedelta
from hashlib import md5, sha1, sha256
from typing import Any
from uuid import uuid4

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.storage import durations
from project_service.storage.durations import REMOVAL_TIMEOUT_SECONDS
from project_service.storage.routes.descriptions import METADATA_MEMBERS
from project_service.storage.s3.errors import StoreUnreachable
from tests.fakes.common import Client, Response
from tests.fakes.storage import FakeResumables
from tests.fakes.store import MemoryStore
from tests.http.storage.app import ANON, OTHER, SERVICE, USER, StorageApp, head, refused

UPLOADS = "/storage/buckets/open/resumable"
TUS = {"Tus-Resumable": "1.0.0"}
BYTES = {"Content-Type": "application/offset+octet-stream"}
DAY = 86400


def metadata(**values: str) -> str:
    return ",".join(f"{name} {b64encode(value.encode()).decode()}" for name, value in values.items())


def checksum(algorithm: str, digest: bytes) -> str:
    return f"{algorithm} {b64encode(digest).decode()}"


class TusApp(StorageApp):
    """Storage whose parts have 10 bytes, and what a client of tus does."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(part_bytes=10, **settings)

    def begin(
        self,
        length: int | None = 25,
        caller: dict[str, str] = USER,
        body: bytes | None = None,
        path: str = UPLOADS,
        **more: str,
    ) -> Response:
        size = {"Upload-Defer-Length": "1"} if length is None else {"Upload-Length": str(length)}
        described = {"Upload-Metadata": metadata(key="a.txt")}
        sent = {**caller, **TUS, **size, **described, **(BYTES if body is not None else {})}
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return self.request("POST", path, {**sent, **named}, body or b"")

    def begun(self, length: int | None = 25, **more: Any) -> str:
        """The path of a new upload."""
        response = self.begin(length, **more)
        assert response.status == 201, response
        return response.header("location") or ""

    def patch(
        self, path: str, offset: int, body: bytes = b"", caller: dict[str, str] = USER, **more: str
    ) -> Response:
        named = {name.replace("_", "-"): value for name, value in more.items()}
        sent = {**caller, **TUS, **BYTES, "Upload-Offset": str(offset), **named}
        return self.request("PATCH", path, sent, body)

    def head(self, path: str, caller: dict[str, str] = USER) -> Response:
        return self.request("HEAD", path, {**caller, **TUS})

    def offset(self, path: str) -> int:
        response = self.head(path)
        assert response.status == 200, response
        return int(response.header("upload-offset") or "")

    def delete(self, path: str, caller: dict[str, str] = USER) -> Response:
        return self.request("DELETE", path, {**caller, **TUS})

    def sending(self, path: str, offset: int, length: int, start: bytes = b"") -> Client:
        """A connection on which a PATCH has begun, of which only ``start`` has come."""
        client = self.connect()
        lines = {
            "Host": "x",
            **USER,
            **TUS,
            **BYTES,
            "Upload-Offset": str(offset),
            "Content-Length": str(length),
        }
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        client.send(f"PATCH {path} HTTP/1.1\r\n{text}\r\n".encode() + start)
        return client

    def pass_seconds(self, seconds: float) -> None:
        """Time passes as a reactor lets it pass, in small steps."""
        for _ in range(int(seconds * 8)):
            self.clock.advance(1 / 8)

    def nothing_left(self) -> None:
        assert self.store.objects == {}
        assert self.store.multiparts == {}
        assert self.uploading == set()
        assert self.tables.garbage == {}


class SlowStore(TestCase):
    def test_no_request_waits_long_for_a_deletion_that_the_store_does_not_answer(self) -> None:
        """Neither one that replaces the tail of the one before, nor one that gives the upload up."""
        for method, path_of, arrived, silent in (
            ("PATCH", "a tail", 7, ("delete", "delete_many")),
            ("DELETE", "a tail", 7, ("delete", "delete_many")),
            ("DELETE", "parts", 20, ("abort_multipart",)),
            ("DELETE", "both", 17, ("abort_multipart", "delete", "delete_many")),
        ):
            app = TusApp()
            path = app.begun(30)
            self.assertEqual(app.patch(path, 0, b"x" * arrived).status, 204)
            asked: list[Deferred[None]] = []

            async def unanswered(*_: object, asked: list[Deferred[None]] = asked) -> None:
                asked.append(Deferred())
                await asked[-1]

            for name in silent:
                self.patch(MemoryStore, name, unanswered)
            client = app.connect()
            lines = {"Host": "x", **USER, **TUS}
            if method == "PATCH":
                lines |= {**BYTES, "Upload-Offset": str(arrived), "Content-Length": "2"}
            client.send(head(lines, method, path) + (b"yy" if method == "PATCH" else b""))
            app.pass_seconds(REMOVAL_TIMEOUT_SECONDS - 1)
            self.assertEqual((client.received(), len(asked)), (b"", 1), path_of)
            app.pass_seconds(REMOVAL_TIMEOUT_SECONDS + 2)
            self.assertTrue(client.received().startswith(b"HTTP/1.1 204 "), path_of)
            self.doCleanups()
            if method == "PATCH":
                self.assertEqual(app.offset(path), arrived + 2)
                app.delete(path)
            app.clock.advance(DAY)
            self.successResultOf(Deferred.fromCoroutine(app.storage.sweeper.sweep()))
            app.nothing_left()


class Protocol(TestCase):
    def setUp(self) -> None:
        self.app = TusApp()

    def test_an_upload_in_three_requests_becomes_an_object(self) -> None:
        app, payload = self.app, bytes(range(25))
        begun = app.begin(25)
        path = begun.header("location") or ""
        self.assertEqual(begun.header("upload-expires"), "Sun, 22 Nov 2026 00:00:00 GMT")
        self.assertRegex(path, r"^/storage/buckets/open/resumable/[0-9a-f-]{36}$")
        self.assertEqual(app.offset(path), 0)
        for first, last in ((0, 7), (7, 18)):
            answer = app.patch(path, first, payload[first:last])
            self.assertEqual((answer.status, answer.header("upload-offset")), (204, str(last)))
            self.assertIsNone(answer.header("etag"))
            self.assertEqual(app.offset(path), last)
        self.assertEqual(app.get("a.txt").status, 404)
        answer = app.patch(path, 18, payload[18:])
        self.assertEqual((answer.status, answer.header("upload-offset")), (204, "25"))
        self.assertEqual(answer.header("content-location"), "/storage/buckets/open/objects/a.txt")
        got = app.get("a.txt")
        self.assertEqual((got.body, got.header("content-type")), (payload, "text/plain"))
        self.assertEqual(got.header("etag"), answer.header("etag"))
        self.assertEqual(app.stored(), [payload])

    def test_every_cut_of_the_bytes_gives_the_same_object(self) -> None:
        payload = bytes(range(33))
        for length in (0, 1, 9, 10, 11, 20, 21, 30, 33):
            for size in (1, 3, 9, 10, 11, 20, 33):
                app = TusApp()
                path = app.begun(length)
                for first in range(0, length, size):
                    piece = payload[first : min(first + size, length)]
                    answer = app.patch(path, first, piece)
                    self.assertEqual(answer.status, 204, answer.body)
                self.assertEqual(app.stored(), [payload[:length]])
                self.assertEqual(app.offset(path), length)

    def test_head_says_what_was_said_at_the_beginning(self) -> None:
        said = metadata(key="ä/b.png", filetype="image/x-own") + ",is_confidential"
        path = self.app.begun(5, Upload_Metadata=said)
        answer = self.app.head(path)
        self.assertEqual(answer.header("upload-metadata"), said)
        self.assertEqual(answer.header("upload-length"), "5")
        self.assertEqual(answer.header("cache-control"), "no-store")
        self.assertEqual(answer.header("tus-resumable"), "1.0.0")
        self.app.patch(path, 0, b"hello")
        answer = self.app.head(path)
        self.assertEqual((answer.header("upload-offset"), answer.header("upload-expires")), ("5", None))
        self.assertEqual(answer.header("content-location"), "/storage/buckets/open/objects/%C3%A4/b.png")
        self.assertEqual(self.app.get("%C3%A4/b.png").header("content-type"), "image/x-own")

    def test_get_says_it_in_json(self) -> None:
        path = self.app.begun(5)
        shown = json.loads(self.app.request("GET", path, USER).body)
        expected = {"key": "a.txt", "content_type": "text/plain", "offset": 0, "length": 5, "object": None}
        self.assertEqual(shown, {**expected, "expires_at": "2026-11-22T00:00:00.000Z"})
        self.app.patch(path, 0, b"hello")
        made = json.loads(self.app.request("GET", path, USER).body)["object"]
        described = json.loads(
            self.app.request("GET", "/storage/buckets/open/objects/a.txt?info=true", USER).body
        )
        self.assertEqual(made, {name: described[name] for name in METADATA_MEMBERS})

    def test_options_say_what_the_service_can_do_without_a_key(self) -> None:
        for path in (UPLOADS, f"{UPLOADS}/x", "/storage/buckets/absent/resumable"):
            answer = self.app.request("OPTIONS", path, {"Tus-Resumable": "0.2.2"})
            self.assertEqual((answer.status, answer.header("tus-version")), (204, "1.0.0"))
            self.assertEqual(answer.header("tus-max-size"), str(5 * 1024**3))
            self.assertEqual(answer.header("tus-checksum-algorithm"), "sha1,sha256,md5")
            extensions = "creation,creation-with-upload,creation-defer-length,expiration,termination,checksum"
            self.assertEqual(answer.header("tus-extension"), extensions)

    def test_pages_may_send_and_read_the_headers(self) -> None:
        asked = "authorization,tus-resumable,upload-length,upload-metadata,x-service-key"
        page = {"Origin": "https://page.example", "Access-Control-Request-Method": "PATCH"}
        answer = self.app.request(
            "OPTIONS", f"{UPLOADS}/x", {**page, "Access-Control-Request-Headers": asked}
        )
        self.assertEqual(answer.header("access-control-allow-headers"), asked)
        self.assertIn("PATCH", answer.header("access-control-allow-methods") or "")
        path = self.app.begun(5)
        answer = self.app.request("HEAD", path, {**USER, **TUS, "Origin": "https://page.example"})
        exposed = ",".join(value for name, value in answer.headers if name == "Access-Control-Expose-Headers")
        for name in ("Location", "Upload-Offset", "Upload-Length", "Tus-Resumable", "Upload-Expires"):
            self.assertIn(name, exposed)

    def test_another_version_is_refused(self) -> None:
        path = self.app.begun(5)
        for method in ("HEAD", "PATCH", "DELETE"):
            for version in ({}, {"Tus-Resumable": "0.2.2"}):
                answer = self.app.request(method, path, {**USER, **version})
                self.assertEqual((answer.status, answer.header("tus-version")), (412, "1.0.0"))
        answer = self.app.request("POST", UPLOADS, {**USER, "Upload-Length": "5"}, b"")
        self.assertEqual(refused(answer), (412, "tus_version_not_supported"))

    def test_a_client_that_can_only_post_names_the_method_in_a_header(self) -> None:
        path = self.app.begun(5)
        sent = {**USER, **TUS, **BYTES, "Upload-Offset": "0"}
        answer = self.app.request("POST", path, {**sent, "X-HTTP-Method-Override": "PATCH"}, b"hell")
        self.assertEqual((answer.status, answer.header("upload-offset")), (204, "4"))
        answer = self.app.request("POST", path, {**USER, **TUS, "X-HTTP-Method-Override": "HEAD"}, b"")
        self.assertEqual((answer.status, answer.header("upload-offset"), answer.body), (200, "4", b""))
        answer = self.app.request("POST", path, {**USER, **TUS, "X-HTTP-Method-Override": "DELETE"}, b"")
        self.assertEqual(answer.status, 204)
        self.assertEqual(self.app.head(path).status, 404)
        answer = self.app.request("POST", path, {**USER, **TUS}, b"")
        self.assertEqual(refused(answer), (405, "method_not_allowed"))
        self.assertEqual(answer.header("allow"), "DELETE, GET, HEAD, OPTIONS, PATCH")
        answer = self.app.request("POST", UPLOADS, {**USER, "X-HTTP-Method-Override": "OPTIONS"}, b"")
        self.assertEqual((answer.status, answer.header("tus-version")), (204, "1.0.0"))
        answer = self.app.begin(5, X_HTTP_Method_Override="PATCH")
        self.assertEqual(refused(answer), (405, "method_not_allowed"))

    def test_a_wrong_offset_is_a_conflict_that_says_the_right_one(self) -> None:
        path = self.app.begun(5)
        self.app.patch(path, 0, b"he")
        for offset in (0, 1, 3):
            answer = self.app.patch(path, offset, b"y")
            self.assertEqual(refused(answer), (409, "offset_mismatch"))
            self.assertEqual(answer.header("upload-offset"), "2")

    def test_what_is_wrong_with_a_request_is_said(self) -> None:
        app, path = self.app, self.app.begun(5)
        bad = (400, "invalid_upload_header")
        for headers in (
            {},
            {"Upload-Length": "5", "Upload-Defer-Length": "1"},
            {"Upload-Defer-Length": "2"},
            {"Upload-Length": "-1"},
            {"Upload-Length": "five"},
            {"Upload-Length": "5", "Upload-Metadata": "key no-base64!"},
            {"Upload-Length": "5", "Upload-Metadata": "key YQ==,key YQ=="},
            {"Upload-Length": "5", "Upload-Concat": "partial"},
        ):
            answer = app.request(
                "POST", UPLOADS, {**USER, **TUS, "Upload-Metadata": metadata(key="k"), **headers}, b""
            )
            self.assertEqual(refused(answer), bad, headers)
        for text in ("", "relativePath bnVsbA=="):
            answer = app.begin(5, Upload_Metadata=text)
            self.assertEqual(refused(answer), (422, "invalid_key"))
            self.assertIn(b"Upload-Metadata", answer.body)
        # The protocol asks for 413, however large the number is.
        self.assertEqual(refused(app.begin(10**30)), (413, "payload_too_large"))
        self.assertEqual(refused(app.patch(path, 10**30)), (409, "offset_mismatch"))
        answer = app.begin(5, Upload_Metadata=metadata(key="a", cacheControl="soon"))
        self.assertEqual([*json.loads(answer.body)["error"]["details"]], ["cacheControl"])
        answer = app.begin(5, Upload_Metadata=metadata(key="a", bucketName="other"))
        self.assertEqual(refused(answer), (422, "validation_failed"))
        sent = {**USER, **TUS, "Upload-Offset": "0"}
        answer = app.request("PATCH", path, {**sent, "Content-Type": "text/plain"}, b"hello")
        self.assertEqual(refused(answer), (415, "unsupported_media_type"))
        self.assertEqual(refused(app.request("PATCH", path, {**USER, **TUS, **BYTES}, b"hello")), bad)
        self.assertEqual(refused(app.patch(path, 0, b"hello", Upload_Length="6")), bad)
        self.assertEqual(refused(app.patch(path, 0, b"hello!")), (413, "payload_too_large"))
        self.assertEqual(app.offset(path), 0)

    def test_the_key_of_every_client_is_understood(self) -> None:
        for said, key in (
            ({"filename": "f.txt", "filetype": "text/x-f"}, "f.txt"),
            ({"key": "k", "filename": "f", "filetype": "text/x-f"}, "k"),
            ({"bucketName": "open", "objectName": "o", "contentType": "text/x-f", "cacheControl": "60"}, "o"),
            ({"relativePath": "null", "name": "n", "type": "text/x-f"}, "n"),
        ):
            self.app.patch(self.app.begun(5, Upload_Metadata=metadata(**said)), 0, b"hello")
            self.assertEqual(self.app.get(key).header("content-type"), "text/x-f")
        self.assertEqual(self.app.get("o").header("cache-control"), "public, max-age=60")
        self.app.patch(self.app.begun(5, path=f"{UPLOADS}?key=q", Upload_Metadata=""), 0, b"hello")
        self.assertEqual(self.app.get("q").status, 200)

    def test_a_variable_that_the_client_did_not_set_says_nothing(self) -> None:
        """JavaScript and Python write it as a text."""
        for nothing in ("undefined", "null", "None", "NULL", " ", ""):
            for said, content_type in (
                ({"filetype": nothing}, "text/plain"),
                ({"contentType": nothing, "type": "text/x-f"}, "text/x-f"),
                ({"bucketName": nothing, "cacheControl": nothing, "metadata": nothing}, "text/plain"),
            ):
                path = self.app.begun(1, Upload_Metadata=metadata(filename="f.txt", **said))
                self.app.patch(path, 0, b"h")
                self.assertEqual(self.app.get("f.txt").header("content-type"), content_type, nothing)
        # As a name it may be meant.
        self.app.patch(self.app.begun(1, Upload_Metadata=metadata(filename="null")), 0, b"h")
        self.assertEqual(self.app.get("null").status, 200)

    def test_every_path_may_end_with_a_slash(self) -> None:
        app = self.app
        path = app.begun(5, path=f"{UPLOADS}/")
        self.assertEqual(app.head(f"{path}/").header("upload-offset"), "0")
        self.assertEqual(app.patch(f"{path}/", 0, b"hell").status, 204)
        self.assertEqual(app.request("GET", f"{path}/", USER).status, 200)
        override = {**USER, **TUS, "X-HTTP-Method-Override": "HEAD"}
        self.assertEqual(app.request("POST", f"{path}/", override).header("upload-offset"), "4")
        self.assertEqual(app.delete(f"{path}/").status, 204)
        for one in (f"{UPLOADS}/", f"{path}/"):
            self.assertEqual(app.request("OPTIONS", one, {}).header("tus-version"), "1.0.0")
            self.assertEqual(refused(app.request("PUT", one, {**USER, **TUS})), (405, "method_not_allowed"))
        for none in (f"{UPLOADS}//", f"{path}//"):
            self.assertEqual(app.head(none).status, 404)


class Upsert(TestCase):
    """``X-Upsert``, by which Supabase's clients say whether an object may be replaced."""

    def setUp(self) -> None:
        self.app = TusApp()
        self.app.put("a.txt", b"old")

    def test_an_upload_that_must_not_replace_is_refused_when_it_begins(self) -> None:
        for said in ("false", "False", " false ", "0", "undefined", ""):
            self.assertEqual(refused(self.app.begin(X_Upsert=said)), (412, "object_exists"), said)
            for name in ("x-upsert", "upsert"):
                described = metadata(key="a.txt", **{name: said})
                answer = self.app.begin(Upload_Metadata=described)
                self.assertEqual(refused(answer), (412, "object_exists"), (name, said))
        # One that says no is enough.
        answer = self.app.begin(X_Upsert="true", Upload_Metadata=metadata(key="a.txt", upsert="false"))
        self.assertEqual(refused(answer), (412, "object_exists"))
        self.assertEqual(refused(self.app.begin(X_Upsert="true, false")), (412, "object_exists"))

    def test_nor_does_it_replace_what_has_come_when_it_ends(self) -> None:
        path = self.app.begun(5, X_Upsert="false", Upload_Metadata=metadata(key="new"))
        self.app.put("new", b"other")
        self.assertEqual(refused(self.app.patch(path, 0, b"hello")), (412, "object_exists"))
        self.assertEqual(self.app.get("new").body, b"other")

    def test_one_that_may_replaces(self) -> None:
        said: tuple[dict[str, Any], ...] = (
            {},
            {"X_Upsert": "true"},
            {"X_Upsert": "TRUE"},
            {"Upload_Metadata": metadata(key="a.txt", upsert="true")},
        )
        for number, more in enumerate(said):
            body = b"new %d" % number
            self.assertEqual(self.app.begin(5, body=body, **more).status, 201, more)
            self.assertEqual(self.app.get("a.txt").body, body)

    def test_other_conditions_count_as_well(self) -> None:
        etag = self.app.get("a.txt").header("etag") or ""
        self.assertEqual(self.app.begin(X_Upsert="true", If_None_Match="*").status, 412)
        self.assertEqual(self.app.begin(X_Upsert="true", If_Match='"other"').status, 412)
        self.assertEqual(self.app.begin(X_Upsert="false", If_Match=etag).status, 412)
        self.assertEqual(self.app.begin(X_Upsert="true", If_Match=etag).status, 201)


class Extensions(TestCase):
    def setUp(self) -> None:
        self.app = TusApp()

    def test_the_beginning_may_bring_bytes(self) -> None:
        answer = self.app.begin(5, body=b"hel")
        self.assertEqual((answer.status, answer.header("upload-offset")), (201, "3"))
        self.app.patch(answer.header("location") or "", 3, b"lo")
        answer = self.app.begin(5, body=b"HELLO", Upload_Metadata=metadata(key="b"))
        self.assertEqual((answer.status, answer.header("upload-offset")), (201, "5"))
        self.assertEqual(answer.header("content-location"), "/storage/buckets/open/objects/b")
        self.assertEqual(sorted(self.app.stored()), [b"HELLO", b"hello"])

    def test_the_length_may_be_said_later_and_once(self) -> None:
        path = self.app.begun(None)
        self.app.patch(path, 0, b"x" * 23)
        answer = self.app.head(path)
        self.assertEqual((answer.header("upload-defer-length"), answer.header("upload-length")), ("1", None))
        self.assertEqual(
            refused(self.app.patch(path, 23, b"", Upload_Length="22")), (400, "invalid_upload_header")
        )
        self.assertEqual(self.app.patch(path, 23, b"y", Upload_Length="25").status, 204)
        self.assertEqual(
            refused(self.app.patch(path, 24, b"", Upload_Length="24")), (400, "invalid_upload_header")
        )
        self.assertEqual(self.app.patch(path, 24, b"z", Upload_Length="25").status, 204)
        self.assertEqual(self.app.stored(), [b"x" * 23 + b"yz"])

    def test_the_length_may_be_what_has_come_already(self) -> None:
        for size in (0, 5, 10, 15, 20):
            app = TusApp()
            path = app.begun(None)
            app.patch(path, 0, b"x" * size)
            self.assertEqual(app.patch(path, size, b"", Upload_Length=str(size)).status, 204)
            self.assertEqual(app.stored(), [b"x" * size])

    def test_a_checksum_is_compared_and_the_offset_stays_where_it_differs(self) -> None:
        app, path = self.app, self.app.begun(40)
        app.patch(path, 0, b"12345")
        for body in (b"wrong", b"x" * 30):
            answer = app.patch(path, 5, body, Upload_Checksum=checksum("sha1", sha1(b"").digest()))
            self.assertEqual(refused(answer), (460, "checksum_mismatch"))
            self.assertEqual(app.offset(path), 5)
            self.assertEqual(len(app.store.multiparts), 0)
        offset = 5
        for name, function, body in (
            ("sha1", sha1, b"a" * 30),
            ("sha256", sha256, b"bc"),
            ("md5", md5, b"def"),
        ):
            answer = app.patch(path, offset, body, Upload_Checksum=checksum(name, function(body).digest()))
            offset += len(body)
            self.assertEqual((answer.status, answer.header("upload-offset")), (204, str(offset)))
        self.assertEqual(app.stored(), [b"12345" + b"a" * 30 + b"bcdef"])

    def test_bytes_whose_checksum_cannot_be_compared_do_not_count(self) -> None:
        path = self.app.begun(40)
        lines = {**USER, **TUS, **BYTES, "Upload-Checksum": checksum("sha1", sha1(b"x" * 40).digest())}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        client = self.app.connect()
        client.send(
            f"PATCH {path} HTTP/1.1\r\nHost: x\r\n{text}Upload-Offset: 0\r\nContent-Length: 40\r\n\r\n".encode()
        )
        client.send(b"x" * 33)
        client.hang_up()
        self.assertEqual(self.app.offset(path), 0)
        self.assertEqual(self.app.store.multiparts, {})

    def test_a_checksum_that_cannot_be_read_is_refused(self) -> None:
        path = self.app.begun(5)
        for text in ("crc32 AAAA", "sha1", "sha1 x", "sha1 AAAA", "SHA1 2jmj7l5rSw0yVb/vlWAYkK/YBwk="):
            answer = self.app.patch(path, 0, b"hello", Upload_Checksum=text)
            self.assertEqual(refused(answer), (400, "invalid_checksum"), text)

    def test_a_terminated_upload_leaves_nothing(self) -> None:
        for size in (0, 5, 10, 23):
            app = TusApp()
            path = app.begun(25)
            app.patch(path, 0, b"x" * size)
            self.assertEqual(app.delete(path).status, 204)
            self.assertEqual(refused(app.patch(path, size, b"x")), (404, "upload_not_found"))
            self.assertEqual(app.head(path).status, 404)
            app.nothing_left()

    def test_a_terminated_upload_that_was_whole_leaves_its_object(self) -> None:
        path = self.app.begun(5, body=b"hello")
        self.assertEqual(self.app.delete(path).status, 204)
        self.assertEqual(self.app.head(path).status, 404)
        self.assertEqual(self.app.stored(), [b"hello"])

    def test_an_upload_that_receives_nothing_expires_and_the_sweeper_leaves_nothing(self) -> None:
        app, path = self.app, self.app.begun(25)
        app.clock.advance(DAY - 1)
        app.patch(path, 0, b"x" * 15)
        app.clock.advance(DAY - 1)
        self.assertEqual(app.offset(path), 15)
        self.sweep()
        self.assertEqual(app.offset(path), 15)
        app.clock.advance(1)
        self.assertEqual(refused(app.patch(path, 15, b"y")), (410, "upload_expired"))
        self.assertEqual(app.head(path).status, 410)
        app.clock.advance(durations.STALE_AFTER.total_seconds())
        self.sweep()
        app.nothing_left()
        self.assertEqual(app.head(path).status, 410)
        app.clock.advance(DAY)
        self.sweep()
        self.assertEqual(app.head(path).status, 404)

    def sweep(self) -> None:
        self.successResultOf(Deferred.fromCoroutine(self.app.storage.sweeper.sweep()))

    def test_how_long_that_takes_is_a_setting(self) -> None:
        app = TusApp(resumable_seconds=60)
        self.assertEqual(app.begin().header("upload-expires"), "Sat, 21 Nov 2026 00:01:00 GMT")


class Rights(TestCase):
    def setUp(self) -> None:
        self.app = TusApp()

    def test_only_who_began_an_upload_goes_on_with_it_or_the_service_key(self) -> None:
        app, path = self.app, self.app.begun(5)
        for other in (
            app.patch(path, 0, b"hello", OTHER),
            app.head(path, OTHER),
            app.delete(path, OTHER),
            app.head(path.replace("open", "shut")),
            app.head(f"{UPLOADS}/{'0' * 8}-0000-4000-8000-000000000000"),
            app.head(f"{UPLOADS}/x"),
            app.head(path.upper().replace("/STORAGE/BUCKETS/OPEN/RESUMABLE", UPLOADS) + "x"),
        ):
            self.assertEqual(other.status, 404)
        self.assertEqual(refused(app.patch(path, 0, b"hello", ANON)), (401, "authentication_required"))
        self.assertEqual(app.patch(path, 0, b"hello", {}).header("tus-resumable"), "1.0.0")
        self.assertEqual(app.patch(path, 0, b"hello", SERVICE).status, 204)
        self.assertEqual(self.owner("a.txt"), USER["Authorization"].partition("user:")[2])

    def owner(self, key: str) -> str:
        return str(self.app.tables.objects["open", key].owner)

    def test_what_the_service_began_is_not_a_users(self) -> None:
        path = self.app.begun(5, caller=SERVICE)
        self.assertEqual(self.app.head(path).status, 404)
        self.assertEqual(self.app.patch(path, 0, b"hello", SERVICE).status, 204)
        self.assertEqual(self.owner("a.txt"), "None")

    def test_the_service_names_an_owner(self) -> None:
        user = USER["Authorization"].partition("user:")[2]
        self.app.begin(5, SERVICE, b"hello", X_Object_Owner=user)
        self.assertEqual(self.owner("a.txt"), user)
        self.assertEqual(refused(self.app.begin(5, X_Object_Owner=user)), (403, "service_key_required"))

    def test_conditions_and_rules_hold_at_the_beginning(self) -> None:
        app = self.app
        self.assertEqual(app.put("a.txt").status, 201)
        self.assertEqual(refused(app.begin(5, If_None_Match="*")), (412, "object_exists"))
        app.rules("open", owner_only_writes=True)
        self.assertEqual(refused(app.begin(5, OTHER)), (403, "not_owner"))
        app.rules("open", max_object_bytes=4)
        self.assertEqual(refused(app.begin(5)), (413, "payload_too_large"))
        app.rules("open", allowed_content_types=("image/*",))
        self.assertEqual(refused(app.begin(5)), (415, "unsupported_media_type"))
        app.rules("open", max_bucket_bytes=9)
        self.assertEqual(app.begin(9).status, 201)
        self.assertEqual(refused(app.begin(10)), (413, "payload_too_large"))
        answer = app.begin(5, path="/storage/buckets/absent/resumable")
        self.assertEqual(refused(answer), (404, "bucket_not_found"))
        self.assertEqual(refused(app.begin(5, ANON)), (401, "authentication_required"))

    def test_they_hold_again_at_the_end_and_what_is_refused_leaves_nothing(self) -> None:
        for rules, status in (
            ({"max_object_bytes": 4}, 413),
            ({"allowed_content_types": ("image/*",)}, 415),
            ({"max_bucket_bytes": 4}, 413),
        ):
            app = TusApp()
            path = app.begun(15)
            app.patch(path, 0, b"x" * 12)
            app.rules("open", **rules)
            self.assertEqual(app.patch(path, 12, b"xyz").status, status)
            self.assertEqual(app.head(path).status, 404)
            app.nothing_left()

    def test_a_condition_of_the_beginning_holds_at_the_end(self) -> None:
        path = self.app.begun(5, If_None_Match="*")
        self.app.put("a.txt", b"first")
        self.assertEqual(refused(self.app.patch(path, 0, b"hello")), (412, "object_exists"))
        self.assertEqual(self.app.stored(), [b"first"])

    def test_a_length_said_later_is_limited_as_well(self) -> None:
        self.app.rules("open", max_object_bytes=15)
        path = self.app.begun(None)
        self.assertEqual(refused(self.app.patch(path, 0, b"x" * 16)), (413, "payload_too_large"))
        self.assertEqual(
            refused(self.app.patch(path, 0, b"", Upload_Length="16")), (413, "payload_too_large")
        )

    def test_unfinished_uploads_do_not_count_in_the_quota(self) -> None:
        self.app.rules("open", max_bucket_bytes=10)
        one, two = self.app.begun(10), self.app.begun(10, Upload_Metadata=metadata(key="b"))
        self.app.patch(one, 0, b"x" * 9)
        self.app.patch(two, 0, b"x" * 9)
        self.assertEqual(self.app.patch(two, 9, b"x").status, 204)
        self.assertEqual(refused(self.app.patch(one, 9, b"x")), (413, "payload_too_large"))

    def test_a_file_that_does_not_fit_behind_the_one_before_is_refused_at_once(self) -> None:
        """A page that uploads one file after the other begins the next within a moment."""
        self.app.rules("open", max_bucket_bytes=10)
        self.app.patch(self.app.begun(6), 0, b"x" * 6)
        answer = self.app.begin(6, Upload_Metadata=metadata(key="b"))
        self.assertEqual(refused(answer), (413, "payload_too_large"))

    def test_a_bucket_that_is_deleted_takes_its_uploads_with_it(self) -> None:
        path = self.app.begun(5)
        del self.app.tables.buckets["open"]
        self.assertEqual(refused(self.app.patch(path, 0, b"hello")), (404, "bucket_not_found"))


class Interruptions(TestCase):
    def setUp(self) -> None:
        self.app = TusApp()
        self.path = self.app.begun(25)

    def test_what_has_come_before_the_client_left_counts(self) -> None:
        client = self.app.sending(self.path, 0, 25, b"x" * 13)
        client.hang_up()
        self.assertEqual(self.app.offset(self.path), 13)
        self.app.patch(self.path, 13, b"y" * 12)
        self.assertEqual(self.app.stored(), [b"x" * 13 + b"y" * 12])

    def test_a_client_that_comes_back_cuts_its_old_connection(self) -> None:
        old = self.app.sending(self.path, 0, 25, b"x" * 13)
        new = self.app.sending(self.path, 0, 25, b"x" * 25)
        self.assertEqual(new.received(), b"")
        self.app.pass_seconds(2.5)
        self.assertIn(b"HTTP/1.1 423 ", old.received())
        # The old one had sent more than the new one knows of.
        self.assertIn(b"upload-offset: 13", new.received().lower())
        self.assertEqual(self.app.patch(self.path, 13, b"y" * 12).status, 204)
        self.assertEqual(self.app.stored(), [b"x" * 13 + b"y" * 12])

    def test_head_waits_for_the_old_connection_to_be_cut(self) -> None:
        self.app.sending(self.path, 0, 25, b"x" * 13)
        client = self.app.connect()
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**USER, **TUS}.items())
        client.send(f"HEAD {self.path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        self.app.pass_seconds(2.5)
        self.assertIn(b"upload-offset: 13", client.received().lower())

    def test_of_two_that_send_one_is_refused(self) -> None:
        one = self.app.sending(self.path, 0, 25)
        two = self.app.sending(self.path, 0, 25, b"y" * 25)
        for _ in range(20):
            one.send(b"x")
            self.app.pass_seconds(0.5)
        response = two.received()
        self.assertIn(b"HTTP/1.1 423 ", response)
        self.assertIn(b"upload_locked", response)
        one.send(b"x" * 5)
        self.assertIn(b"HTTP/1.1 204 ", one.received())
        self.assertEqual(self.app.stored(), [b"x" * 25])

    def test_head_does_not_wait_for_ever_for_one_that_sends(self) -> None:
        one = self.app.sending(self.path, 0, 25)
        client = self.app.connect()
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**USER, **TUS}.items())
        client.send(f"HEAD {self.path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        for _ in range(20):
            one.send(b"x")
            self.app.pass_seconds(0.5)
        # Full parts have been recorded meanwhile.
        self.assertIn(b"upload-offset: 10", client.received().lower())

    def test_the_hold_of_a_process_that_was_killed_ends(self) -> None:
        upload = next(iter(self.app.tables.resumables))
        lease = durations.HOLD_SECONDS
        self.app.tables.holds[upload] = (uuid4(), self.app.now() + timedelta(seconds=lease))
        client = self.app.sending(self.path, 0, 25, b"x" * 25)
        self.app.pass_seconds(lease - 0.5)
        self.assertEqual(client.received(), b"")
        self.app.pass_seconds(1)
        self.assertIn(b"HTTP/1.1 204 ", client.received())

    def test_a_store_that_is_away_costs_nothing_that_was_acknowledged(self) -> None:
        self.app.patch(self.path, 0, b"x" * 12)
        self.app.store.away = True
        self.assertEqual(refused(self.app.patch(self.path, 12, b"y" * 13)), (503, "store_unavailable"))
        self.assertEqual(self.app.offset(self.path), 12)
        self.app.store.away = False
        self.assertEqual(self.app.patch(self.path, 12, b"y" * 13).status, 204)
        self.assertEqual(self.app.stored(), [b"x" * 12 + b"y" * 13])

    def test_an_upload_of_which_the_store_lost_bytes_has_to_begin_again(self) -> None:
        """As where the database was restored with another store: clients would try for ever."""

        async def away(*_: object) -> None:
            raise StoreUnreachable("timed out")

        for lost, size, offset, method in (
            ("parts", 25, 12, "PATCH"),
            ("tail", 12, 7, "PATCH"),
            ("parts", 20, 20, "HEAD"),
        ):
            app = TusApp()
            path = app.begun(size)
            # It is whole, and nobody has made an object of it yet.
            failing = self.patch(MemoryStore, "complete_multipart", away)
            self.assertEqual(app.patch(path, 0, b"x" * offset).status, 503 if offset == size else 204)
            failing.restore()
            (app.store.multiparts if lost == "parts" else app.store.objects).clear()
            sent = {**USER, **TUS, **BYTES, "Upload-Offset": str(offset)}
            answer = app.request(method, path, sent, b"y" * (size - offset) if method == "PATCH" else b"")
            self.assertEqual(answer.status, 410, (lost, method))
            if method == "PATCH":
                self.assertEqual(refused(answer), (410, "upload_expired"))
            self.assertEqual(app.head(path).status, 404)
            app.clock.advance(DAY)
            app.nothing_left()

    def test_one_that_another_request_has_taken_over_is_left_to_that(self) -> None:
        """It may have made one object of the parts, which the store has no more then."""
        for parts_gone in (False, True):
            app = TusApp()
            path = app.begun(25)
            app.patch(path, 0, b"x" * 12)
            client = app.sending(path, 12, 12, b"y" * 5)
            upload = next(iter(app.tables.resumables))
            app.tables.holds[upload] = (uuid4(), app.now() + timedelta(seconds=durations.HOLD_SECONDS))
            if parts_gone:
                app.store.multiparts.clear()
            client.send(b"y" * 7)
            self.assertIn(b"HTTP/1.1 423 ", client.received(), parts_gone)
            self.assertEqual(app.tables.resumables[upload].received, 12)

    def test_an_upload_that_is_whole_becomes_an_object_at_the_next_request(self) -> None:
        for size, again in ((5, "head"), (25, "head"), (25, "patch")):
            app = TusApp()
            path = app.begun(size)
            self.lose_the_switch(app)
            self.assertEqual(app.patch(path, 0, b"x" * size).status, 500)
            self.flushLoggedErrors(RuntimeError)
            self.restore()
            self.assertEqual(app.get("a.txt").status, 404)
            answer = app.head(path) if again == "head" else app.patch(path, size)
            self.assertEqual(answer.header("content-location"), "/storage/buckets/open/objects/a.txt")
            self.assertEqual(app.stored(), [b"x" * size])

    def lose_the_switch(self, app: TusApp) -> None:
        async def lost(*args: Any) -> None:
            raise RuntimeError("the process dies")

        self.patched = self.patch(FakeResumables, "commit", lost)

    def restore(self) -> None:
        self.patched.restore()
