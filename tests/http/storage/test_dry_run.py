"""A dry run gives the answer that the upload itself would get, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import TestCase

from tests.fakes.common import Response
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
    refused,
)

KIB = 1024


def outcome(response: Response) -> tuple[int, Any]:
    """The status, and the whole error; of a success only that it is one."""
    if response.status < 300:
        return 200, None
    return response.status, json.loads(response.body)["error"]


class DryRuns(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp(max_object_bytes=8 * KIB)

    def planned(
        self, plan: Any, headers: dict[str, str] = USER, bucket: str = "open", query: str = "?dry_run=true"
    ) -> Response:
        return self.app.post(f"/storage/buckets/{bucket}/objects{query}", plan, headers)

    def both(
        self, key: str, size: int, content_type: str | None, headers: dict[str, str], bucket: str
    ) -> tuple[tuple[int, Any], tuple[int, Any]]:
        """The outcomes of a dry run and of the same upload."""
        plan = {"key": key, "size": size, **({"content_type": content_type} if content_type else {})}
        dry = self.planned(plan, headers, bucket)
        before = dict(self.app.tables.objects)
        sent = {**headers, **({"Content-Type": content_type} if content_type else {})}
        path = f"/storage/buckets/{bucket}/objects/{key}"
        real = self.app.request("PUT", path, sent, b"x" * size)
        if real.status < 300:
            self.app.tables.objects.clear()
            self.app.tables.objects.update(before)
        return outcome(dry), outcome(real)

    def test_it_answers_as_the_upload_would(self) -> None:
        self.app.put("of-ann.txt")
        self.app.put("of-ann.txt", bucket="shut")
        self.app.rules("open", max_object_bytes=4 * KIB, allowed_content_types=("text/*",))
        self.app.rules("shut", max_bucket_bytes=5 + KIB, owner_only_writes=True)
        expected = []
        for key, size, content_type, headers, bucket, status in (
            ("new.txt", 0, None, USER, "open", 200),
            ("new.txt", 4 * KIB, "text/plain", USER, "open", 200),
            ("new.txt", 4 * KIB + 1, "text/plain", USER, "open", 413),
            ("new.txt", 8 * KIB + 1, None, USER, "shut", 413),
            ("new.txt", KIB, None, USER, "shut", 200),
            ("new.txt", KIB + 1, None, USER, "shut", 413),
            ("of-ann.txt", KIB + 5, None, USER, "shut", 200),
            ("of-ann.txt", KIB + 6, None, USER, "shut", 413),
            ("of-ann.txt", 1, None, OTHER, "shut", 403),
            ("of-ann.txt", 1, None, SERVICE, "shut", 200),
            ("new.txt", 1, "image/png", USER, "open", 415),
            ("new.png", 1, None, USER, "open", 415),
            ("new.txt", 1, "no type", USER, "open", 422),
            ("of-ann.txt", 1, None, {**USER, "If-None-Match": "*"}, "open", 412),
            ("new.txt", 1, None, {**USER, "If-None-Match": "*"}, "open", 200),
            ("of-ann.txt", 1, None, {**USER, "If-Match": '"other"'}, "open", 412),
            ("new.txt", 1, None, {**USER, "X-Object-Owner": BOB}, "open", 403),
            ("new.txt", 1, None, {**SERVICE, "X-Object-Owner": BOB}, "open", 200),
            ("new.txt", 1, None, {**SERVICE, "X-Object-Owner": "nobody"}, "open", 422),
            ("new.txt", 1, None, {**USER, "Cache-Control": "max-age=x"}, "open", 422),
            ("a/../b", 1, None, USER, "open", 422),
            ("k" * 901, 1, None, USER, "open", 422),
            ("new.txt", 1, None, ANON, "open", 401),
            ("new.txt", 1, None, {**ANON, "Authorization": "Bearer expired"}, "open", 401),
            ("new.txt", 1, None, {}, "open", 401),
            ("new.txt", 1, None, USER, "none", 404),
        ):
            dry, real = self.both(key, size, content_type, headers, bucket)
            self.assertEqual(dry, real, (key, size, content_type, headers, bucket))
            self.assertEqual(dry[0], status, (key, size, content_type, headers, bucket))
            expected.append(status)
        self.assertEqual(set(expected), {200, 401, 403, 404, 412, 413, 415, 422})

    def test_nothing_is_uploaded_or_reserved(self) -> None:
        response = self.planned({"key": "k", "size": 5})
        self.assertEqual((response.status, response.body), (204, b""))
        self.assertEqual(
            (self.app.tables.objects, self.app.uploading, self.app.store.objects), ({}, set(), {})
        )

    def test_it_holds_for_now_only(self) -> None:
        """Nothing is reserved, so that others may take the room."""
        self.app.rules("open", max_bucket_bytes=10)
        self.assertEqual(self.planned({"key": "k", "size": 10}).status, 204)
        self.app.put("other", b"x" * 6)
        # At once, as a page asks that uploads one file after the other.
        self.assertEqual(refused(self.planned({"key": "k", "size": 5})), (413, "payload_too_large"))
        self.assertEqual(self.planned({"key": "k", "size": 4}).status, 204)

    def test_the_rules_are_those_after_the_body_has_come(self) -> None:
        client = self.app.connect()
        plan = json.dumps({"key": "k", "size": 5}).encode()
        lines = {"Host": "x", **USER, "Content-Type": "application/json", "Content-Length": str(len(plan))}
        head = f"POST {OBJECTS}?dry_run=true HTTP/1.1\r\n" + "".join(
            f"{k}: {v}\r\n" for k, v in lines.items()
        )
        client.send(head.encode() + b"\r\n" + plan[:5])
        self.app.rules("open", max_object_bytes=4)
        client.send(plan[5:])
        self.assertEqual(client.received()[9:12], b"413")

    def test_what_a_plan_may_hold(self) -> None:
        for plan, code in (
            ({}, "validation_failed"),
            ({"key": "k"}, "validation_failed"),
            ({"key": "k", "size": -1}, "validation_failed"),
            ({"key": "k", "size": 2**53}, "validation_failed"),
            ({"key": "k", "size": 1, "content_type": 1}, "validation_failed"),
            ({"key": "k", "size": 1, "more": 1}, "validation_failed"),
        ):
            self.assertEqual(refused(self.planned(plan)), (422, code), plan)
        self.assertEqual(refused(self.planned([])), (400, "invalid_json"))
        self.assertEqual(self.planned({"key": "k", "size": 1.0}).status, 204)
        whole = self.planned({"key": "k", "size": 2**53 - 1})
        self.assertEqual(refused(whole), (413, "payload_too_large"))

    def test_only_the_parameter_makes_it_a_dry_run(self) -> None:
        plan = {"key": "k", "size": 1}
        for query in ("", "?dry_run=false"):
            self.assertEqual(refused(self.planned(plan, query=query)), (415, "unsupported_media_type"), query)
            self.assertEqual(
                self.app.request("POST", f"{OBJECTS}{query}", {**USER, **FORM}, file_form()).status, 201
            )
        self.assertEqual(refused(self.planned(plan, query="?dry_run=yes")), (422, "validation_failed"))
        form = self.app.request("POST", f"{OBJECTS}?dry_run=true", {**USER, **FORM}, file_form())
        self.assertEqual(refused(form), (415, "unsupported_media_type"))

    def test_only_the_owner_may_replace_an_object_that_others_do_not_see(self) -> None:
        self.app.put("k", bucket="shut")
        self.app.rules("shut", owner_only_reads=True)
        self.assertEqual(self.planned({"key": "k", "size": 1}, USER, "shut").status, 204)
        self.assertEqual(refused(self.planned({"key": "k", "size": 1}, OTHER, "shut")), (403, "not_owner"))
        named = {**SERVICE, "X-Object-Owner": ALICE}
        self.assertEqual(self.planned({"key": "k", "size": 1}, named, "shut").status, 204)
