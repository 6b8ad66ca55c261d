"""``/storage/v1/upload/resumable``: tus with bucket and key in ``Upload-Metadata``."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import TestCase

from project_service import base64url
from tests.fakes.common import Response
from tests.http.storage.app import ALICE, BOB
from tests.http.storage.test_resumable import BYTES, TUS, metadata
from tests.http.supabase.storage_app import ANON, OTHER, SERVICE, USER, V1, ClientApp, told
from tests.http.supabase.test_storage_objects import everything, own_folder

UPLOADS = f"{V1}/upload/resumable"
SIGNED = f"{UPLOADS}/sign"


class Resumable(TestCase):
    def setUp(self) -> None:
        self.app = ClientApp(part_bytes=10)
        self.app.tables.policies = own_folder
        self.key = f"{ALICE}/a.txt"

    def begin(self, caller: dict[str, str] = USER, path: str = UPLOADS, **more: Any) -> Response:
        described = {"bucketName": "policed", "objectName": self.key, "contentType": "text/csv", **more}
        upsert = described.pop("upsert", None)
        sent = {
            **caller,
            **TUS,
            "Upload-Length": "10",
            "Upload-Metadata": metadata(**{name: value for name, value in described.items() if value}),
            **({} if upsert is None else {"x-upsert": upsert}),
        }
        return self.app.request("POST", path, sent, b"")

    def begun(self, caller: dict[str, str] = USER, **more: Any) -> str:
        response = self.begin(caller, **more)
        self.assertEqual(response.status, 201, response.body)
        return response.header("location") or ""

    def patch(self, path: str, offset: int, body: bytes, caller: dict[str, str] = USER) -> Response:
        sent = {**caller, **TUS, **BYTES, "Upload-Offset": str(offset)}
        return self.app.request("PATCH", path, sent, body)

    def head(self, path: str, caller: dict[str, str] = USER) -> Response:
        return self.app.request("HEAD", path, {**caller, **TUS})

    def test_an_upload_in_two_requests(self) -> None:
        path = self.begun(cacheControl="3600", metadata='{"a": 1}')
        self.assertTrue(path.startswith(f"{UPLOADS}/"))
        first = self.patch(path, 0, b"01234")
        self.assertEqual((first.status, first.header("upload-offset")), (204, "5"))
        self.assertIn("Upload-Offset", first.header("access-control-expose-headers") or "")
        there = self.head(path)
        self.assertEqual(
            (there.status, there.header("upload-offset"), there.header("upload-length")), (200, "5", "10")
        )
        self.assertEqual(self.patch(path, 5, b"56789").status, 204)
        row = self.app.tables.objects["policed", self.key]
        self.assertEqual(
            (row.content_type, str(row.owner), row.max_age_seconds, row.metadata),
            ("text/csv", ALICE, 3600, '{"a":1}'),
        )
        self.assertEqual(self.app.stored(), [b"0123456789"])

    def test_a_key_in_authorization_alone_and_other_bases(self) -> None:
        for base in (UPLOADS, f"{UPLOADS}/", "/dev/db/main/storage/v1/upload/resumable"):
            response = self.begin(SERVICE, base, objectName="s", upsert="true")
            self.assertEqual(response.status, 201, response.body)
            path = response.header("location") or ""
            self.assertTrue(path.startswith(base.rstrip("/") + "/"))
            self.assertEqual(self.patch(path, 0, b"0123456789", SERVICE).status, 204)
        options = self.app.request("OPTIONS", UPLOADS, {"apikey": "wrong"})
        self.assertEqual((options.status, options.header("tus-version")), (204, "1.0.0"))

    def test_nothing_is_replaced_without_upsert(self) -> None:
        self.assertEqual(self.patch(self.begun(), 0, b"0123456789").status, 204)
        for upsert in (None, "false"):
            self.assertEqual(told(self.begin(upsert=upsert)), (409, "409", "KeyAlreadyExists"))
        path = self.begun(upsert="true")
        self.assertEqual(self.patch(path, 0, b"9876543210").status, 204)
        self.assertEqual(self.app.stored(), [b"9876543210"])

    def test_statuses_are_those_of_the_protocol(self) -> None:
        path = self.begun()
        behind = self.patch(path, 3, b"x")
        self.assertEqual(told(behind), (409, "409", "TusError"))
        self.assertEqual(behind.header("upload-offset"), "0")
        self.assertIn("Upload-Offset conflict: ", json.loads(behind.body)["message"])
        self.assertEqual(behind.header("tus-resumable"), "1.0.0")
        self.assertEqual(told(self.app.request("PATCH", path, USER, b"x"))[0], 412)
        self.assertEqual(told(self.begin(bucketName=None))[:2], (400, "400"))
        self.assertEqual(told(self.begin(objectName=None))[2], "InvalidKey")
        self.assertEqual(told(self.begin(objectName="../x"))[2], "InvalidKey")
        self.assertEqual(told(self.begin(bucketName="nowhere")), (404, "404", "NoSuchBucket"))
        self.assertEqual(self.app.request("DELETE", path, {**USER, **TUS}).status, 204)
        self.assertEqual(told(self.patch(path, 0, b"x")), (404, "404", "NoSuchUpload"))

    def test_policies_and_owners_decide(self) -> None:
        for headers in (OTHER, ANON):
            self.assertEqual(told(self.begin(headers)), (403, "403", "AccessDenied"))
        self.assertEqual(told(self.begin(ANON, bucketName="shut")), (403, "403", "AccessDenied"))
        self.assertEqual(told(self.begin({})), (400, "400", "AccessDenied"))
        path = self.begun()
        for headers in (OTHER, ANON):
            self.assertEqual(told(self.patch(path, 0, b"x", headers)), (404, "404", "NoSuchUpload"))
            self.assertEqual(self.head(path, headers).status, 404)
        # They are asked again at the end.
        self.app.tables.policies = lambda command, row, who: False
        self.assertEqual(told(self.patch(path, 0, b"0123456789")), (403, "403", "AccessDenied"))
        self.app.tables.policies = everything
        path = self.begun(ANON, objectName="k")
        self.assertEqual(self.patch(path, 0, b"0123456789", ANON).status, 204)
        self.assertEqual(told(self.patch(path, 0, b"0123456789", OTHER))[0], 404)

    def test_ids_of_other_uploads_and_buckets_are_none(self) -> None:
        path = self.begun()
        name = path.rpartition("/")[2]
        version = base64url.decode(name).decode().partition("/")[0]
        for text in (
            f"{version}/shown",
            f"{version}/none",
            version,
            f"{version.upper()}/policed",
            "x/policed",
            "é",
        ):
            other = base64url.encode(text.encode())
            self.assertEqual(self.head(f"{UPLOADS}/{other}").status, 404, text)
        for other in ("x", "a.b", f"{name}=%3D", "%2e%2e", BOB):
            self.assertEqual(self.head(f"{UPLOADS}/{other}").status, 404, other)
        self.assertEqual(self.head(path).status, 200)

    def test_the_status_as_json(self) -> None:
        status = self.app.request("GET", self.begun(), {**USER, **TUS})
        self.assertEqual(json.loads(status.body)["offset"], 0)


class BySignedAddress(TestCase):
    """``/upload/resumable/sign`` with the token of ``createSignedUploadUrl`` in ``x-signature``, and nothing else."""

    def setUp(self) -> None:
        self.app = ClientApp(part_bytes=10)
        self.app.tables.policies = own_folder
        self.key = f"{ALICE}/a.txt"

    def token(self, key: str | None = None, upsert: str = "false") -> str:
        sent = {**USER, "x-upsert": upsert}
        made = self.app.value("POST", f"/object/upload/sign/policed/{key or self.key}", {}, sent)
        return str(made["token"])

    def begin(
        self, token: str | None, key: str = "", bucket: str = "policed", path: str = SIGNED
    ) -> Response:
        described = metadata(bucketName=bucket, objectName=key or self.key, contentType="text/csv")
        sent = {**TUS, "Upload-Length": "10", "Upload-Metadata": described, "x-upsert": "true"}
        return self.app.request("POST", path, {**sent, **_signed(token)}, b"")

    def begun(self, token: str, path: str = SIGNED) -> str:
        response = self.begin(token, path=path)
        self.assertEqual(response.status, 201, response.body)
        return response.header("location") or ""

    def append(self, path: str, offset: int, body: bytes, token: str | None) -> Response:
        sent = {**TUS, **BYTES, "Upload-Offset": str(offset), **_signed(token)}
        return self.app.request("PATCH", path, sent, body)

    def test_an_upload_in_two_requests_with_the_rights_of_the_maker(self) -> None:
        for number, base in enumerate(
            (SIGNED, f"{SIGNED}/", "/dev/db/main/storage/v1/upload/resumable/sign")
        ):
            self.key = f"{ALICE}/{number}"
            token = self.token()
            path = self.begun(token, base)
            self.assertTrue(path.startswith(base.rstrip("/") + "/"), path)
            self.assertEqual(self.append(path, 0, b"01234", token).header("upload-offset"), "5")
            there = self.app.request("HEAD", path, {**TUS, **_signed(token)})
            self.assertEqual((there.status, there.header("upload-offset")), (200, "5"))
            self.assertEqual(self.append(path, 5, b"56789", token).status, 204)
            row = self.app.tables.objects["policed", self.key]
            self.assertEqual((row.content_type, str(row.owner), row.size), ("text/csv", ALICE, 10))
        options = self.app.request("OPTIONS", SIGNED, {"apikey": "wrong"})
        self.assertEqual((options.status, options.header("tus-version")), (204, "1.0.0"))

    def test_nothing_is_replaced_unless_the_address_was_made_for_that(self) -> None:
        token = self.token()
        first, second = self.begun(token), self.begun(token)
        self.assertEqual(self.append(first, 0, b"0123456789", token).status, 204)
        self.assertEqual(told(self.append(second, 0, b"9876543210", token)), (409, "409", "KeyAlreadyExists"))
        self.assertEqual(told(self.begin(token)), (409, "409", "KeyAlreadyExists"))
        token = self.token(upsert="true")
        self.assertEqual(self.append(self.begun(token), 0, b"9876543210", token).status, 204)
        self.assertEqual(self.app.stored(), [b"9876543210"])

    def test_a_token_is_for_one_object(self) -> None:
        token, other = self.token(), self.token(f"{ALICE}/b.txt")
        bad = (400, "400", "InvalidSignature")
        for key, bucket in ((f"{ALICE}/b.txt", ""), (f"{BOB}/a.txt", ""), ("", "shown"), ("", "nowhere")):
            self.assertEqual(told(self.begin(token, key, bucket or "policed")), bad, (key, bucket))
        self.assertEqual(told(self.begin("x")), bad)
        self.assertEqual(told(self.begin(None)), (400, "400", "InvalidRequest"))
        path = self.begun(token)
        self.assertEqual(told(self.append(path, 0, b"x", other)), (404, "404", "NoSuchUpload"))
        self.assertEqual(told(self.append(path, 0, b"x", "x")), bad)
        self.assertEqual(told(self.append(path, 0, b"x", None)), (400, "400", "InvalidRequest"))
        delete = self.app.request("DELETE", path, {**TUS, **_signed(other)})
        self.assertEqual(told(delete), (404, "404", "NoSuchUpload"))
        # A signature does nothing at the path for callers, and callers have no rights at that for signatures.
        name = path.rpartition("/")[2]
        self.assertEqual(told(self.append(f"{UPLOADS}/{name}", 0, b"x", token)), (400, "400", "AccessDenied"))
        sent = {**SERVICE, **TUS, **BYTES, "Upload-Offset": "0"}
        self.assertEqual(told(self.app.request("PATCH", path, sent, b"x")), (400, "400", "InvalidRequest"))
        self.assertEqual(self.append(path, 0, b"0123456789", token).status, 204)

    def test_links_that_one_upload_uses_up_are_for_their_own_address(self) -> None:
        for terms in ({}, {"max_bytes": 5}, {"content_types": ["a/b"]}):
            body = {"method": "PUT", "key": "k", **terms}
            link = self.app.value("POST", "/storage/buckets/shut/presign", body, USER, base="")
            token = link["url"].partition("=")[2]
            self.assertEqual(told(self.begin(token, "k", "shut")), (400, "400", "InvalidSignature"), terms)

    def test_it_ends_with_the_address_and_policies_are_asked_again(self) -> None:
        token = self.token()
        path = self.begun(token)
        self.app.tables.policies = lambda command, row, who: False
        self.assertEqual(told(self.append(path, 0, b"0123456789", token)), (403, "403", "AccessDenied"))
        self.app.tables.policies = everything
        path = self.begun(token)
        self.assertEqual(self.append(path, 0, b"01234", token).status, 204)
        self.app.clock.advance(7200)
        self.assertEqual(told(self.append(path, 5, b"56789", token)), (400, "400", "ExpiredToken"))
        self.assertEqual(self.app.tables.objects, {})


def _signed(token: str | None) -> dict[str, str]:
    return {} if token is None else {"x-signature": token}
