"""Upload forms as browsers and clients send them, and how they can be malformed."""

from __future__ import annotations

import json

from twisted.trial.unittest import TestCase

from project_service.storage.parsing.form import MAX_FIELD_BYTES
from tests.http.storage.app import (
    BOUNDARY,
    FORM,
    OBJECTS,
    USER,
    StorageApp,
    file_form,
    form,
    head,
    part,
    refused,
)


class Forms(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()

    def test_the_objects_metadata_is_returned(self) -> None:
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

    def test_other_fields_are_ignored_however_often_they_come(self) -> None:
        filled = b"x" * MAX_FIELD_BYTES
        body = form(part("note", filled), part("file", b"x", "a"), part("note", filled))
        self.assertEqual(self.app.upload(body).status, 201)
        self.assertEqual(
            refused(self.app.upload(body.replace(b"xx\r\n", b"xxx\r\n"))), (400, "invalid_multipart")
        )

    def test_the_shortest_and_the_longest_boundary(self) -> None:
        for boundary in ("x", "x" * 70):
            body = file_form().replace(BOUNDARY.encode(), boundary.encode())
            sent = {**USER, "Content-Type": f"multipart/form-data; boundary={boundary}"}
            self.assertEqual(self.app.request("POST", OBJECTS, sent, body).status, 201)

    def test_an_upload_is_refused_as_early_as_possible(self) -> None:
        self.app.put("k")
        self.app.rules("open", allowed_content_types=("text/*",))
        file = part("file", b"x", "n.txt", "text/plain")
        begun = file[: -len(b"x\r\n")]
        for beginning, status in (
            (part("key", b"k") + begun, b"412"),
            (file + part("key", b"k") + part("note", b"x"), b"412"),
            (begun.replace(b"text/plain", b"image/png"), b"415"),
            (part("key", b"k.png") + begun.partition(b"\r\nContent-Type")[0] + b"\r\n\r\n", b"415"),
            (begun, b""),
            (part("key", b"new") + begun, b""),
        ):
            client = self.app.connect()
            client.send(head({**FORM, "Content-Length": "1000", "If-None-Match": "*"}) + beginning)
            self.assertEqual(client.received()[9:12], status, beginning)
            client.hang_up()

    def test_the_stores_metadata_has_the_key_if_it_is_known_in_time(self) -> None:
        self.app.put("e%20f", Content_Type="text/x-e")
        (put,) = self.app.store.objects.values()
        self.assertEqual((put.content_type, dict(put.metadata)), ("text/x-e", {"key": "e%20f"}))
        self.app.request("DELETE", f"{OBJECTS}/e%20f", USER)
        # S3 allows 2 KB of metadata in all.
        for key, kept in (("k" * 900, True), ("%C3%A9" * 450, False)):
            self.app.put(key)
            (put,) = self.app.store.objects.values()
            self.assertEqual(dict(put.metadata), {"key": key} if kept else {})
            self.app.request("DELETE", f"{OBJECTS}/{key}", USER)
        self.app.upload(form(part("key", b"a/ b"), part("file", b"one", "n.txt")))
        self.app.upload(form(part("file", b"two", "n.txt"), part("key", b"c")))
        known = [dict(stored.metadata) for stored in self.app.store.objects.values()]
        self.assertEqual(known, [{"key": "a/%20b"}, {}])

    def test_an_empty_file_and_other_fields(self) -> None:
        response = self.app.upload(form(part("note", b"\xff\xfe"), part("file", b"", "empty.bin")))
        self.assertEqual((response.status, json.loads(response.body)["size"]), (201, 0))

    def test_the_content_type_is_the_parts_or_guessed_from_the_key(self) -> None:
        cases = [
            (part("file", b"x", "a.png", "text/x-odd; charset=utf-8"), "text/x-odd; charset=utf-8"),
            (part("file", b"x", "a.png", "text/plain;\tcharset=utf-8"), "text/plain; charset=utf-8"),
            (part("file", b"x", "a.png"), "image/png"),
            (part("file", b"x", "a.unheard-of"), "application/octet-stream"),
            (part("file", b"x", "a.tar.gz"), "application/octet-stream"),
        ]
        for one, expected in cases:
            self.assertEqual(json.loads(self.app.upload(form(one)).body)["content_type"], expected)
        bad = self.app.upload(form(part("file", b"x", "a", "no type")))
        self.assertEqual(refused(bad), (422, "validation_failed"))

    def test_pieces_make_no_difference(self) -> None:
        body = file_form(b"\r\n--frontie\r\n" * 7, key="k")
        for size in (1, 2, 3, 7, 50):
            client = self.app.connect()
            client.send(head({**FORM, "Content-Length": str(len(body))}))
            for first in range(0, len(body), size):
                client.send(body[first : first + size])
            self.assertIn(b" 201 ", client.received())
        self.assertEqual(self.app.stored(), [b"\r\n--frontie\r\n" * 7])


class BadForms(TestCase):
    """Malformed forms are refused, and nothing is stored."""

    def setUp(self) -> None:
        self.app = StorageApp()

    def tearDown(self) -> None:
        self.assertEqual(self.app.stored(), [])

    def bad(self, body: bytes, expected: tuple[int, str] = (400, "invalid_multipart")) -> None:
        self.assertEqual(refused(self.app.upload(body)), expected)

    def test_a_form_needs_one_file_and_at_most_one_key(self) -> None:
        self.bad(form(part("key", b"a")))
        self.bad(form(part("file", b"a", "a"), part("file", b"b", "b")))
        self.bad(form(part("key", b"a"), part("key", b"b"), part("file", b"a", "a")))
        self.bad(form())

    def test_a_form_truncated_anywhere(self) -> None:
        body = file_form(b"hello", key="k")
        for length in range(len(body) - 4):
            self.bad(body[:length])

    def test_a_boundary_that_never_comes(self) -> None:
        self.bad(b"--other\r\nContent-Disposition: form-data; name=file\r\n\r\nx\r\n--other--\r\n")
        self.bad(b"x" * 200_000)

    def test_part_headers_that_are_too_long_or_too_many(self) -> None:
        self.bad(f"--{BOUNDARY}\r\nX-Long: ".encode() + b"x" * 20_000 + b"\r\n\r\n")
        self.bad(f"--{BOUNDARY}\r\nX-Long: ".encode() + b"x" * 20_000)
        self.bad(f"--{BOUNDARY}\r\n".encode() + b"X-A: b\r\n" * 50 + b"\r\n")

    def test_documented_limits_are_included(self) -> None:
        file = part("file", b"x", "a")

        def lines(*more: str) -> bytes:
            return form(file.replace(b"\r\n\r\n", "\r\n".join(["", *more, "", ""]).encode()))

        for largest, more in (
            (lines("X: " + "y" * 8189), lines("X: " + "y" * 8190)),
            (lines(*["X: y"] * 15), lines(*["X: y"] * 16)),
            (form(*[part("n", b"v")] * 99, file), form(*[part("n", b"v")] * 100, file)),
            (form(part("n", b"v" * 65_536), file), form(part("n", b"v" * 65_537), file)),
        ):
            self.assertEqual(self.app.upload(largest).status, 201)
            self.app.request("DELETE", OBJECTS + "/a", USER)
            self.bad(more)

    def test_ten_thousand_parts(self) -> None:
        self.bad(form(*[part(f"f{number}", b"") for number in range(10_000)], part("file", b"x", "a")))

    def test_a_field_that_does_not_end(self) -> None:
        self.bad(form(part("note", b"x" * 100_000), part("file", b"x", "a")))

    def test_a_part_without_content_disposition(self) -> None:
        self.bad(f"--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode())

    def test_parts_with_a_transfer_encoding_are_refused_unless_they_are_unencoded(self) -> None:
        plain = form(part("key", b"a2V5"), part("file", b"aGVsbG8=", "a.txt"), part("note", b"x"))
        for name in (b"key", b"file", b"note"):
            for encoding in (b"base64", b" Quoted-Printable ", b"7bit", b"Binary", b"utf-8", b""):
                header = b"\r\nContent-Transfer-Encoding:" + encoding
                start = plain.index(b'name="' + name)
                end = plain.index(b"\r\n\r\n", start)
                body = plain[:end] + header + plain[end:]
                if name != b"note" and encoding in (b"base64", b" Quoted-Printable "):
                    self.bad(body, (415, "unsupported_media_type"))
                else:
                    self.assertEqual(self.app.upload(body).status, 201, header)
                    self.app.request("DELETE", f"{OBJECTS}/a2V5", USER)

    def test_a_file_name_that_is_not_utf8(self) -> None:
        body = form(part("file", b"x", "NAME"))
        self.assertEqual(self.app.upload(body.replace(b"NAME", b"ok")).status, 201)
        self.app.request("DELETE", f"{OBJECTS}/ok", USER)
        response = self.app.upload(body.replace(b"NAME", b"\xff\xfe"))
        error = json.loads(response.body)["error"]["message"]
        self.assertEqual(
            (response.status, error), (400, "The form cannot be read: the name of the file is not UTF-8.")
        )

    def test_other_content_types_and_boundaries(self) -> None:
        for content_type, expected in {
            "multipart/form-data": (400, "invalid_multipart"),
            "multipart/form-data; boundary=": (400, "invalid_multipart"),
            f"multipart/form-data; boundary={'x' * 71}": (400, "invalid_multipart"),
            "multipart/form-data; boundary=\u00e4": (400, "invalid_multipart"),
            'multipart/form-data; boundary="a\tb"': (400, "invalid_multipart"),
            "application/json": (415, "unsupported_media_type"),
            "multipart/mixed; boundary=x": (415, "unsupported_media_type"),
        }.items():
            response = self.app.request("POST", OBJECTS, {**USER, "Content-Type": content_type}, file_form())
            self.assertEqual(refused(response), expected, content_type)
        untold = self.app.request("POST", OBJECTS, USER, file_form())
        self.assertEqual(refused(untold), (415, "unsupported_media_type"))

    def test_keys_that_are_not_allowed(self) -> None:
        for key in (b"", b"/a", b"a//b", b"a/", b"../a", b"a/./b", b"a\nb", b"a\x00b", b"\xff", b"x" * 901):
            self.bad(form(part("key", key), part("file", b"x", "a")), (422, "invalid_key"))
            self.bad(form(part("file", b"x", "a"), part("key", key)), (422, "invalid_key"))
        for nameless in (part("file", b"x"), part("file", b"x", "")):
            error = json.loads(self.app.upload(form(nameless)).body)["error"]
            self.assertEqual(error["details"], {"key": "there is no field key, and the file has no name"})
            self.bad(form(nameless), (422, "invalid_key"))

    def test_a_client_that_hangs_up_leaves_nothing(self) -> None:
        app = StorageApp(part_bytes=10)
        for length in (5, 25, 45):
            client = app.connect()
            client.send(head({**FORM, "Content-Length": "100000"}))
            client.send(form(part("file", b"x" * length, "a"))[: -len(f"\r\n--{BOUNDARY}--\r\n")])
            client.hang_up()
            self.assertEqual(app.stored(), [])
        self.assertIn("abort_multipart", app.store.calls)
