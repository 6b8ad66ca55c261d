"""Uploads by form and raw: streamed, limited, conditional; one that fails leaves nothing behind."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import timedelta
from hashlib import md5
from itertools import product
from typing import Any
from urllib.parse import quote

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.storage.values import BucketRules
from tests.fakes.storage import START
from tests.fakes.store import MemoryStore
from tests.http.storage.app import (
    ANON,
    FORM,
    OBJECTS,
    USER,
    StorageApp,
    code,
    file_form,
    form,
    head,
    part,
    refused,
)


class Created(TestCase):
    def test_a_new_object_says_where_it_is(self) -> None:
        app = StorageApp()
        for key in ("a.txt", "a/b c", "100%?#.txt", "ключ/é", "a:b@c+d&e=f;g"):
            for response in (app.upload(file_form(b"there", key=key)), app.put(quote(f"{key}2"), b"there")):
                self.assertEqual(response.status, 201)
                location = response.header("location") or ""
                self.assertTrue(location.startswith(f"{OBJECTS}/"), location)
                self.assertEqual(app.request("GET", location, USER).body, b"there")
        self.assertIsNone(app.put("a.txt", b"replaced").header("location"))

    def test_the_location_is_below_the_path_of_public_url(self) -> None:
        app = StorageApp()
        app.edge.settings = evolve(app.edge.settings, public_url="https://example.test/backend")
        self.assertEqual(app.upload(file_form()).header("location"), f"/backend{OBJECTS}/a.txt")


class Sizes(TestCase):
    def test_a_part_is_sent_as_soon_as_it_is_full(self) -> None:
        app = StorageApp(part_bytes=10)
        payload = bytes(range(256))[:95]
        self.assertEqual(app.put("k", payload).status, 201)
        self.assertEqual(app.stored(), [payload])
        self.assertEqual(app.store.calls.count("put_part"), 10)
        self.assertNotIn("put", app.store.calls)
        client = app.connect()
        client.send(head({"Content-Length": "95"}, "PUT", OBJECTS + "/k"))
        for first in range(0, 95, 7):
            client.send(payload[first : first + 7])
        self.assertEqual((app.stored(), app.store.calls.count("put_part")), ([payload], 20))

    def test_what_fits_into_one_part_is_one_request(self) -> None:
        app = StorageApp(part_bytes=10)
        for length in (0, 1, 10):
            app.put(f"k{length}", b"x" * length)
        self.assertEqual(app.store.calls, ["put"] * 3)

    def test_a_content_length_that_is_too_large_is_refused_before_the_body(self) -> None:
        app = StorageApp(max_object_bytes=100)
        client = app.connect()
        client.send(head({"Content-Length": "101", "Expect": "100-continue"}, "PUT", OBJECTS + "/k"))
        answer = client.received()
        self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer)
        self.assertIn(b"payload_too_large", answer)
        client = app.connect()
        client.send(head({**FORM, "Content-Length": "10000000", "Expect": "100-continue"}))
        self.assertTrue(client.received().startswith(b"HTTP/1.1 413 "))
        self.assertEqual(app.stored(), [])

    def test_the_setting_that_refuses_an_object_is_named(self) -> None:
        app = StorageApp(max_object_bytes=100)
        for rules, named in (
            ({}, "100 bytes that storage.max_object_bytes allows"),
            ({"max_object_bytes": 200}, "100 bytes that storage.max_object_bytes allows"),
            ({"max_object_bytes": 50}, "50 bytes that the bucket's max_object_bytes allows"),
            ({"max_bucket_bytes": 40}, "quota (max_bucket_bytes)"),
            (
                {"max_object_bytes": 30, "max_bucket_bytes": 40},
                "30 bytes that the bucket's max_object_bytes allows",
            ),
        ):
            app.rules("open", **{"max_object_bytes": None, "max_bucket_bytes": None, **rules})
            answer = app.put("k", b"x" * 101)
            self.assertEqual(refused(answer), (413, "payload_too_large"))
            self.assertIn(named, answer.body.decode())

    def test_chunked_bodies_are_limited_too(self) -> None:
        app = StorageApp(max_object_bytes=100, part_bytes=10)
        for bucket_limit, limit, stored in ((None, 100, b"201"), (200, 100, b"200"), (50, 50, b"200")):
            app.rules("open", max_object_bytes=bucket_limit)
            for length, status in ((limit, stored), (limit + 1, b"413")):
                client = app.connect()
                client.send(head({"Transfer-Encoding": "chunked"}, "PUT", OBJECTS + "/k"))
                for _ in range(length):
                    client.send(b"1\r\nx\r\n")
                if length == limit:
                    self.assertEqual(client.received(), b"")
                    client.send(b"0\r\n\r\n")
                # The first byte too many is refused at once, since the end may never come.
                self.assertTrue(client.received().startswith(b"HTTP/1.1 " + status), length)
        self.assertEqual(app.stored(), [b"x" * 50])

    def test_parts_grow_only_after_many_small_ones(self) -> None:
        app = StorageApp(part_bytes=1, max_object_bytes=100_000)
        payload = bytes(range(250)) * 4 + b"more"
        for length, parts in ((3, 3), (1000, 1000), (1003, 1001), (1004, 1002)):
            app.store.calls.clear()
            client = app.connect()
            client.send(head({"Transfer-Encoding": "chunked"}, "PUT", OBJECTS + f"/{length}"))
            client.send(b"%x\r\n" % length + payload[:length] + b"\r\n0\r\n\r\n")
            self.assertTrue(client.received().startswith(b"HTTP/1.1 201 "), length)
            self.assertEqual(app.store.calls.count("put_part"), parts)
            self.assertEqual(app.get(str(length)).body, payload[:length])
        for declared in (
            lambda: app.put("declared", payload[:1003]),
            lambda: app.upload(file_form(payload[:1003], "form")),
        ):
            app.store.calls.clear()
            self.assertEqual(declared().status, 201)
            self.assertEqual(app.store.calls.count("put_part"), 1003)

    def test_at_most_two_parts_are_held_in_memory(self) -> None:
        app = StorageApp(part_bytes=10)
        going: list[Deferred[str]] = []

        async def slow(store: MemoryStore, *args: object) -> str:
            going.append(Deferred())
            return await going[-1]

        self.patch(MemoryStore, "put_part", slow)
        client = app.connect()
        client.send(head({"Content-Length": "95"}, "PUT", OBJECTS + "/k") + b"x" * 95)
        for sent in (2, 3, 4):
            self.assertEqual(len(going), sent)
            going[sent - 2].callback("")
        client.hang_up()

    def test_a_form_without_a_length(self) -> None:
        app = StorageApp()
        body = file_form()
        client = app.connect()
        client.send(head({**FORM, "Transfer-Encoding": "chunked"}))
        client.send(b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
        self.assertTrue(client.received().startswith(b"HTTP/1.1 201 "))
        self.assertEqual(app.stored(), [b"hello"])

    def test_only_the_file_of_a_form_counts_towards_the_limit(self) -> None:
        app = StorageApp(max_object_bytes=100)
        self.assertEqual(app.upload(file_form(b"x" * 100)).status, 201)
        self.assertEqual(refused(app.upload(file_form(b"x" * 101))), (413, "payload_too_large"))
        self.assertEqual(app.stored(), [b"x" * 100])


class Whole(TestCase):
    """Uploads whose headers mean something else than storing the body as it is are refused."""

    def test_content_range(self) -> None:
        app = StorageApp()
        app.put("k", b"whole")
        response = app.put("k", b"x", Content_Range="bytes 0-0/5")
        self.assertEqual(refused(response), (400, "bad_request"))
        self.assertEqual(app.stored(), [b"whole"])

    def test_a_wrong_content_md5(self) -> None:
        app = StorageApp(part_bytes=10)
        for payload in (b"", b"short", b"of several parts " * 3):
            right = b64encode(md5(payload).digest()).decode()
            self.assertEqual(app.put("k", payload, Content_MD5=right).status, 201)
            for wrong, why in (
                (b64encode(md5(b"other").digest()).decode(), b"is not that of the body"),
                *(
                    (none, b"is not the base64 of")
                    for none in (md5(payload).hexdigest(), "", "x", right + "=")
                ),
            ):
                refusal = app.put("k", payload, Content_MD5=wrong)
                self.assertEqual(refused(refusal), (400, "bad_digest"), wrong)
                self.assertIn(why, refusal.body, wrong)
            self.assertEqual(app.stored(), [payload])
            app.request("DELETE", OBJECTS + "/k", USER)
        self.assertEqual(app.store.multiparts, {})
        client = app.connect()
        client.send(
            head({"Content-Length": "1", "Content-MD5": "x", "Expect": "100-continue"}, "PUT", OBJECTS + "/k")
        )
        self.assertTrue(client.received().startswith(b"HTTP/1.1 400 "))

    def test_a_put_that_says_nothing_of_a_body_replaces_nothing(self) -> None:
        app = StorageApp()
        app.put("k", b"kept")
        client = app.connect()
        client.send(head({}, "PUT", f"{OBJECTS}/k"))
        self.assertIn(b'"length_required"', client.received())
        self.assertEqual(app.stored(), [b"kept"])
        # A refusal of the caller comes first.
        client = app.connect()
        client.send(
            f"PUT {OBJECTS}/k HTTP/1.1\r\nHost: x\r\nX-Service-Key: {ANON['X-Service-Key']}\r\n\r\n".encode()
        )
        self.assertIn(b" 401 ", client.received())

    def test_an_empty_object_that_is_meant(self) -> None:
        app = StorageApp()
        for lines, body in (({"Content-Length": "0"}, b""), ({"Transfer-Encoding": "chunked"}, b"0\r\n\r\n")):
            app.put("k", b"gone")
            client = app.connect()
            client.send(head(lines, "PUT", f"{OBJECTS}/k") + body)
            self.assertIn(b" 200 ", client.received())
            self.assertEqual(app.stored(), [b""])

    def test_a_form_sent_by_put(self) -> None:
        app = StorageApp()
        for content_type in (FORM["Content-Type"], "Multipart/Form-Data"):
            response = app.put("k", file_form(), Content_Type=content_type)
            self.assertEqual(refused(response), (415, "unsupported_media_type"))
            self.assertIn(b"a form is sent by POST", response.body)
        self.assertEqual(app.stored(), [])
        self.assertEqual(app.put("k", Content_Type="multipart/mixed; boundary=x").status, 201)

    def test_the_content_type_that_clients_send_by_default_is_ignored(self) -> None:
        app = StorageApp()
        default = "Application/x-www-form-urlencoded; charset=utf-8"
        # The others are what JavaScript and Python make of a variable without a value.
        for sent in (default, "undefined", "null", "None", ""):
            for key, guessed in {"a.png": "image/png", "a": "application/octet-stream"}.items():
                response = app.put(key, Content_Type=sent)
                self.assertEqual(json.loads(response.body)["content_type"], guessed, sent)
        response = app.upload(form(part("file", b"x", "c.png", "undefined")))
        self.assertEqual(json.loads(response.body)["content_type"], "image/png")
        app.rules("open", allowed_content_types=("image/*",))
        self.assertEqual(app.put("b.png", Content_Type=default).status, 201)
        self.assertEqual(app.put("b.txt", Content_Type=default).status, 415)
        body_sent = form(part("file", b"x", "c.png", "application/x-www-form-urlencoded"))
        self.assertEqual(refused(app.upload(body_sent)), (415, "unsupported_media_type"))

    def test_a_content_encoding(self) -> None:
        app = StorageApp()
        self.assertEqual(app.put("k", Content_Encoding="identity").status, 201)
        self.assertEqual(app.put("k", Content_Encoding="").status, 200)
        for response in (
            app.put("k", b"\x1f\x8b", Content_Encoding="gzip"),
            app.upload(file_form(), headers={**USER, "Content-Encoding": "gzip"}),
        ):
            self.assertEqual(refused(response), (415, "unsupported_media_type"))
            self.assertIn(b"without Content-Encoding", response.body)
        self.assertEqual(app.stored(), [b"hello"])


class Expecting(TestCase):
    def test_a_refused_upload_does_not_ask_for_its_body(self) -> None:
        app = StorageApp()
        client = app.connect()
        request = head({**FORM, "Content-Length": "100", "Expect": "100-continue"})
        client.send(request.replace(b"Authorization", b"X-Nothing"))
        self.assertTrue(client.received().startswith(b"HTTP/1.1 401 "))

    def test_an_accepted_upload_does(self) -> None:
        app = StorageApp()
        body = file_form()
        client = app.connect()
        client.send(head({**FORM, "Content-Length": str(len(body)), "Expect": "100-continue"}))
        self.assertEqual(client.received(), b"HTTP/1.1 100 Continue\r\n\r\n")
        client.send(body)
        self.assertTrue(client.received().startswith(b"HTTP/1.1 201 "))


class Rules(TestCase):
    def test_allowed_content_types(self) -> None:
        app = StorageApp()
        app.rules("open", allowed_content_types=("image/*", "text/plain"))
        for content_type, status in {
            "image/webp": 201,
            "TEXT/plain; charset=x": 201,
            "text/html": 415,
        }.items():
            response = app.put(f"k{len(content_type)}", b"x", Content_Type=content_type)
            self.assertEqual(response.status, status, content_type)
        response = app.put("k", b"x", Content_Type="text/HTML; charset=x")
        self.assertEqual(code(response), "unsupported_media_type")
        self.assertEqual(json.loads(response.body)["error"]["details"], {"content_type": "text/html"})
        late = form(part("file", b"x", "n"), part("key", b"page.html"))
        self.assertEqual(refused(app.upload(late)), (415, "unsupported_media_type"))
        self.assertEqual(app.upload(form(part("file", b"x", "n"), part("key", b"p.png"))).status, 201)

    def test_a_type_by_another_of_its_names_is_allowed_and_kept_as_it_was_sent(self) -> None:
        app = StorageApp()
        app.rules("open", allowed_content_types=("image/jpeg", "image/x-png"))
        for content_type in ("image/jpg", "image/pjpeg", "image/png", "IMAGE/X-PNG; a=b"):
            self.assertEqual(app.put("k", b"x", Content_Type=content_type).status, 201, content_type)
            self.assertEqual(app.get("k").header("content-type"), content_type)
            copied = app.post("/storage/buckets/open/copy", {"from": "k", "to": "copy"})
            self.assertEqual(copied.status, 201, content_type)
            app.request("DELETE", "/storage/buckets/open/objects/k", USER)
        self.assertEqual(app.put("k", b"x", Content_Type="image/apng").status, 415)

    def test_rules_hold_at_the_end_of_an_upload_too(self) -> None:
        """A client may take as long as it likes: an upload begun under other rules becomes an object only under
        the present ones."""
        cases: tuple[tuple[dict[str, Any] | None, bytes], ...] = (
            ({"max_object_bytes": 3}, b"payload_too_large"),
            ({"allowed_content_types": ("image/*",)}, b"unsupported_media_type"),
            ({"owner_only_writes": True}, b'"key":"k"'),
            (None, b"bucket_not_found"),
        )
        sent = form(part("key", b"k"), part("file", b"abcd", "f", "text/html"))
        requests = (
            (b"abcd", 2, {"Content-Type": "text/html"}, "PUT", OBJECTS + "/k"),
            (sent, sent.index(b"cd"), FORM, "POST", OBJECTS),
        )
        for (rules, refusal), (body, half, lines, *request) in product(cases, requests):
            app = StorageApp()
            client = app.connect()
            client.send(head({"Content-Length": str(len(body)), **lines}, *request) + body[:half])
            if rules is None:
                app.tables.buckets["open"] = (BucketRules("public"), START + timedelta(1))
                app.clock.advance(1)
            else:
                app.rules("open", **rules)
            client.send(body[half:])
            self.assertIn(refusal, client.received(), request)
            self.assertEqual(len(app.stored()), int(b"key" in refusal))


class Watched(StorageApp):
    """Notes at each step the numbers of versions in the store, objects, reserved uploads, and garbage."""

    def step(self, name: str) -> None:
        tables = self.tables
        there = (self.store.objects, tables.objects, self.uploading, tables.garbage)
        super().step(" ".join([name, *(str(len(one)) for one in there)]))


class Steps(TestCase):
    def test_bytes_come_before_their_row_and_go_after_it(self) -> None:
        """So a process that dies between two steps loses nothing."""
        app, path = Watched(), "/storage/buckets/open"
        for change, steps in (
            (lambda: app.put("k"), ("reserved 0 0 1 0", "stored 1 0 1 0", "committed 1 1 0 0")),
            (
                lambda: app.put("k"),
                ("reserved 1 1 1 0", "stored 2 1 1 0", "committed 2 1 0 1", "removed 1 1 0 0"),
            ),
            (
                lambda: app.post(f"{path}/copy", {"from": "k", "to": "c"}),
                ("reserved 1 1 1 0", "stored 2 1 1 0", "committed 2 2 0 0"),
            ),
            (
                lambda: app.post(f"{path}/move", {"from": "c", "to": "k"}),
                ("committed 2 1 0 1", "removed 1 1 0 0"),
            ),
            (lambda: app.post(f"{path}/move", {"from": "k", "to": "m"}), ("committed 1 1 0 0",)),
            (
                lambda: app.request("DELETE", f"{path}/objects/m", USER),
                ("committed 1 0 0 1", "removed 0 0 0 0"),
            ),
        ):
            app.steps.clear()
            self.assertLess(change().status, 300)
            self.assertEqual(tuple(app.steps), steps)
