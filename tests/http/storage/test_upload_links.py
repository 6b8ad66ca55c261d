"""Upload links: made by whoever may upload, and used by anybody, once, within what the link says."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from attrs import evolve
from twisted.trial.unittest import TestCase

from project_service import base64url
from project_service.storage.parsing import parameters
from project_service.storage.values import Link
from tests.captured_log import logged_until_the_end
from tests.fakes.common import Client, Response
from tests.fakes.storage import FakeLinks, FakeObjects
from tests.http.storage.app import (
    ALICE,
    ANON,
    BOB,
    FORM,
    OTHER,
    SERVICE,
    USER,
    StorageApp,
    code,
    file_form,
    form,
    part,
    refused,
)

PRESIGN = "/storage/buckets/shut/presign"
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


class UploadLinks(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp(redirect_urls=("https://app.example.com/done", "https://app.example.com/in/"))

    def presigned(self, headers: dict[str, str] = USER, bucket: str = "shut", **given: Any) -> Response:
        return self.app.post(f"/storage/buckets/{bucket}/presign", {"method": "PUT", **given}, headers)

    def path(self, headers: dict[str, str] = USER, bucket: str = "shut", **given: Any) -> str:
        response = self.presigned(headers, bucket, **given)
        self.assertEqual(response.status, 200, response.body)
        return str(json.loads(response.body)["url"]).removeprefix("http://api.example.test")

    def sent(self, path: str, payload: bytes = b"hello", **headers: str) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.app.request("PUT", path, named, payload)

    def posted(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> Response:
        return self.app.request("POST", path, {**FORM, **(headers or {})}, body)

    def owner(self, key: str = "k", bucket: str = "shut") -> UUID | None:
        return self.app.tables.objects[bucket, key].owner

    def begun(self, path: str, payload: bytes = b"he", length: int = 5) -> Client:
        """A PUT by a link of which a part has been sent."""
        client = self.app.connect()
        client.send(f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode() + payload)
        return client

    # Making them.

    def test_what_presign_returns(self) -> None:
        made = json.loads(self.presigned(key="k", expires_in_seconds=60).body)
        self.assertRegex(
            made.pop("url"), r"^http://api\.example\.test/storage/upload\?token=[A-Za-z0-9_-]{43}$"
        )
        (link,) = self.app.tables.links.values()
        self.assertEqual(
            made, {"id": str(link.id), "expires_at": "2026-11-21T00:01:00.000Z", "method": "PUT"}
        )

    def test_it_takes_what_an_upload_takes(self) -> None:
        self.assertEqual(refused(self.presigned(ANON, "open", key="k")), (401, "authentication_required"))
        self.assertEqual(refused(self.presigned(ANON, key="k")), (401, "authentication_required"))
        self.assertEqual(refused(self.presigned(bucket="none", key="k")), (404, "bucket_not_found"))
        named = {"X-Object-Owner": BOB}
        self.assertEqual(refused(self.presigned({**USER, **named}, key="k")), (403, "service_key_required"))
        self.app.put("k", bucket="shut")
        self.app.rules("shut", owner_only_writes=True)
        self.assertEqual(refused(self.presigned(OTHER, key="k", overwrite=True)), (403, "not_owner"))
        self.assertEqual(refused(self.presigned(key="k")), (412, "object_exists"))
        self.assertEqual(self.app.tables.links, {})
        self.path(key="k", overwrite=True)

    def test_members_that_do_not_go_together(self) -> None:
        for given, field in (
            ({"method": "POST", "key": "k"}, "method"),
            ({"key": "k", "keys": ["l"]}, "keys"),
            ({"key": "k", "key_prefix": "l"}, "key_prefix"),
            ({"key": "k", "uses": 2}, "uses"),
            ({"key": "k", "uses": 0}, "uses"),
            ({"key": None}, "key"),
            ({"key": "k", "max_bytes": 0}, "max_bytes"),
            ({"key": "k", "max_bytes": 5 * 1024**4 + 1}, "max_bytes"),
            ({"key": "k", "content_types": None}, "content_types"),
            ({"key": "k", "content_types": ["image"]}, "content_types"),
            ({"key": "k", "content_types": []}, "content_types"),
            ({"key": "k", "overwrite": 1}, "overwrite"),
            ({"keys": []}, "keys"),
            ({"keys": ["k"] * 1001}, "keys"),
            ({"method": "GET"}, "key"),
            ({"method": "GET", "key_prefix": "p"}, "key_prefix"),
            ({"method": "GET", "key": "k", "max_bytes": 1}, "max_bytes"),
            ({"method": "GET", "key": "k", "content_types": []}, "content_types"),
            ({"method": "GET", "key": "k", "overwrite": True}, "overwrite"),
        ):
            response = self.presigned(**given)
            self.assertEqual(refused(response), (422, "validation_failed"), given)
            self.assertIn(field, json.loads(response.body)["error"]["details"], given)
        prefixes = ("a\n", "../", "/x", "a//", "a/../", "p" * 900)
        keys: list[dict[str, Any]] = [{"key": "../k"}, {"key": ""}, {"keys": ["k", "/l"]}]
        for wrong in (*keys, *({"key_prefix": prefix} for prefix in prefixes)):
            self.assertEqual(refused(self.presigned(**wrong)), (422, "invalid_key"), wrong)
        details = json.loads(self.presigned(keys=["k", "/l"]).body)["error"]["details"]
        self.assertEqual(details, {"keys": "it begins with / (number 2 of keys)"})
        self.assertEqual(self.app.tables.links, {})

    # Using them by PUT.

    def test_anybody_uploads_once_in_the_name_of_whoever_signed(self) -> None:
        path = self.path(key="d/k.txt")
        response = self.sent(path, Content_Type="text/plain")
        self.assertEqual(response.status, 201)
        self.assertEqual(json.loads(response.body)["key"], "d/k.txt")
        self.assertEqual(response.header("location"), "/storage/buckets/shut/objects/d/k.txt")
        self.assertEqual(response.header("referrer-policy"), "no-referrer")
        self.assertEqual(response.header("cache-control"), "no-store")
        self.assertEqual(self.owner("d/k.txt"), UUID(ALICE))
        self.assertEqual(refused(self.sent(path)), (410, "token_used"))
        self.assertEqual(self.app.stored(), [b"hello"])

    def test_neither_a_project_key_nor_a_user_token_counts(self) -> None:
        """A wrong project key is refused all the same, as everywhere."""
        path = self.path(key="k")
        self.assertEqual(
            refused(self.sent(path, X_Service_Key="psk_anon_wrong")), (401, "project_key_invalid")
        )
        self.assertEqual(self.sent(path, Authorization="Bearer expired", X_Object_Owner=BOB).status, 201)
        self.assertEqual(self.owner(), UUID(ALICE))

    def test_the_service_key_signs_for_a_user_or_for_nobody(self) -> None:
        for headers, owner in ((SERVICE, None), ({**SERVICE, "X-Object-Owner": BOB}, UUID(BOB))):
            self.assertEqual(self.sent(self.path(headers, key="k", overwrite=True)).status // 100, 2)
            self.assertEqual(self.owner(), owner)

    def test_a_page_of_another_origin_may_use_one(self) -> None:
        asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "PUT"}
        path = self.path(key="k")
        preflight = self.app.request("OPTIONS", path, asked)
        self.assertEqual(preflight.status, 204)
        self.assertIn("PUT", preflight.header("access-control-allow-methods") or "")
        self.assertEqual(
            self.sent(path, Origin="https://a.example").header("access-control-allow-origin"), "*"
        )

    def test_an_object_is_replaced_only_if_the_link_says_so(self) -> None:
        path, other = self.path(key="k"), self.path(key="k", overwrite=True)
        self.app.put("k", b"there", bucket="shut")
        self.assertEqual(refused(self.sent(path)), (412, "object_exists"))
        self.assertEqual(refused(self.sent(other, If_None_Match="*")), (412, "object_exists"))
        self.assertEqual(self.sent(other).status, 200)
        self.assertEqual(self.app.stored(), [b"hello"])
        # It was not used up by what was refused.
        self.app.request("DELETE", "/storage/buckets/shut/objects/k", USER)
        self.assertEqual(self.sent(path).status, 201)

    def test_x_upsert_narrows_a_link_that_may_replace(self) -> None:
        path = self.path(key="k", overwrite=True)
        self.app.put("k", b"there", bucket="shut")
        self.assertEqual(refused(self.sent(path, X_Upsert="false")), (412, "object_exists"))
        self.assertEqual(self.app.stored(), [b"there"])
        self.assertEqual(self.sent(path, X_Upsert="true").status, 200)
        # It gives no right that the link has not.
        path = self.path(key="other")
        self.app.put("other", b"there", bucket="shut")
        self.assertEqual(refused(self.sent(path, X_Upsert="true")), (412, "object_exists"))

    def test_the_rights_are_those_that_the_signer_has_when_it_is_used(self) -> None:
        path = self.path(OTHER, key="k", overwrite=True)
        self.app.put("k", bucket="shut")
        self.app.rules("shut", owner_only_writes=True)
        self.assertEqual(refused(self.sent(path)), (403, "not_owner"))
        self.assertEqual(self.sent(self.path(SERVICE, key="k", overwrite=True)).status, 200)
        self.assertEqual(self.owner(), UUID(ALICE))

    def test_the_smaller_limit_counts(self) -> None:
        self.app.rules("shut", max_object_bytes=8)
        for limit, size, status in ((5, 5, 201), (5, 6, 413), (100, 8, 201), (100, 9, 413), (None, 9, 413)):
            given: dict[str, Any] = {} if limit is None else {"max_bytes": limit}
            path = self.path(key=f"{limit}-{size}", **given)
            self.assertEqual(self.sent(path, b"x" * size).status, status, (limit, size))
        # Also without a Content-Length.
        client = self.app.connect()
        head = f"PUT {self.path(key='chunked', max_bytes=5)} HTTP/1.1\r\nHost: x\r\n"
        client.send(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n6\r\nsixsix\r\n0\r\n\r\n")
        self.assertEqual(client.received()[9:12], b"413")

    def test_the_content_type_has_to_suit_the_link_and_the_bucket(self) -> None:
        self.app.rules("shut", allowed_content_types=("image/*", "text/*"))
        path = self.path(key_prefix="", content_types=["image/*", "video/mp4"])
        for declared, status in (("text/plain", 415), ("video/mp4", 415), ("image/png", 201)):
            response = self.sent(f"{path}&key=k", Content_Type=declared)
            self.assertEqual(response.status, status, declared)
            if status == 415:
                self.assertEqual(json.loads(response.body)["error"]["details"], {"content_type": declared})
        guessed = self.path(key_prefix="", content_types=["image/*"])
        self.assertEqual(refused(self.sent(f"{guessed}&key=a.txt")), (415, "unsupported_media_type"))
        self.assertEqual(self.sent(f"{guessed}&key=a.png").status, 201)

    def test_the_key_of_a_link_cannot_be_chosen(self) -> None:
        path = self.path(key="k")
        self.assertEqual(refused(self.sent(f"{path}&key=other")), (422, "invalid_key"))
        self.assertEqual(self.sent(f"{path}&key=k").status, 201)

    def test_the_rest_of_the_key_is_chosen_below_a_prefix(self) -> None:
        self.assertEqual(refused(self.sent(self.path(key_prefix="in/"))), (422, "validation_failed"))
        for prefix, chosen, key in (
            ("in/", "a.txt", "in/a.txt"),
            ("in/", "b/c%20d.txt", "in/b/c d.txt"),
            ("in-", "e", "in-e"),
            ("", "f/g", "f/g"),
            ("in/", "", None),
            ("in/h", "", None),
            ("in/", "../k", None),
            ("in/", "a/../../k", None),
            ("in/", "..", None),
            ("in/", ".", None),
            ("in/", "/k", None),
            ("in/", "%2e%2e/k", None),
            ("in/.", "./k", None),
            ("in/", "a%00", None),
            ("in/", "k" * 898, None),
        ):
            response = self.sent(f"{self.path(key_prefix=prefix)}&key={chosen}")
            if key is None:
                self.assertEqual(refused(response), (422, "invalid_key"), (prefix, chosen))
            else:
                self.assertEqual(json.loads(response.body)["key"], key, (prefix, chosen))
        self.assertEqual(
            [key for _, key in self.app.tables.objects], ["in/a.txt", "in/b/c d.txt", "in-e", "f/g"]
        )

    def test_a_link_for_no_key_takes_any(self) -> None:
        self.assertEqual(json.loads(self.sent(self.path() + "&key=a/b").body)["key"], "a/b")

    def test_what_uploads_refuse_links_refuse(self) -> None:
        path = self.path(key="k")
        faults: tuple[tuple[dict[str, Any], int], ...] = (
            ({"Content_Range": "bytes 0-4/5"}, 400),
            ({"Content_MD5": "x"}, 400),
            ({"Content_Encoding": "gzip"}, 415),
            ({"Content_Type": "multipart/form-data; boundary=x"}, 415),
            ({"Content_Type": "nonsense"}, 422),
            ({"Cache_Control": "max-age=x"}, 422),
        )
        for headers, status in faults:
            self.assertEqual(self.sent(path, **headers).status, status, headers)
        self.assertEqual(self.app.request("PUT", path).status, 411)
        self.assertEqual(self.sent(path).status, 201)

    # Used once.

    def test_an_upload_that_breaks_off_does_not_use_it_up(self) -> None:
        path = self.path(key="k")
        self.begun(path).hang_up()
        self.app.store.away = True
        self.assertEqual(refused(self.sent(path)), (503, "store_unavailable"))
        self.app.store.away = False
        self.assertEqual(self.sent(path).status, 201)

    def test_of_two_at_once_the_first_that_ends_makes_the_object(self) -> None:
        for overwrite in (False, True):
            path = self.path(key=f"k{overwrite}", overwrite=overwrite)
            slow, fast = self.begun(path), self.begun(path, b"fa")
            fast.send(b"st!")
            slow.send(b"llo")
            self.assertEqual(fast.received()[9:12], b"201")
            answer = slow.received()
            self.assertEqual(answer[9:12], b"410", overwrite)
            self.assertIn(b'"token_used"', answer)
        self.assertEqual(self.app.stored(), [b"fast!", b"fast!"])

    def test_one_that_finds_what_the_link_has_just_made_is_told_of_the_link(self) -> None:
        find, others = FakeLinks.find, list[Response]()
        for send in (self.sent, lambda path: self.posted(path, file_form())):
            path = self.path(key=f"k{len(others)}")

            async def find_and_be_late(rows: FakeLinks, token_hash: bytes) -> Link | None:
                link = await find(rows, token_hash)
                self.patch(FakeLinks, "find", find)
                others.append(self.sent(path))  # noqa: B023  # called before the loop goes on
                return link

            self.patch(FakeLinks, "find", find_and_be_late)
            self.assertEqual(refused(send(path)), (410, "token_used"))
        self.assertEqual([other.status for other in others], [201, 201])

    def test_of_two_keys_at_once_below_a_prefix_one_is_made(self) -> None:
        path = self.path(key_prefix="in/")
        slow, fast = self.begun(f"{path}&key=slow"), self.begun(f"{path}&key=fast", b"fa")
        fast.send(b"st!")
        slow.send(b"llo")
        self.assertEqual((fast.received()[9:12], slow.received()[9:12]), (b"201", b"410"))
        self.assertEqual(self.app.stored(), [b"fast!"])

    def test_one_that_began_in_time_may_end_after_the_expiry(self) -> None:
        path = self.path(key="k", expires_in_seconds=10)
        client = self.begun(path)
        self.app.clock.advance(10)
        self.assertEqual(refused(self.sent(path)), (410, "token_expired"))
        client.send(b"llo")
        self.assertEqual(client.received()[9:12], b"201")

    def test_one_whose_link_is_revoked_meanwhile_makes_nothing(self) -> None:
        client = self.begun(self.path(key="k"))
        (link,) = self.app.tables.links.values()
        self.assertEqual(
            self.app.request("DELETE", f"/storage/buckets/shut/links/{link.id}", USER).status, 204
        )
        client.send(b"llo")
        answer = client.received()
        self.assertEqual(answer[9:12], b"404")
        self.assertIn(b'"token_not_found"', answer)
        self.assertEqual(self.app.stored(), [])

    def test_a_bucket_that_was_deleted_takes_its_links_along(self) -> None:
        path = self.path(key="k")
        self.assertEqual(self.app.request("DELETE", "/admin/buckets/shut", SERVICE).status, 204)
        self.assertEqual(refused(self.sent(path)), (404, "token_not_found"))

    # Which link is for what.

    def test_links_of_one_method_do_not_work_for_the_other(self) -> None:
        self.app.put("k", bucket="shut")
        upload = self.path(key="l")
        token = upload.partition("=")[2]
        self.assertEqual(
            refused(self.app.request("GET", f"/storage/download?token={token}")), (404, "token_not_found")
        )
        made = json.loads(self.app.post(PRESIGN, {"key": "k"}).body)
        download = made["url"].partition("=")[2]
        self.assertEqual(refused(self.sent(f"/storage/upload?token={download}")), (404, "token_not_found"))
        self.assertEqual(refused(self.sent("/storage/upload?token=x")), (404, "token_not_found"))
        for query in ("", "?token=", "?other=x"):
            self.assertEqual(refused(self.sent(f"/storage/upload{query}")), (422, "validation_failed"))
        self.assertEqual(self.app.request("GET", upload).status, 405)

    def test_the_token_is_stored_logged_and_counted_nowhere(self) -> None:
        events = logged_until_the_end(self)
        path = self.path(key="k")
        token = path.partition("=")[2]
        for _ in range(2):
            self.sent(path, Referer="http://x/")
        self.assertTrue(events)
        self.assertNotIn(token, repr(events))
        self.assertNotIn(token.encode(), self.app.metrics.exposition())
        self.assertNotIn(token, repr(self.app.tables.links))

    # By a form.

    def test_a_form_uploads_by_a_link(self) -> None:
        path = self.path(key="k.txt")
        response = self.posted(path, file_form(b"hello", "other name.txt"))
        self.assertEqual((response.status, json.loads(response.body)["key"]), (201, "k.txt"))
        self.assertEqual(response.header("location"), "/storage/buckets/shut/objects/k.txt")
        self.assertEqual(self.owner("k.txt"), UUID(ALICE))
        self.assertEqual(refused(self.posted(path, file_form())), (410, "token_used"))

    def test_below_a_prefix_a_form_chooses_by_the_field_key_or_the_files_name(self) -> None:
        for body, key in (
            (file_form(b"x", "a b.txt"), "in/a b.txt"),
            (file_form(b"x", "a.txt", key="c/d.txt"), "in/c/d.txt"),
            (form(part("file", b"x", "a.txt"), part("key", b"late.txt")), "in/late.txt"),
            (file_form(b"x", "../a.txt"), None),
            (file_form(b"x", "a.txt", key="../a.txt"), None),
            (file_form(b"x", "a.txt", key=""), None),
            (file_form(b"x", ""), None),
        ):
            response = self.posted(self.path(key_prefix="in/"), body)
            if key is None:
                self.assertEqual(refused(response), (422, "invalid_key"), body)
            else:
                self.assertEqual(json.loads(response.body)["key"], key)
        other = file_form(b"x", "a.txt", key="other")
        self.assertEqual(refused(self.posted(self.path(key="fixed"), other)), (422, "invalid_key"))

    def test_a_form_without_a_chosen_file_does_not_use_it_up(self) -> None:
        """A person pressed the button too early; browsers send an empty file without a name then."""
        path = self.path(key="k")
        for body in (file_form(b"", ""), form(part("file", b"", "", "application/octet-stream"))):
            self.assertEqual(refused(self.posted(path, body)), (400, "invalid_multipart"))
        page = self.posted(path, file_form(b"", ""), BROWSER)
        self.assertIn(b"no file was chosen", page.body)
        self.assertEqual(self.app.stored(), [])
        self.assertEqual(self.posted(path, file_form(b"", "empty.txt")).status, 201)

    def test_a_form_names_no_owner(self) -> None:
        """Not even by a link of the service key: the field is read past."""
        body = form(part("owner", BOB.encode()), part("file", b"x", "a"))
        self.assertEqual(self.posted(self.path(SERVICE, key="k"), body).status, 201)
        self.assertIsNone(self.owner())

    def test_a_form_is_held_to_limits_types_and_keys_of_its_link(self) -> None:
        self.app.put("taken", bucket="shut")
        for given, body, status in (
            ({"max_bytes": 5}, file_form(b"five!", "a"), 201),
            ({"max_bytes": 5}, file_form(b"sixsix", "b"), 413),
            ({"content_types": ["image/*"]}, form(part("file", b"x", "c", "text/plain")), 415),
            ({"content_types": ["image/*"]}, file_form(b"x", "d.txt"), 415),
            ({"content_types": ["image/*"]}, file_form(b"x", "e.png"), 201),
            ({}, file_form(b"x", "taken"), 412),
            ({"overwrite": True}, file_form(b"x", "taken"), 201),
            ({}, form(part("note", b"x")), 400),
        ):
            self.assertEqual(self.posted(self.path(key_prefix="", **given), body).status, status, body)
        self.assertEqual(refused(self.sent_json(self.path(key="k"))), (415, "unsupported_media_type"))

    def sent_json(self, path: str) -> Response:
        return self.app.request("POST", path, {"Content-Type": "application/json"}, b"{}")

    def test_a_form_is_refused_before_the_file_where_its_key_is_known(self) -> None:
        path = self.path(key="k")
        self.app.put("k", bucket="shut")
        client = self.app.connect()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in FORM.items()
        )
        client.send(head.encode() + b"Expect: 100-continue\r\n\r\n")
        self.assertEqual(client.received()[9:12], b"412")

    def test_a_form_leads_to_a_page_that_the_settings_name(self) -> None:
        for number, (url, location) in enumerate(
            (
                ("https://app.example.com/done", "https://app.example.com/done?"),
                ("https://app.example.com/in/", "https://app.example.com/in/?"),
                ("https://app.example.com/in/a?b=c", "https://app.example.com/in/a?b=c&"),
                ("https://app.example.com/in/a#part", "https://app.example.com/in/a?"),
            )
        ):
            for parts in (
                (part("redirect", url.encode()), part("file", b"x", f"{number} ä&b.txt")),
                (part("file", b"x", f"{number} ä&c.txt"), part("redirect", url.encode())),
            ):
                response = self.posted(self.path(key_prefix="", max_bytes=5), form(*parts))
                self.assertEqual((response.status, response.body), (303, b""))
                led = response.header("location") or ""
                self.assertTrue(led.startswith(location), led)
                self.assertIn(f"bucket=shut&key={number}+%C3%A4%26", led)
                self.assertIn("&etag=9dd4e461268c8034f5c8564e155c67a6", led)
                self.assertEqual(led.endswith("#part"), url.endswith("#part"))
                self.assertEqual(response.header("referrer-policy"), "no-referrer")

    def test_a_form_leads_nowhere_else(self) -> None:
        for url in (
            "https://evil.example/done", "https://app.example.com/done/", "https://app.example.com/done?x",
            "https://app.example.com.evil.example/in/", "https://app.example.com/in", "http://app.example.com/in/a",
            "https://app.example.com@evil.example/in/", "//app.example.com/in/a", "/in/a", "", "javascript:alert(1)",
            "https://app.example.com/in/../out", "https://app.example.com/in/%2e%2e/out",
            "https://app.example.com/in/.%2E/out", "https://app.example.com/in/a\\..\\..\\out",
            "https://app.example.com/in/a\r\nX: y", "https://app.example.com/in/a b", "https://app.example.com/in/ä",
            "https://APP.example.com/in/a", "https://app.example.com/in/a/%2e",
            "https://app.example.com/in/%2e%2e%2fout",
        ):  # fmt: skip
            path = self.path(key_prefix="")
            for parts in (
                (part("redirect", url.encode()), part("file", b"x", "a")),
                (part("file", b"x", "a"), part("redirect", url.encode())),
            ):
                response = self.posted(path, form(*parts))
                self.assertEqual(refused(response), (422, "validation_failed"), url)
                self.assertIn("redirect", json.loads(response.body)["error"]["details"])
                self.assertIsNone(response.header("location"))
        self.assertEqual(self.app.stored(), [])
        self.app.storage.live.settings = evolve(self.app.storage.live.settings, redirect_urls=())
        body = form(part("redirect", b"https://app.example.com/done"), part("file", b"x", "a"))
        self.assertEqual(refused(self.posted(self.path(key="k"), body)), (422, "validation_failed"))

    def test_only_forms_by_links_have_the_field_redirect(self) -> None:
        body = form(part("redirect", b"https://app.example.com/done"), part("file", b"x", "a"))
        self.assertEqual(self.app.upload(body).status, 201)

    def test_a_person_sees_a_page(self) -> None:
        used = self.path(key="used")
        self.posted(used, file_form())
        for path, body, status, says in (
            (used, file_form(), 410, b"This link has been used."),
            ("/storage/upload?token=x", file_form(), 404, b"There is no such link."),
            (self.path(key="a", max_bytes=2), file_form(), 413, b"<h1>The file was not uploaded</h1>"),
            (self.path(key="b", content_types=["a/b"]), file_form(), 415, b"application/octet-stream"),
            (self.path(key_prefix="c/"), file_form(filename="../<b>"), 422, b"The object key is not allowed"),
        ):
            page = self.posted(path, body, BROWSER)
            self.assertEqual((page.status, page.header("content-type")), (status, "text/html; charset=utf-8"))
            self.assertIn(says, page.body)
            self.assertNotIn(b"<b>", page.body)
            self.assertEqual(page.header("cache-control"), "no-store")
            self.assertEqual(
                page.header("content-security-policy"), "default-src 'none'; style-src 'unsafe-inline'"
            )
            self.assertEqual(self.posted(path, body).status, status)
            self.assertTrue(code(self.posted(path, body)))

    # Several at once.

    def test_links_for_several_keys(self) -> None:
        response = self.presigned(keys=["b", "a", "b"], max_bytes=5)
        made = json.loads(response.body)
        self.assertEqual([link["key"] for link in made["links"]], ["b", "a"])
        self.assertEqual(made["missing"], [])
        self.assertEqual(len({link["url"] for link in made["links"]}), 2)
        for link in made["links"]:
            self.assertEqual({*link}, {"key", "id", "url", "expires_at", "method"})
            path = link["url"].removeprefix("http://api.example.test")
            self.assertEqual(self.sent(path, link["key"].encode()).status, 201)
        self.assertEqual(
            {key: row.size for (_, key), row in self.app.tables.objects.items()}, {"b": 1, "a": 1}
        )

    def test_several_upload_links_are_made_all_or_none(self) -> None:
        self.app.put("taken", bucket="shut")
        response = self.presigned(keys=["free", "taken"])
        self.assertEqual(refused(response), (412, "object_exists"))
        self.assertEqual(json.loads(response.body)["error"]["details"], {"keys": "taken"})
        self.assertEqual(self.app.tables.links, {})
        self.app.rules("shut", owner_only_reads=True)
        response = self.presigned(OTHER, keys=["free", "taken"], overwrite=True)
        self.assertEqual(refused(response), (403, "not_owner"))

    def test_several_download_links_leave_out_what_is_not_there(self) -> None:
        for key in ("a", "b"):
            self.app.put(key, key.encode(), bucket="shut")
        made = json.loads(self.presigned(method="GET", keys=["b", "none", "a"]).body)
        self.assertEqual(([link["key"] for link in made["links"]], made["missing"]), (["b", "a"], ["none"]))
        for link in made["links"]:
            path = link["url"].removeprefix("http://api.example.test")
            self.assertEqual(self.app.request("GET", path).body, link["key"].encode())
        self.app.rules("shut", owner_only_reads=True)
        made = json.loads(self.presigned(OTHER, method="GET", keys=["a"]).body)
        self.assertEqual(made, {"links": [], "missing": ["a"]})

    def test_a_thousand_links_take_one_statement(self) -> None:
        wanted = [f"k{number}" for number in range(1000)]
        finds: list[int] = []
        real = FakeObjects.find_many

        async def counted(rows: FakeObjects, bucket: str, keys: Any, viewer: Any = None) -> Any:
            finds.append(len(keys))
            return await real(rows, bucket, keys, viewer)

        self.patch(FakeObjects, "find_many", counted)
        self.assertEqual(len(json.loads(self.presigned(keys=wanted).body)["links"]), 1000)
        self.assertEqual(finds, [1000])


class ListedLinks(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()

    def made(self, headers: dict[str, str] = USER, bucket: str = "open", **given: Any) -> dict[str, Any]:
        response = self.app.post(f"/storage/buckets/{bucket}/presign", given, headers)
        self.app.clock.advance(1)
        self.assertEqual(response.status, 200, response.body)
        value: dict[str, Any] = json.loads(response.body)
        return value

    def listed(self, headers: dict[str, str] = USER, bucket: str = "open", query: str = "") -> dict[str, Any]:
        response = self.app.request("GET", f"/storage/buckets/{bucket}/links{query}", headers)
        self.assertEqual(response.status, 200, response.body)
        self.assertEqual(response.header("cache-control"), "no-store")
        value: dict[str, Any] = json.loads(response.body)
        return value

    def test_what_a_list_says_of_each(self) -> None:
        self.app.put("k")
        self.made(key="k", uses=3)
        terms: dict[str, Any] = {"max_bytes": 5, "content_types": ["image/*"], "overwrite": True}
        self.made(method="PUT", key_prefix="in/", **terms)
        upload, download = self.listed()["links"]
        for link in (upload, download):
            self.assertRegex(link.pop("id"), "^[0-9a-f-]{36}$")
        self.assertEqual(
            download,
            {
                "method": "GET",
                "key": "k",
                "key_prefix": None,
                "created_at": "2026-11-21T00:00:00.000Z",
                "created_by": ALICE,
                "expires_at": "2026-11-21T01:00:00.000Z",
                "uses_left": 3,
                "used_at": None,
                "max_bytes": None,
                "content_types": None,
                "overwrite": False,
            },
        )
        self.assertEqual((upload["method"], upload["key"], upload["key_prefix"]), ("PUT", None, "in/"))
        self.assertEqual({name: upload[name] for name in terms}, terms)

    def test_users_see_their_own_and_the_service_key_all(self) -> None:
        self.app.put("k")
        ids = [self.made(headers, key="k")["id"] for headers in (USER, OTHER, SERVICE, ANON)]
        self.made(USER, "shut", method="PUT", key="k")
        for headers, seen in ((USER, ids[:1]), (OTHER, ids[1:2]), (SERVICE, ids[::-1])):
            self.assertEqual([link["id"] for link in self.listed(headers)["links"]], seen)
        path = "/storage/buckets/open/links"
        self.assertEqual(refused(self.app.request("GET", path, ANON)), (401, "authentication_required"))
        self.assertEqual(refused(self.app.request("GET", path)), (401, "project_key_required"))
        none = self.app.request("GET", "/storage/buckets/none/links", USER)
        self.assertEqual(refused(none), (404, "bucket_not_found"))

    def test_used_links_are_listed_until_they_expire(self) -> None:
        self.app.put("k")
        made = self.made(key="k", expires_in_seconds=10)
        self.app.request("GET", made["url"].removeprefix("http://api.example.test"))
        (link,) = self.listed()["links"]
        self.assertEqual((link["uses_left"], link["used_at"]), (0, "2026-11-21T00:00:01.000Z"))
        self.app.clock.advance(9)
        self.assertEqual(self.listed()["links"], [])

    def test_pages(self) -> None:
        made = [self.made(method="PUT", key=f"k{number}")["id"] for number in range(5)]
        seen, query = [], "?limit=2"
        while True:
            page = self.listed(query=query)
            seen += [link["id"] for link in page["links"]]
            if page["next_token"] is None:
                break
            self.assertEqual(len(page["links"]), 2)
            query = f"?limit=2&page_token={page['next_token']}"
            # What is added or revoked in between moves nothing.
            self.made(method="PUT", key="more")
            self.app.request("DELETE", f"/storage/buckets/open/links/{made[-1]}", USER)
        self.assertEqual(seen, made[::-1])
        odd_zone = base64url.encode(b'[1,"2020-01-01T00:00:00+23:59","11111111-1111-4111-8111-111111111111"]')
        self.assertEqual(parameters.decode_link_token(odd_zone)[0].isoformat(), "2019-12-31T00:01:00+00:00")
        too_early = base64url.encode(
            b'[1,"0001-01-01T00:00:00+23:59","11111111-1111-4111-8111-111111111111"]'
        )
        tokens = (f"?page_token={token}" for token in ("x", "WzFd", too_early))
        for query in ("?limit=0", "?limit=1001", "?limit=x", *tokens):
            response = self.app.request("GET", f"/storage/buckets/open/links{query}", USER)
            self.assertEqual(refused(response), (422, "validation_failed"), query)

    def test_a_revoked_link_does_not_work_any_more(self) -> None:
        self.app.put("k")
        download, upload = self.made(key="k", uses=0), self.made(method="PUT", key="l")
        for link, method in ((download, "GET"), (upload, "PUT")):
            path = f"/storage/buckets/open/links/{link['id']}"
            for headers in (OTHER, {**OTHER, "X-Service-Key": ANON["X-Service-Key"]}):
                self.assertEqual(refused(self.app.request("DELETE", path, headers)), (404, "link_not_found"))
            self.assertEqual(
                refused(self.app.request("DELETE", path, ANON)), (401, "authentication_required")
            )
            elsewhere = self.app.request("DELETE", path.replace("open", "shut"), USER)
            self.assertEqual(refused(elsewhere), (404, "link_not_found"))
            self.assertEqual(self.app.request("DELETE", path, USER).status, 204)
            self.assertEqual(refused(self.app.request("DELETE", path, USER)), (404, "link_not_found"))
            used = self.app.request(method, link["url"].removeprefix("http://api.example.test"), {}, b"x")
            self.assertEqual(refused(used), (404, "token_not_found"))
        for bad in ("x", "%00", "11111111-1111-4111-8111-111111111111"):
            response = self.app.request("DELETE", f"/storage/buckets/open/links/{bad}", SERVICE)
            self.assertEqual(refused(response), (404, "link_not_found"), bad)

    def test_the_service_key_revokes_any(self) -> None:
        made = self.made(method="PUT", key="k")
        path = f"/storage/buckets/open/links/{made['id']}"
        self.assertEqual(self.app.request("DELETE", path, SERVICE).status, 204)
        self.assertEqual(self.app.tables.links, {})
