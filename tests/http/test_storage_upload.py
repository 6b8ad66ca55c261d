"""Uploads: by form and raw, streamed, limited, conditional; what fails leaves nothing behind."""

from __future__ import annotations

import json

from twisted.trial.unittest import TestCase

from project_service.storage.model import ObjectRow
from tests.http.storage_app import (
    ANON,
    BOUNDARY,
    FORM,
    SERVICE,
    USER,
    StorageApp,
    code,
    file_form,
    form,
    part,
    refused,
)
from tests.storage_fakes import FakeObjects

BASE = "/storage/buckets/open/objects"


def head(lines: dict[str, str], method: str = "POST", path: str = BASE) -> bytes:
    sent = {"Host": "x", **USER, **lines}
    return (
        f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in sent.items()) + "\r\n"
    ).encode()


class Forms(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()

    def test_metadata_is_returned(self) -> None:
        response = self.app.upload(form(part("file", b"hello", "a.png", "image/png")))
        self.assertEqual(response.status, 201)
        self.assertEqual(
            json.loads(response.body),
            {
                "key": "a.png",
                "size": 5,
                "content_type": "image/png",
                "last_modified": "2026-11-21T00:00:00.000Z",
                "etag": "5d41402abc4b2a76b9719d911017c592",
            },
        )

    def test_the_key_may_come_before_or_after_the_file(self) -> None:
        for number, parts in enumerate(
            [
                (part("key", b"x/1"), part("file", b"one", "n.txt")),
                (part("file", b"two", "n.txt"), part("key", "x/ö".encode())),
            ]
        ):
            response = self.app.upload(form(*parts))
            self.assertEqual(json.loads(response.body)["key"], ["x/1", "x/ö"][number])
        self.assertEqual(self.app.stored(), [b"one", b"two"])

    def test_the_stores_metadata_has_the_key_where_it_is_known_in_time(self) -> None:
        self.app.upload(form(part("key", b"a b"), part("file", b"one", "n.txt")))
        self.app.upload(form(part("file", b"two", "n.txt"), part("key", b"c")))
        known = sorted(dict(stored.metadata).get("key", "") for stored in self.app.store.objects.values())
        self.assertEqual(known, ["", "a%20b"])

    def test_an_empty_file_and_other_fields(self) -> None:
        response = self.app.upload(form(part("note", b"\xff\xfe"), part("file", b"", "empty.bin")))
        self.assertEqual((response.status, json.loads(response.body)["size"]), (201, 0))

    def test_content_type_of_the_part_else_by_the_key_else_bytes(self) -> None:
        cases = [
            (part("file", b"x", "a.png", "text/x-odd; charset=utf-8"), "text/x-odd; charset=utf-8"),
            (part("file", b"x", "a.png"), "image/png"),
            (part("file", b"x", "a.unheard-of"), "application/octet-stream"),
            (part("file", b"x", "a.tar.gz"), "application/octet-stream"),
        ]
        for one, expected in cases:
            self.assertEqual(json.loads(self.app.upload(form(one)).body)["content_type"], expected)
        bad = self.app.upload(form(part("file", b"x", "a", "no type")))
        self.assertEqual(refused(bad), (422, "validation_failed"))

    def test_however_the_body_is_cut_it_means_the_same(self) -> None:
        body = file_form(b"\r\n--frontie\r\n" * 7, key="k")
        for size in (1, 2, 3, 7, 50):
            client = self.app.connect()
            client.send(head({**FORM, "Content-Length": str(len(body))}))
            for first in range(0, len(body), size):
                client.send(body[first : first + size])
            self.assertIn(b" 201 ", client.received())
        self.assertEqual(self.app.stored(), [b"\r\n--frontie\r\n" * 7])


class BadForms(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()

    def tearDown(self) -> None:
        self.assertEqual(self.app.stored(), [])

    def bad(self, body: bytes, expected: tuple[int, str] = (400, "invalid_multipart")) -> None:
        self.assertEqual(refused(self.app.upload(body)), expected)

    def test_no_file_two_files_two_keys(self) -> None:
        self.bad(form(part("key", b"a")))
        self.bad(form(part("file", b"a", "a"), part("file", b"b", "b")))
        self.bad(form(part("key", b"a"), part("key", b"b"), part("file", b"a", "a")))
        self.bad(form())

    def test_truncated_anywhere(self) -> None:
        body = file_form(b"hello", key="k")
        for length in range(len(body) - 4):
            self.bad(body[:length])

    def test_a_boundary_that_never_comes(self) -> None:
        self.bad(b"--other\r\nContent-Disposition: form-data; name=file\r\n\r\nx\r\n--other--\r\n")
        self.bad(b"x" * 200_000)

    def test_part_headers_too_long_or_too_many(self) -> None:
        self.bad(f"--{BOUNDARY}\r\nX-Long: ".encode() + b"x" * 20_000 + b"\r\n\r\n")
        self.bad(f"--{BOUNDARY}\r\nX-Long: ".encode() + b"x" * 20_000)
        self.bad(f"--{BOUNDARY}\r\n".encode() + b"X-A: b\r\n" * 50 + b"\r\n")

    def test_ten_thousand_parts(self) -> None:
        self.bad(form(*[part(f"f{number}", b"") for number in range(10_000)], part("file", b"x", "a")))

    def test_a_field_that_does_not_end(self) -> None:
        self.bad(form(part("note", b"x" * 100_000), part("file", b"x", "a")))

    def test_a_part_without_disposition(self) -> None:
        self.bad(f"--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode())

    def test_no_boundary_and_no_form(self) -> None:
        for content_type, expected in {
            "multipart/form-data": (400, "invalid_multipart"),
            "multipart/form-data; boundary=": (400, "invalid_multipart"),
            f"multipart/form-data; boundary={'x' * 71}": (400, "invalid_multipart"),
            "application/json": (415, "unsupported_media_type"),
            "multipart/mixed; boundary=x": (415, "unsupported_media_type"),
        }.items():
            response = self.app.request("POST", BASE, {**USER, "Content-Type": content_type}, file_form())
            self.assertEqual(refused(response), expected, content_type)

    def test_keys_that_are_not_allowed(self) -> None:
        for key in (b"", b"/a", b"a//b", b"a/", b"../a", b"a/./b", b"a\nb", b"a\x00b", b"\xff", b"x" * 901):
            self.bad(form(part("key", key), part("file", b"x", "a")), (422, "invalid_key"))
            self.bad(form(part("file", b"x", "a"), part("key", key)), (422, "invalid_key"))
        self.bad(form(part("file", b"x")), (422, "invalid_key"))
        self.bad(form(part("file", b"x", "")), (422, "invalid_key"))

    def test_a_client_that_hangs_up(self) -> None:
        app = StorageApp(part_bytes=10)
        for length in (5, 25, 45):
            client = app.connect()
            client.send(head({**FORM, "Content-Length": "100000"}))
            client.send(form(part("file", b"x" * length, "a"))[: -len(f"\r\n--{BOUNDARY}--\r\n")])
            client.hang_up()
            self.assertEqual(app.stored(), [])
        self.assertIn("abort_multipart", app.store.calls)


class Sizes(TestCase):
    def test_a_part_is_sent_as_soon_as_it_is_full(self) -> None:
        app = StorageApp(part_bytes=10)
        payload = bytes(range(256))[:95]
        self.assertEqual(app.put("k", payload).status, 201)
        self.assertEqual(app.stored(), [payload])
        self.assertEqual(app.store.calls.count("put_part"), 10)
        self.assertNotIn("put", app.store.calls)

    def test_what_fits_one_part_is_one_request(self) -> None:
        app = StorageApp(part_bytes=10)
        for length in (0, 1, 10):
            app.put(f"k{length}", b"x" * length)
        self.assertEqual(app.store.calls, ["put"] * 3)

    def test_too_large_is_refused_by_its_length_before_a_byte_is_read(self) -> None:
        app = StorageApp(max_object_bytes=100)
        client = app.connect()
        client.send(head({"Content-Length": "101", "Expect": "100-continue"}, "PUT", BASE + "/k"))
        answer = client.received()
        self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer)
        self.assertIn(b"payload_too_large", answer)
        client = app.connect()
        client.send(head({**FORM, "Content-Length": "10000000", "Expect": "100-continue"}))
        self.assertTrue(client.received().startswith(b"HTTP/1.1 413 "))
        self.assertEqual(app.stored(), [])

    def test_chunked_bodies_are_counted_too(self) -> None:
        app = StorageApp(max_object_bytes=100, part_bytes=10)
        for bucket_limit in (None, 50):
            app.rules("open", max_object_bytes=bucket_limit)
            limit = bucket_limit or 100
            for length, status in ((limit, b"200" if limit == 50 else b"201"), (limit + 1, b"413")):
                client = app.connect()
                client.send(head({"Transfer-Encoding": "chunked"}, "PUT", BASE + "/k"))
                for _ in range(length):
                    client.send(b"1\r\nx\r\n")
                client.send(b"0\r\n\r\n")
                self.assertTrue(client.received().startswith(b"HTTP/1.1 " + status), length)
        self.assertEqual(app.stored(), [b"x" * 50])

    def test_parts_grow_only_behind_many_small_ones(self) -> None:
        app = StorageApp(part_bytes=1, max_object_bytes=100_000)
        payload = bytes(range(250)) * 4 + b"one"
        for length, parts in ((3, 3), (1000, 1000), (1003, 1001)):
            app.store.calls.clear()
            client = app.connect()
            client.send(head({"Transfer-Encoding": "chunked"}, "PUT", BASE + f"/{length}"))
            client.send(b"%x\r\n" % length + payload[:length] + b"\r\n0\r\n\r\n")
            self.assertTrue(client.received().startswith(b"HTTP/1.1 201 "), length)
            self.assertEqual(app.store.calls.count("put_part"), parts)
            self.assertEqual(app.get(str(length)).body, payload[:length])

    def test_a_form_is_counted_by_its_file_alone(self) -> None:
        app = StorageApp(max_object_bytes=100)
        self.assertEqual(app.upload(file_form(b"x" * 100)).status, 201)
        self.assertEqual(refused(app.upload(file_form(b"x" * 101))), (413, "payload_too_large"))
        self.assertEqual(app.stored(), [b"x" * 100])

    def test_the_quota_counts_what_is_replaced_and_deleted(self) -> None:
        app = StorageApp()
        app.rules("open", max_bucket_bytes=10)
        self.assertEqual(app.put("a", b"x" * 6).status, 201)
        self.assertEqual(refused(app.put("b", b"x" * 5)), (413, "payload_too_large"))
        self.assertEqual(refused(app.put("b", b"x" * 11)), (413, "payload_too_large"))
        self.assertEqual(app.put("a", b"x" * 10).status, 200)
        self.assertEqual(app.request("DELETE", BASE + "/a", USER).status, 204)
        self.assertEqual(app.put("b", b"x" * 10).status, 201)
        app.rules("open", max_bucket_bytes=5)
        self.assertEqual(app.put("b", b"x" * 4).status, 200)


class Expecting(TestCase):
    def test_a_refused_upload_asks_for_no_body(self) -> None:
        app = StorageApp()
        client = app.connect()
        request = head({**FORM, "Content-Length": "100", "Expect": "100-continue"})
        client.send(request.replace(b"Authorization", b"X-Nothing"))
        self.assertTrue(client.received().startswith(b"HTTP/1.1 401 "))

    def test_an_accepted_one_does(self) -> None:
        app = StorageApp()
        body = file_form()
        client = app.connect()
        client.send(head({**FORM, "Content-Length": str(len(body)), "Expect": "100-continue"}))
        self.assertEqual(client.received(), b"HTTP/1.1 100 Continue\r\n\r\n")
        client.send(body)
        self.assertTrue(client.received().startswith(b"HTTP/1.1 201 "))


class Conditions(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.etag = json.loads(self.app.put("k", b"one").body)["etag"]

    def test_overwriting_is_the_rule_and_the_old_version_goes(self) -> None:
        response = self.app.put("k", b"two")
        self.assertEqual((response.status, self.app.stored()), (200, [b"two"]))

    def test_if_none_match(self) -> None:
        self.assertEqual(refused(self.app.put("k", b"two", If_None_Match="*")), (412, "object_exists"))
        self.assertEqual(self.app.put("new", b"two", If_None_Match="*").status, 201)
        response = self.app.upload(file_form(key="k"), headers={**USER, "If-None-Match": "*"})
        self.assertEqual(refused(response), (412, "object_exists"))
        late = form(part("file", b"x", "n"), part("key", b"k"))
        self.assertEqual(
            refused(self.app.upload(late, headers={**USER, "If-None-Match": "*"})), (412, "object_exists")
        )
        self.assertEqual(sorted(self.app.stored()), [b"one", b"two"])

    def test_if_match(self) -> None:
        for tag in ('"other"', f'W/"{self.etag}"'):
            self.assertEqual(refused(self.app.put("k", b"2", If_Match=tag)), (412, "precondition_failed"))
        self.assertEqual(refused(self.app.put("no", b"2", If_Match="*")), (412, "precondition_failed"))
        self.assertEqual(self.app.put("k", b"2", If_Match=f'"x", "{self.etag}"').status, 200)
        self.assertEqual(self.app.put("k", b"3", If_Match="*").status, 200)

    def test_they_hold_at_the_switch_too(self) -> None:
        client = self.app.connect()
        client.send(head({"Content-Length": "3", "If-None-Match": "*"}, "PUT", BASE + "/race"))
        self.app.put("race", b"won")
        client.send(b"two")
        self.assertIn(b"object_exists", client.received())
        self.assertEqual(sorted(self.app.stored()), [b"one", b"won"])

    def test_an_object_overwritten_since_it_was_looked_at_is_not_deleted(self) -> None:
        stale = self.app.tables.objects["open", "k"]
        self.app.put("k", b"newer")

        async def looked_at_before(*_: object) -> ObjectRow:
            return stale

        self.patch(FakeObjects, "find", looked_at_before)
        sent = {**USER, "If-Match": f'"{self.etag}"'}
        response = self.app.request("DELETE", f"{BASE}/k", sent)
        self.assertEqual(refused(response), (412, "precondition_failed"))
        self.assertEqual(self.app.stored(), [b"newer"])


class Rules(TestCase):
    def test_content_types(self) -> None:
        app = StorageApp()
        app.rules("open", allowed_content_types=("image/*", "text/plain"))
        for content_type, status in {
            "image/webp": 201,
            "TEXT/plain; charset=x": 201,
            "text/html": 415,
        }.items():
            response = app.put(f"k{len(content_type)}", b"x", Content_Type=content_type)
            self.assertEqual(response.status, status, content_type)
        self.assertEqual(code(app.put("k", b"x", Content_Type="text/html")), "unsupported_media_type")
        late = form(part("file", b"x", "n"), part("key", b"page.html"))
        self.assertEqual(refused(app.upload(late)), (415, "unsupported_media_type"))
        self.assertEqual(app.upload(form(part("file", b"x", "n"), part("key", b"p.png"))).status, 201)

    def test_a_store_that_is_away(self) -> None:
        app = StorageApp(part_bytes=10)
        app.store.away = True
        for length in (5, 35):
            response = app.put("k", b"x" * length)
            self.assertEqual(refused(response), (503, "store_unavailable"))
            self.assertIsNotNone(response.header("retry-after"))
        self.assertEqual(app.tables.objects, {})
        # What it could not delete waits for the sweeper.
        self.assertEqual(len(app.tables.garbage), 2)

    def test_steps_in_order(self) -> None:
        app = StorageApp()
        app.put("k")
        app.put("k")
        self.assertEqual(
            app.steps, ["announced", "stored", "switched", "announced", "stored", "switched", "removed"]
        )

    def test_a_slow_upload_that_was_given_up_does_not_come_back(self) -> None:
        app = StorageApp()
        client = app.connect()
        client.send(head({"Content-Length": "2"}, "PUT", BASE + "/k"))
        app.tables.uploads.clear()
        app.clock.advance(59)
        client.send(b"x")
        app.clock.advance(2)
        client.send(b"x")
        self.assertIn(b"408", client.received()[:20])
        self.assertEqual(app.stored(), [])


class Keys(TestCase):
    """Keys in the path of a request: percent-decoded once."""

    def test_allowed(self) -> None:
        app = StorageApp()
        for sent, key in {
            "a%2Fb": "a/b",
            "a%252Fb": "a%2Fb",
            "a%5Cb": "a\\b",
            "..%5C..%5Cx": "..\\..\\x",
            "%2e%2e%2e": "...",
            "a;b&c=d+e": "a;b&c=d+e",
            "%E2%82%AC%F0%9F%98%80": "€😀",
            "a%20b%3Fc%23": "a b?c#",
            "x" * 900: "x" * 900,
        }.items():
            response = app.request("PUT", f"{BASE}/{sent}", USER, b"x")
            self.assertEqual(response.status, 201, sent)
            self.assertEqual(json.loads(response.body)["key"], key)
            self.assertEqual(app.request("GET", f"{BASE}/{sent}", ANON).body, b"x")

    def test_refused(self) -> None:
        app = StorageApp()
        for sent in (
            "../x", "a/../b", "%2e%2e/x", "a/%2E%2e", ".", "a/.", "/a", "a//b", "a%2F%2Fb", "a/", "%2Fa",
            "a%00b", "a%0Ab", "a%7Fb", "a%C2%85b", "%FF", "%C3", "%ED%A0%80", "x" * 901, "",
        ):  # fmt: skip
            for method in ("PUT", "GET", "DELETE"):
                response = app.request(method, f"{BASE}/{sent}", SERVICE, b"x" if method == "PUT" else None)
                self.assertEqual(refused(response), (422, "invalid_key"), (method, sent))
        self.assertEqual(app.stored(), [])
