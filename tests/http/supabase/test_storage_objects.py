"""``/storage/v1/object``: uploads in every form, downloads, details, moves, copies and deletions; and who may."""

from __future__ import annotations

import base64
import json
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.storage.values import BucketRules, Identity, ObjectRow
from tests.captured_log import logged_until_the_end
from tests.fakes.common import ANON_KEY, SERVICE_KEY, Response
from tests.fakes.storage import START
from tests.http.storage.app import ALICE, BOB, FORM, form, part
from tests.http.supabase.storage_app import ANON, OTHER, SERVICE, USER, V1, ClientApp, told

MISSING = (400, "404", "NoSuchKey")
DENIED = (400, "403", "AccessDenied")
EXISTS = (400, "409", "KeyAlreadyExists")
BAD_KEY = (400, "400", "InvalidKey")
AT = "2026-11-21T00:00:00.000Z"


def own_folder(command: str, row: ObjectRow, who: Identity) -> bool:
    """The policy of most guides."""
    sub: str | None = json.loads(who.claims).get("sub")
    return row.key.split("/")[0] == sub


def everything(command: str, row: ObjectRow, who: Identity) -> bool:
    return True


class Case(TestCase):
    def setUp(self) -> None:
        self.app = ClientApp()
        self.app.tables.policies = own_folder

    def send(
        self,
        path: str,
        body: bytes = b"hello",
        headers: dict[str, str] = SERVICE,
        method: str = "POST",
        **more: str,
    ) -> Response:
        sent = {"Content-Type": "text/plain;charset=UTF-8", **headers}
        sent |= {name.replace("_", "-"): value for name, value in more.items()}
        return self.app.request(method, f"{V1}{path}", sent, body)

    def put(self, path: str, body: bytes = b"hello", headers: dict[str, str] = SERVICE, **more: str) -> Any:
        response = self.send(f"/object/{path}", body, headers, x_upsert="true", **more)
        self.assertEqual(response.status, 200, response.body)
        return json.loads(response.body)

    def get(self, path: str, headers: dict[str, str] = SERVICE, method: str = "GET") -> Response:
        return self.app.request(method, f"{V1}{path}", headers)

    def row(self, bucket: str, key: str) -> ObjectRow:
        return self.app.tables.objects[bucket, key]


