"""Buckets in which policies decide: what callers see of that. ``tests/contracts`` and ``tests/live`` have policies in
SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.storage.values import Identity as Caller
from project_service.storage.values import ObjectRow
from tests.fakes.common import Response
from tests.http.storage.app import (
    ALICE,
    ANON,
    BOB,
    FORM,
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

OPEN, SHUT = "/storage/buckets/open", "/storage/buckets/shut"
NOTHING: Mapping[str, str] = {}
NOT_ALLOWED, NOT_FOUND = (403, "not_allowed"), (404, "object_not_found")


class Policies(TestCase):
    """In both buckets everybody sees what is in the folder ``all``, and users what is in that of their ids. There
    they may also put text, and delete what is not named ``kept``."""

    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.tables.policies = self.allows
        self.asked: list[str] = []
        self.all_is_hidden = False
        for bucket in ("open", "shut"):
            self.app.rules(bucket, policies=True)
            for key in ("all/a", f"{ALICE}/a", f"{BOB}/a", "top"):
                self.assertEqual(self.put(key, SERVICE, bucket).status, 201)

    def allows(self, command: str, row: ObjectRow, caller: Caller) -> bool:
        self.asked.append(command)
        folder, _, name = row.key.partition("/")
        own = folder == json.loads(caller.claims).get("sub")
        if name.startswith("broken"):
            raise ZeroDivisionError
        if command == "select":
            return own or (folder == "all" and not self.all_is_hidden)
        return own and (name != "kept" if command == "delete" else row.content_type.startswith("text/"))

    def put(
        self,
        key: str,
        headers: dict[str, str] = USER,
        bucket: str = "open",
        more: Mapping[str, str] = NOTHING,
    ) -> Response:
        sent = {**headers, "Content-Type": "text/plain", **more}
        return self.app.request("PUT", f"/storage/buckets/{bucket}/objects/{key}", sent, b"hello")

    def get(self, key: str, headers: dict[str, str], bucket: str = "open") -> Response:
        return self.app.request("GET", f"/storage/buckets/{bucket}/objects/{key}", headers)

    def listed(self, headers: dict[str, str], bucket: str = "open") -> Any:
        page = json.loads(self.app.request("GET", f"/storage/buckets/{bucket}/objects", headers).body)
        return [one["key"] for one in page["objects"]] + page["folders"]

    def test_the_matrix_stays_the_outermost_rule(self) -> None:
        self.app.tables.policies = lambda command, row, caller: True
        for path in (f"{SHUT}/objects", f"{SHUT}/objects/top"):
            self.assertEqual(self.app.request("GET", path, ANON).status, 401)
        self.assertEqual(self.app.post(f"{SHUT}/presign", {"key": "top"}, ANON).status, 401)
        for bucket in ("open", "shut"):
            self.assertEqual(self.put("new", ANON, bucket).status, 401)
            path = f"/storage/buckets/{bucket}"
            self.assertEqual(self.app.request("DELETE", f"{path}/objects/top", ANON).status, 401)
            for how in ("copy", "move"):
                body = {"from": "top", "to": "new"}
                self.assertEqual(self.app.post(f"{path}/{how}", body, ANON).status, 401)
        self.assertEqual(self.get("top", ANON).status, 200)

    def test_without_a_policy_nobody_but_the_service_key_may_anything(self) -> None:
        self.app.tables.policies = StorageApp().tables.policies
        for headers in (ANON, USER):
            self.assertEqual(self.listed(headers), [])
            self.assertEqual(refused(self.get("all/a", headers)), NOT_FOUND)
        self.assertEqual(refused(self.put("all/b")), NOT_ALLOWED)
        self.assertEqual(len(self.listed(SERVICE)), 4)
        self.assertEqual(self.get("top", {**SERVICE, "Authorization": USER["Authorization"]}).status, 200)

    def test_listing_and_downloads(self) -> None:
        for bucket, headers, shown in (
            ("open", ANON, ["all/"]),
            ("open", USER, [f"{ALICE}/", "all/"]),
            ("shut", OTHER, [f"{BOB}/", "all/"]),
            ("open", SERVICE, ["top", f"{ALICE}/", f"{BOB}/", "all/"]),
        ):
            self.assertEqual(self.listed(headers, bucket), shown)
            for name in ("top", f"{ALICE}/a", f"{BOB}/a", "all/a"):
                seen = any(name.startswith(entry) for entry in shown)
                self.assertEqual(self.get(name, headers, bucket).status, 200 if seen else 404, name)
                if not seen:
                    self.assertEqual(
                        self.get(name, headers, bucket).body, self.get("none", headers, bucket).body
                    )

    def test_what_depends_on_the_caller_is_not_for_shared_caches(self) -> None:
        """In a public bucket what the anon key opens is for everybody."""
        for headers, caching in (
            (ANON, "public, no-cache"),
            (USER, "private, no-store"),
            (SERVICE, "private, no-store"),
        ):
            self.assertEqual(self.get("all/a", headers).header("cache-control"), caching)
        self.assertEqual(self.get("all/a", USER, "shut").header("cache-control"), "private, no-store")

    def test_a_public_page_shows_what_anon_may_see_whoever_asks(self) -> None:
        self.app.rules("open", policies=True, anonymous_reads=True)
        for headers in ({}, USER, SERVICE):
            for key, status in (("all/a", 200), (f"{ALICE}/a", 404), ("top", 404)):
                page = self.app.request("GET", f"/storage/public/open/{key}", headers)
                self.assertEqual(page.status, status, key)

    def test_bytes_in_memory_are_asked_for_too(self) -> None:
        self.assertEqual([self.get(f"{ALICE}/a", USER).status for _ in range(2)], [200, 200])
        self.assertEqual(self.get(f"{ALICE}/a", OTHER).status, 404)

    def test_uploads(self) -> None:
        self.assertEqual(self.put(f"{ALICE}/new").status, 201)
        self.assertEqual(self.put(f"{ALICE}/new").status, 200)
        self.assertEqual(self.app.upload(file_form(key=f"{ALICE}/form.txt")).status, 201)
        before = len(self.app.tables.objects)
        for response in (
            self.put("all/a"),  # which is seen
            self.put(f"{BOB}/a"),  # which is not
            self.put(f"{BOB}/new"),
            self.put(f"{BOB}/a", more={"If-None-Match": "*"}),
            self.put(f"{BOB}/a", more={"If-Match": '"x"'}),
            self.put(f"{BOB}/a", more={"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}),
            self.put(f"{ALICE}/page", more={"Content-Type": "image/png"}),
            self.app.upload(file_form(key=f"{BOB}/form.txt")),
            self.app.upload(form(part("file", b"x", "n.txt"), part("key", f"{BOB}/late.txt".encode()))),
            self.app.upload(file_form(filename="top2.txt")),
        ):
            self.assertEqual(refused(response), NOT_ALLOWED)
        self.assertEqual(len(self.app.tables.objects), before)
        self.assertEqual(len(self.app.stored()), before)

    def test_an_upload_is_refused_before_its_body_is_read(self) -> None:
        lines = {"Content-Length": "1000", "Expect": "100-continue"}
        for key, answer in ((f"{BOB}/new", b"403"), (f"{ALICE}/new", b"100")):
            client = self.app.connect()
            typed = {**lines, "Content-Type": "text/plain"}
            client.send(head(typed, "PUT", f"{OPEN}/objects/{key}"))
            self.assertEqual(client.received()[9:12], answer)
            client.hang_up()
        begun = part("file", b"", "n.txt", "text/plain")[: -len(b"\r\n")]
        for key, answer in ((f"{BOB}/new", b"403"), (f"{ALICE}/new", b"")):
            client = self.app.connect()
            client.send(head({**FORM, "Content-Length": "1000"}) + part("key", key.encode()) + begun)
            self.assertEqual(client.received()[9:12], answer)
            client.hang_up()

    def test_the_type_of_a_form_s_file_is_judged_and_not_one_guessed_from_its_key(self) -> None:
        body = form(part("key", f"{ALICE}/x.png".encode()), part("file", b"x", "n", "text/plain"))
        self.assertEqual(self.app.upload(body).status, 201)

    def test_a_rule_set_during_an_upload_counts_at_its_end(self) -> None:
        self.app.rules("open")
        client = self.app.connect()
        client.send(
            head({"Content-Length": "5", "Content-Type": "text/plain"}, "PUT", f"{OPEN}/objects/top") + b"he"
        )
        self.app.rules("open", policies=True)
        client.send(b"llo")
        self.assertEqual(client.received()[9:12], b"403")

    def test_deleting(self) -> None:
        self.put(f"{ALICE}/kept")
        path = f"{OPEN}/objects"
        for name, given in (
            (f"{ALICE}/kept", NOT_ALLOWED),
            ("all/a", NOT_ALLOWED),
            (f"{BOB}/a", NOT_FOUND),
            ("none", NOT_FOUND),
        ):
            self.assertEqual(refused(self.app.request("DELETE", f"{path}/{name}", USER)), given)
            dated = {**USER, "If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}
            seen = given == NOT_ALLOWED
            response = self.app.request("DELETE", f"{path}/{name}", dated)
            self.assertEqual(response.status, 412 if seen else 404)
        several = self.app.post(f"{OPEN}/delete", {"keys": [f"{ALICE}/a", "all/a"]})
        self.assertEqual(refused(several), NOT_ALLOWED)
        several = self.app.post(f"{OPEN}/delete", {"keys": [f"{BOB}/a", f"{ALICE}/a", "none"]})
        self.assertEqual(
            json.loads(several.body), {"deleted": [f"{ALICE}/a"], "missing": [f"{BOB}/a", "none"]}
        )
        self.assertEqual(self.app.request("DELETE", f"{path}/all/a", SERVICE).status, 204)

    def test_copy_and_move(self) -> None:
        self.put(f"{ALICE}/b")
        self.put(f"{ALICE}/kept")
        for how in ("copy", "move"):
            for source, target, given in (
                (f"{BOB}/a", f"{ALICE}/n", NOT_FOUND),
                ("none", f"{ALICE}/n", NOT_FOUND),
                (f"{ALICE}/b", f"{BOB}/a", NOT_ALLOWED),
                (f"{ALICE}/b", f"{BOB}/n", NOT_ALLOWED),
                (f"{ALICE}/b", "all/a", NOT_ALLOWED),
            ):
                response = self.app.post(f"{OPEN}/{how}", {"from": source, "to": target})
                self.assertEqual(refused(response), given, (how, source, target))
        self.assertEqual(self.app.post(f"{OPEN}/copy", {"from": "all/a", "to": f"{ALICE}/n"}).status, 201)
        moved = self.app.post(f"{OPEN}/move", {"from": "all/a", "to": f"{ALICE}/m"})
        self.assertEqual(refused(moved), NOT_ALLOWED)
        onto = self.app.post(f"{OPEN}/move", {"from": f"{ALICE}/n", "to": f"{ALICE}/kept"})
        self.assertEqual(refused(onto), NOT_ALLOWED)
        self.assertEqual(
            self.app.post(f"{OPEN}/move", {"from": f"{ALICE}/n", "to": f"{ALICE}/b"}).status, 200
        )

    def test_a_link_opens_what_its_maker_may_see_when_it_is_used(self) -> None:
        links = []
        for headers in (ANON, USER, SERVICE):
            made = self.app.post(f"{OPEN}/presign", {"key": "all/a", "uses": 0}, headers)
            links.append("/" + json.loads(made.body)["url"].split("/", 3)[3])
        for hidden, statuses in ((False, [200] * 3), (True, [404, 404, 200]), (False, [200] * 3)):
            self.all_is_hidden = hidden
            self.assertEqual([self.app.request("GET", link, {}).status for link in links], statuses)
        for key in (f"{BOB}/a", "none"):
            self.assertEqual(refused(self.app.post(f"{OPEN}/presign", {"key": key}, USER)), NOT_FOUND)

    def test_a_link_for_an_upload_is_judged_when_it_is_used(self) -> None:
        def signed(key: str, headers: dict[str, str] = USER) -> Response:
            return self.app.post(f"{OPEN}/presign", {"method": "PUT", "key": key}, headers)

        def use(made: Response) -> Response:
            self.assertEqual(made.status, 200, made.body)
            path = "/" + json.loads(made.body)["url"].split("/", 3)[3]
            return self.app.request("PUT", path, {"Content-Type": "text/plain"}, b"x")

        self.assertEqual(use(signed(f"{ALICE}/new")).status, 201)
        self.assertEqual(refused(signed(f"{ALICE}/new")), (412, "object_exists"))
        # One that is not seen looks like one that is not there.
        for key in (f"{BOB}/a", f"{BOB}/none", "top"):
            self.assertEqual(refused(use(signed(key))), NOT_ALLOWED)
        self.assertEqual(use(signed(f"{BOB}/new", SERVICE)).status, 201)
        self.app.rules("open")
        link = signed("free")
        self.app.rules("open", policies=True)
        self.assertEqual(refused(use(link)), NOT_ALLOWED)
        for key in (f"{BOB}/a", "none"):
            missing = self.app.post(f"{OPEN}/presign", {"keys": [key, "all/a"]})
            self.assertEqual(json.loads(missing.body)["missing"], [key])

    def test_a_policy_that_fails_looks_like_a_refusal(self) -> None:
        self.put(f"{ALICE}/broken", SERVICE)
        self.assertEqual(refused(self.get(f"{ALICE}/broken", USER)), NOT_FOUND)
        self.assertEqual(refused(self.app.request("GET", f"{OPEN}/objects", USER)), NOT_ALLOWED)
        self.assertEqual(refused(self.put(f"{ALICE}/broken2")), NOT_ALLOWED)
        self.assertEqual(
            refused(self.app.request("DELETE", f"{OPEN}/objects/{ALICE}/broken", USER)), NOT_FOUND
        )

    def test_buckets_without_the_rule_ask_no_policy(self) -> None:
        self.app.rules("open")
        self.asked.clear()
        self.assertEqual(self.put("anything").status, 201)
        self.assertEqual(self.get("anything", ANON).status, 200)
        self.assertEqual(len(self.listed(ANON)), 5)
        self.assertEqual(self.asked, [])

    def test_rules_about_owners_count_beside_policies(self) -> None:
        self.app.rules("shut", policies=True, owner_only_reads=True)
        self.assertEqual(self.put(f"{ALICE}/mine", USER, "shut").status, 201)
        self.assertEqual(self.listed(USER, "shut"), [f"{ALICE}/"])
        self.assertEqual(refused(self.get(f"{ALICE}/a", USER, "shut")), NOT_FOUND)
        self.assertEqual(refused(self.put(f"{ALICE}/a", USER, "shut")), (403, "not_owner"))
        self.assertEqual(self.get(f"{ALICE}/mine", USER, "shut").status, 200)