class Uploads(Case):
    def test_bytes(self) -> None:
        metadata = base64.b64encode(b'{"album": "trip"}').decode()
        made = self.put("policed/a%20dir/%C3%A9.txt", cache_control="max-age=3600", x_metadata=metadata)
        row = self.row("policed", "a dir/é.txt")
        self.assertEqual(made, {"Id": str(row.version), "Key": "policed/a dir/é.txt"})
        self.assertEqual(
            (row.size, row.content_type, row.owner, row.max_age_seconds, row.metadata),
            (5, "text/plain;charset=UTF-8", None, 3600, '{"album":"trip"}'),
        )
        self.assertEqual(self.app.stored(), [b"hello"])

    def test_without_upsert_nothing_is_replaced(self) -> None:
        first = self.put("policed/k", b"1")
        for upsert in ("", "false", "TRUE, false"):
            self.assertEqual(told(self.send("/object/policed/k", b"2", x_upsert=upsert)), EXISTS)
        self.assertEqual(told(self.send("/object/policed/k", b"2")), EXISTS)
        self.assertEqual(self.put("policed/k", b"3"), first)
        self.assertEqual(self.app.stored(), [b"3"])

    def test_put_replaces_and_makes(self) -> None:
        for body in (b"1", b"2"):
            self.assertEqual(self.send("/object/policed/k", body, method="PUT", x_upsert="false").status, 200)
        self.assertEqual(self.app.stored(), [b"2"])

    def form(self, *parts: bytes, path: str = "/object/policed/f.txt", **more: str) -> Response:
        return self.send(path, form(*parts), {**SERVICE, **FORM}, **more)

    def test_a_form_whose_file_has_no_name(self) -> None:
        response = self.form(
            part("cacheControl", b"60"),
            part("metadata", b'{"a": 1}'),
            part("", b"bytes", "blob", "image/png"),
        )
        self.assertEqual(response.status, 200, response.body)
        row = self.row("policed", "f.txt")
        self.assertEqual((row.content_type, row.max_age_seconds, row.metadata), ("image/png", 60, '{"a":1}'))
        self.assertEqual(self.app.stored(), [b"bytes"])
        self.assertEqual(told(self.form(part("", b"2", "blob"))), EXISTS)

    def test_a_form_with_fields_behind_its_file_and_any_name(self) -> None:
        for name in ("file", "whatever"):
            response = self.form(
                part(name, b"bytes", "a.bin", "text/csv"),
                part("cacheControl", b"7"),
                part("contentType", b"image/gif"),
                part("second", b"other", "b.bin"),
                x_upsert="true",
            )
            self.assertEqual(response.status, 200, response.body)
            row = self.row("policed", "f.txt")
            self.assertEqual((row.content_type, row.max_age_seconds), ("image/gif", 7))
            self.assertEqual(self.app.stored(), [b"bytes"])

    def test_a_type_that_a_form_names_counts_before_that_of_the_part(self) -> None:
        response = self.form(part("contentType", b"image/gif"), part("", b"x", "blob", "text/csv"))
        self.assertEqual(response.status, 200)
        self.assertEqual(self.row("policed", "f.txt").content_type, "image/gif")

    def test_forms_that_cannot_be_read(self) -> None:
        for parts in (
            (part("cacheControl", b"60"),),
            (part("cacheControl", b"soon"), part("", b"x", "blob")),
            (part("metadata", b"[]"), part("", b"x", "blob")),
        ):
            self.assertEqual(told(self.form(*parts)), (400, "400", "InvalidRequest"))
        self.assertEqual(self.app.stored(), [])

    def test_rules_of_the_bucket(self) -> None:
        self.app.ask(
            "PUT", "/bucket/policed", {"file_size_limit": 3, "allowed_mime_types": ["image/*"]}, SERVICE
        )
        self.app.clock.advance(1)
        self.assertEqual(
            told(self.send("/object/policed/k", b"1234", Content_Type="image/png")),
            (400, "413", "EntityTooLarge"),
        )
        refused = self.send("/object/policed/k", b"1", Content_Type="text/csv")
        self.assertEqual(told(refused), (400, "415", "InvalidMimeType"))
        self.assertEqual(json.loads(refused.body)["message"], "mime type text/csv is not supported")
        self.assertEqual(self.send("/object/policed/k", b"1", Content_Type="image/png").status, 200)
        missing = self.send("/object/nowhere/k")
        self.assertEqual(told(missing), (400, "404", "NoSuchBucket"))

    def test_paths_that_lead_elsewhere_are_refused(self) -> None:
        for path in (
            "policed/../shut/k",
            "policed/%2e%2e/k",
            "policed/a/%2E%2E/%2e%2e/shut/k",
            "policed/a//b",
        ):
            self.assertEqual(told(self.send(f"/object/{path}")), BAD_KEY, path)
        for path in ("policed%2F..%2Fshut/k", "..%2Fpoliced/k", "shut%2Fa/k"):
            self.assertEqual(told(self.send(f"/object/{path}")), (400, "404", "NoSuchBucket"), path)
        # An encoded slash is one of the key, in the bucket that the path begins with.
        self.assertEqual(self.put("policed/a%2Fb")["Key"], "policed/a/b")
        self.assertEqual(self.put("policed/a%252Fb")["Key"], "policed/a%2Fb")
        self.assertEqual({bucket for bucket, _ in self.app.tables.objects}, {"policed"})


class WhoMayUpload(Case):
    def test_policies_decide_in_buckets_of_clients(self) -> None:
        self.put(f"policed/{ALICE}/a", headers=USER)
        self.assertEqual(str(self.row("policed", f"{ALICE}/a").owner), ALICE)
        for headers in (OTHER, ANON):
            for path in (f"policed/{ALICE}/a", f"policed/{ALICE}/b"):
                for upsert in ("true", "false"):
                    self.assertEqual(
                        told(self.send(f"/object/{path}", b"2", headers, x_upsert=upsert)), DENIED
                    )
        self.assertEqual(self.app.stored(), [b"hello"])

    def test_policies_may_let_in_who_has_the_anon_key_alone(self) -> None:
        self.app.tables.policies = everything
        for bucket in ("policed", "shown"):
            self.put(f"{bucket}/k", headers=ANON)
            self.assertEqual(self.get(f"/object/{bucket}/k", ANON).body, b"hello")
            listed = self.app.value("POST", f"/object/list/{bucket}", {"prefix": ""}, ANON)
            self.assertEqual([one["name"] for one in listed], ["k"])
            self.assertEqual(self.app.ask("DELETE", f"/object/{bucket}/k", headers=ANON).status, 200)

    def test_rules_about_owners_hold_for_upsert_too(self) -> None:
        for rules in (
            {"owner_only_writes": True},
            {"owner_only_writes": True, "owner_only_reads": True},
            {"owner_only_reads": True},
            {"owner_only_writes": True, "policies": True},
            {"owner_only_reads": True, "policies": True},
        ):
            self.app.tables.policies = everything
            self.app.rules("shut", **rules)
            self.put("shut/k", b"mine", USER)
            for method in ("POST", "PUT"):
                refused = self.send("/object/shut/k", b"theirs", OTHER, method, x_upsert="true")
                self.assertEqual(told(refused), DENIED, rules)
                refused = self.send("/object/shut/k", b"theirs", ANON, method, x_upsert="true")
                self.assertEqual(told(refused), DENIED, rules)
            source = {"bucketId": "shut", "sourceKey": "other", "destinationKey": "k"}
            self.put("shut/other", b"theirs", OTHER)
            copied = self.app.ask("POST", "/object/copy", source, {**OTHER, "x-upsert": "true"})
            self.assertEqual(told(copied), DENIED, rules)
            # What the service key has made belongs to nobody, and so not to who has no token.
            self.put("shut/nobodys", b"1")
            refused = self.send("/object/shut/nobodys", b"2", ANON, x_upsert="true")
            self.assertEqual(told(refused), DENIED, rules)
            self.assertEqual(self.get("/object/shut/k", USER).body, b"mine")
            self.app.value("DELETE", "/object/shut", {"prefixes": ["k", "other", "nobodys"]}, SERVICE)

    def test_other_buckets_keep_their_own_rules(self) -> None:
        for path in ("open/k", "shut/k"):
            self.assertEqual(told(self.send(f"/object/{path}", headers=ANON)), DENIED)
            self.put(path, headers=USER)
        self.assertEqual(self.get("/object/open/k", ANON).status, 200)
        self.assertEqual(told(self.get("/object/shut/k", ANON)), DENIED)
        self.assertEqual(told(self.get("/object/public/open/k", {})), MISSING)


class Downloads(Case):
    def test_the_bytes_and_what_browsers_need(self) -> None:
        self.put(f"policed/{ALICE}/a.txt", b"0123456789", USER, cache_control="max-age=60")
        for path in ("/object", "/object/authenticated"):
            response = self.get(f"{path}/policed/{ALICE}/a.txt", USER)
            self.assertEqual((response.status, response.body), (200, b"0123456789"))
            self.assertEqual(response.header("content-type"), "text/plain;charset=UTF-8")
            self.assertEqual(response.header("cache-control"), "private, max-age=60")
            self.assertIn("apikey", response.header("vary") or "")
            self.assertIn("attachment", response.header("content-disposition") or "")
            self.assertIn("sandbox", response.header("content-security-policy") or "")
            etag = response.header("etag") or ""
            part = self.get(f"{path}/policed/{ALICE}/a.txt", {**USER, "Range": "bytes=2-4"})
            self.assertEqual((part.status, part.body), (206, b"234"))
            same = self.get(f"{path}/policed/{ALICE}/a.txt", {**USER, "If-None-Match": etag})
            self.assertEqual(same.status, 304)
            beyond = self.get(f"{path}/policed/{ALICE}/a.txt", {**USER, "Range": "bytes=99-"})
            self.assertEqual(told(beyond), (416, "416", "InvalidRange"))
            self.assertEqual(beyond.header("content-range"), "bytes */10")
            head = self.get(f"{path}/policed/{ALICE}/a.txt", USER, "HEAD")
            self.assertEqual((head.status, head.header("content-length"), head.body), (200, "10", b""))

    def test_a_name_to_save_it_under(self) -> None:
        self.put("policed/a.png", Content_Type="image/png")
        for query, shown in (
            ("", "inline; filename=a.png; filename*=UTF-8''a.png"),
            ("?download=", "attachment; filename=a.png; filename*=UTF-8''a.png"),
            ("?download=b.png", "attachment; filename=b.png; filename*=UTF-8''b.png"),
            ("?download=b%20c.png", "attachment; filename=\"b c.png\"; filename*=UTF-8''b%20c.png"),
        ):
            response = self.get(f"/object/policed/a.png{query}")
            self.assertEqual(response.header("content-disposition"), shown)

    def test_sizes_of_pictures_are_not_asked_for_here(self) -> None:
        self.put("policed/a.txt")
        self.assertEqual(self.get("/object/policed/a.txt?width=5&quality=no").body, b"hello")

    def test_what_is_not_there_or_not_theirs(self) -> None:
        self.put(f"policed/{ALICE}/a", headers=USER)
        for path in (f"policed/{ALICE}/b", f"policed/{BOB}/a"):
            self.assertEqual(told(self.get(f"/object/{path}", USER)), MISSING)
        for headers in (OTHER, ANON):
            self.assertEqual(told(self.get(f"/object/policed/{ALICE}/a", headers)), MISSING)
            self.assertEqual(told(self.get(f"/object/info/policed/{ALICE}/a", headers)), MISSING)
            self.assertEqual(self.get(f"/object/policed/{ALICE}/a", headers, "HEAD").status, 400)
        for path in ("/object/policed/a", "/object/info/policed/a", "/object/authenticated/policed/a"):
            self.assertEqual(told(self.get(path, {})), (400, "400", "AccessDenied"))

    def test_public_ones_look_at_no_key_and_no_token(self) -> None:
        self.put("shown/a.png", b"png", Content_Type="image/png")
        for headers in (
            {},
            {"apikey": "wrong"},
            {"Authorization": "Bearer wrong"},
            {"apikey": ANON_KEY, "Authorization": "Basic x"},
            {"apikey": "one", "X-Service-Key": "two"},
        ):
            for query in ("", "?apikey=wrong", "?apikey=1&apikey=2"):
                response = self.get(f"/object/public/shown/a.png{query}", headers)
                self.assertEqual((response.status, response.body), (200, b"png"))
                self.assertEqual(response.header("cache-control"), "public, no-cache")
                self.assertEqual(response.header("cross-origin-resource-policy"), "cross-origin")
                self.assertEqual(self.get(f"/object/info/public/shown/a.png{query}", headers).status, 200)
        head = self.get("/object/public/shown/a.png", {}, "HEAD")
        self.assertEqual((head.status, head.header("content-length")), (200, "3"))

    def test_in_a_public_bucket_policies_are_not_asked_for_one_object(self) -> None:
        self.put("shown/a.png", b"png", Content_Type="image/png")
        for headers in (ANON, OTHER):
            for path in (
                "/object/shown/a.png",
                "/object/authenticated/shown/a.png",
                "/object/info/shown/a.png",
            ):
                self.assertEqual(self.get(path, headers).status, 200, path)
            self.assertEqual(self.get("/object/shown/a.png", headers, "HEAD").status, 200)

    def test_public_are_buckets_made_so_here(self) -> None:
        for bucket in ("policed", "shown"):
            self.put(f"{bucket}/k")
        for path in ("policed/k", "none/k", "shown/none", "open/k"):
            self.assertEqual(told(self.get(f"/object/public/{path}", {})), MISSING)
            self.assertEqual(told(self.get(f"/object/info/public/{path}", {})), MISSING)
        self.assertEqual(told(self.get("/object/public/shown/../policed/k", {})), BAD_KEY)
        self.assertEqual(told(self.get("/object/public/shown%2F..%2Fpoliced/k", {})), MISSING)
        self.app.value("PUT", "/bucket/shown", {"public": False}, SERVICE)
        self.app.clock.advance(1)
        self.assertEqual(told(self.get("/object/public/shown/k", {})), MISSING)

    def test_a_bucket_of_an_operator_shows_in_public_what_its_policies_do(self) -> None:
        self.app.tables.buckets["album"] = (BucketRules("public", anonymous_reads=True, policies=True), START)
        self.app.tables.policies = lambda command, row, who: row.key == "seen"
        for key in ("seen", "hidden"):
            self.put(f"album/{key}")
        self.assertEqual(self.get("/object/public/album/seen", {}).status, 200)
        self.assertEqual(told(self.get("/object/public/album/hidden", {})), MISSING)
        # A rule that an operator takes away counts at once, whatever the bucket was made for.
        self.put("shown/k")
        self.app.tables.buckets["shown"] = (BucketRules("public", policies=True), START)
        self.app.clock.advance(1)
        self.assertEqual(told(self.get("/object/public/shown/k", {})), MISSING)

    def test_what_there_is_to_know(self) -> None:
        self.put("policed/f/a.txt", x_metadata=base64.b64encode(b'{"a": 1}').decode())
        row = self.row("policed", "f/a.txt")
        expected = {
            "id": str(row.id),
            "name": "f/a.txt",
            "version": str(row.version),
            "bucket_id": "policed",
            "size": 5,
            "content_type": "text/plain;charset=UTF-8",
            "cache_control": "no-cache",
            "etag": f'"{row.etag}"',
            "metadata": {"a": 1},
            "last_modified": AT,
            "created_at": AT,
        }
        for path in ("/object/info", "/object/info/authenticated"):
            self.assertEqual(self.app.value("GET", f"{path}/policed/f/a.txt", headers=SERVICE), expected)
            head = self.get(f"{path}/policed/f/a.txt", SERVICE, "HEAD")
            self.assertEqual((head.status, head.header("etag")), (200, f'"{row.etag}"'))
        self.put("policed/plain")
        self.assertEqual(self.app.value("GET", "/object/info/policed/plain", headers=SERVICE)["metadata"], {})


class Changes(Case):
    def ask(self, what: str, headers: dict[str, str] = SERVICE, **body: Any) -> Response:
        return self.app.ask("POST", f"/object/{what}", body, headers)

    def test_a_move_needs_a_free_key(self) -> None:
        made = self.put("policed/a")
        self.put("policed/b", b"other")
        taken = self.ask("move", bucketId="policed", sourceKey="a", destinationKey="b")
        self.assertEqual(told(taken), EXISTS)
        moved = self.ask("move", bucketId="policed", sourceKey="a", destinationKey="f/c")
        self.assertEqual(
            (moved.status, json.loads(moved.body)),
            (200, {"message": "Successfully moved", "Id": made["Id"], "Key": "policed/f/c"}),
        )
        across = self.ask(
            "move", bucketId="policed", sourceKey="f/c", destinationKey="c", destinationBucket="shown"
        )
        self.assertEqual(json.loads(across.body)["Key"], "shown/c")
        self.assertEqual(json.loads(across.body)["Id"], made["Id"])
        self.assertEqual(self.get("/object/public/shown/c", {}).body, b"hello")

    def test_a_copy(self) -> None:
        self.put("policed/a")
        copied = self.ask(
            "copy", bucketId="policed", sourceKey="a", destinationKey="b", destinationBucket="shown"
        )
        said = json.loads(copied.body)
        self.assertEqual((said["Key"], said["name"], said["bucket_id"]), ("shown/b", "b", "shown"))
        self.assertEqual(said["Id"], said["id"])
        again: Any = {
            "bucketId": "policed",
            "sourceKey": "a",
            "destinationKey": "b",
            "destinationBucket": "shown",
        }
        self.assertEqual(told(self.ask("copy", **again)), EXISTS)
        self.assertEqual(self.ask("copy", {**SERVICE, "x-upsert": "true"}, **again).status, 200)

    def test_a_copy_may_have_other_metadata_and_be_the_object_itself(self) -> None:
        encoded = base64.b64encode(b'{"a": 1}').decode()
        self.put("policed/a", cache_control="max-age=5", x_metadata=encoded)

        def copied(headers: dict[str, str], **body: Any) -> Any:
            sent = {"bucketId": "policed", "sourceKey": "a", "destinationKey": "a", **body}
            response = self.ask("copy", {**SERVICE, "x-upsert": "true", **headers}, **sent)
            self.assertEqual(response.status, 200, response.body)
            row = self.row("policed", "a")
            return row.max_age_seconds, row.content_type, row.metadata

        text = "text/plain;charset=UTF-8"
        self.assertEqual(copied({}), (5, text, '{"a":1}'))
        changed: Any = {"cacheControl": "max-age=9", "mimetype": "image/png"}
        self.assertEqual(copied({}, metadata=changed), (9, "image/png", '{"a":1}'))
        other = base64.b64encode(b'{"b": 2}').decode()
        self.assertEqual(copied({"x-metadata": other}), (9, "image/png", '{"b":2}'))
        self.assertEqual(copied({}, copyMetadata=False), (9, "image/png", None))
        for wrong in ({"mimetype": "png"}, {"cacheControl": 5}, "none", {"cacheControl": "max-age=x"}):
            body: Any = {"bucketId": "policed", "sourceKey": "a", "destinationKey": "b", "metadata": wrong}
            self.assertEqual(told(self.ask("copy", **body)), (400, "400", "InvalidRequest"), wrong)
        self.app.ask("PUT", "/bucket/shown", {"allowed_mime_types": ["image/*"]}, SERVICE)
        self.app.clock.advance(1)
        into: Any = {
            "bucketId": "policed",
            "sourceKey": "a",
            "destinationKey": "b",
            "destinationBucket": "shown",
        }
        refused = self.ask("copy", **into, metadata={"mimetype": "text/csv"})
        self.assertEqual(told(refused), (400, "415", "InvalidMimeType"))
        self.assertEqual(self.app.stored(), [b"hello"])

    def test_refusals(self) -> None:
        self.put(f"policed/{ALICE}/a", headers=USER)
        mine: dict[str, Any] = {"bucketId": "policed", "sourceKey": f"{ALICE}/a"}
        for what in ("move", "copy"):
            for headers, body, refusal in (
                (
                    USER,
                    {**mine, "destinationKey": f"{ALICE}/a"},
                    EXISTS if what == "copy" else (400, "400", "InvalidRequest"),
                ),
                (USER, {**mine, "destinationKey": "../x"}, BAD_KEY),
                (USER, {**mine, "destinationKey": f"{BOB}/a"}, DENIED),
                (
                    USER,
                    {**mine, "destinationKey": "x", "destinationBucket": "none"},
                    (400, "404", "NoSuchBucket"),
                ),
                (OTHER, {**mine, "destinationKey": f"{BOB}/a"}, MISSING),
                (ANON, {**mine, "destinationKey": "a"}, MISSING),
                (ANON, {**mine, "destinationKey": "a", "destinationBucket": "shut"}, DENIED),
                (USER, {"bucketId": "policed"}, (400, "400", "InvalidRequest")),
            ):
                self.assertEqual(told(self.ask(what, headers, **body)), refusal, (what, body))
        self.assertEqual(self.ask("copy", USER, **mine, destinationKey=f"{ALICE}/b").status, 200)
        self.assertEqual(self.ask("move", USER, **mine, destinationKey=f"{ALICE}/c").status, 200)

    def test_several_are_removed_and_shown(self) -> None:
        for key in ("a", "f/b", "c"):
            self.put(f"policed/{key}")
        wanted = {"prefixes": ["a", "f/b", "none", "f/", "a", "../x"]}
        removed = self.app.value("DELETE", "/object/policed", wanted, SERVICE)
        self.assertEqual([one["name"] for one in removed], ["a", "f/b"])
        self.assertEqual(
            {*removed[0]},
            {
                "bucket_id", "owner", "owner_id", "version", "name", "id", "updated_at", "created_at",
                "last_accessed_at", "metadata", "user_metadata",
            },
        )  # fmt: skip
        self.assertEqual([key for _, key in self.app.tables.objects], ["c"])
        self.assertEqual(self.app.value("DELETE", "/object/policed", {"prefixes": ["f/"]}, SERVICE), [])
        bodies: list[Any] = [{"prefixes": []}, {}, {"prefixes": "c"}]
        for body in bodies:
            refused = self.app.ask("DELETE", "/object/policed", body, SERVICE)
            self.assertEqual(told(refused), (400, "400", "InvalidRequest"))

    def test_what_others_own_is_not_removed(self) -> None:
        self.put(f"policed/{ALICE}/a", headers=USER)
        self.assertEqual(self.app.value("DELETE", "/object/policed", {"prefixes": [f"{ALICE}/a"]}, OTHER), [])
        self.assertEqual(told(self.app.ask("DELETE", f"/object/policed/{ALICE}/a", headers=OTHER)), MISSING)
        gone = self.app.value("DELETE", "/object/policed", {"prefixes": [f"{ALICE}/a"]}, USER)
        self.assertEqual([one["owner_id"] for one in gone], [ALICE])

    def test_one_is_deleted(self) -> None:
        self.put("policed/a")
        deleted = self.app.value("DELETE", "/object/policed/a", headers=SERVICE)
        self.assertEqual(deleted, {"message": "Successfully deleted"})
        self.assertEqual(told(self.app.ask("DELETE", "/object/policed/a", headers=SERVICE)), MISSING)
        self.assertEqual(self.app.stored(), [])


class Secrets(Case):
    def test_keys_are_not_in_the_log(self) -> None:
        log = logged_until_the_end(self)
        self.send("/object/policed/k", headers={"Authorization": f"Bearer {SERVICE_KEY}"})
        self.get(f"/object/policed/k?apikey={SERVICE_KEY}", {})
        self.get("/object/public/shown/k?apikey=stray-key", {"Authorization": "Bearer stray-token"})
        self.assertIn("/storage/v1/object/policed/k", str(log))
        for secret in (SERVICE_KEY, "stray"):
            self.assertNotIn(secret, str(log))
