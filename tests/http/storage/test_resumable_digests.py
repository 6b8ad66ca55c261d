"""Digests that a client sends with a resumable upload (RFC 9530): of one request's bytes, and of the whole file."""

from __future__ import annotations

from base64 import b64encode
from hashlib import md5, sha256, sha512
from unittest.mock import patch

from twisted.trial.unittest import TestCase

from project_service.storage.s3.errors import StoreUnreachable
from project_service.storage.sha256 import UnfinishedDigests
from tests.fakes.storage import FakeResumables
from tests.fakes.store import MemoryStore
from tests.http.storage.app import USER, refused
from tests.http.storage.test_resumable import BYTES, TUS, UPLOADS, TusApp

FILE = bytes(range(33))
BAD = (400, "bad_digest")


def digest(payload: bytes, name: str = "sha-256") -> str:
    made = {"sha-256": sha256, "sha-512": sha512, "md5": md5}[name](payload)
    return f"{name}=:{b64encode(made.digest()).decode()}:"


def another_process(app: TusApp) -> None:
    """What comes from now on comes to a process that has received nothing."""
    object.__setattr__(app.storage.resumables, "digests", UnfinishedDigests())


class OfTheBody(TestCase):
    def test_it_is_compared_and_the_offset_stays_where_it_differs(self) -> None:
        app = TusApp()
        path = app.begun(33)
        app.patch(path, 0, FILE[:5])
        for header, wrong in (
            ("Content_Digest", digest(b"other")),
            ("Content_Digest", digest(b"other", "sha-512")),
            ("Content_MD5", b64encode(md5(b"other").digest()).decode()),
        ):
            for body in (FILE[5:8], FILE[5:]):
                self.assertEqual(refused(app.patch(path, 5, body, USER, **{header: wrong})), BAD)
                self.assertEqual((app.offset(path), len(app.store.multiparts)), (5, 0))
        right = b64encode(md5(FILE[5:8]).digest()).decode()
        self.assertEqual(app.patch(path, 5, FILE[5:8], Content_MD5=right).status, 204)
        self.assertEqual(app.patch(path, 8, FILE[8:], Content_Digest=digest(FILE[8:])).status, 204)
        self.assertEqual(app.stored(), [FILE])

    def test_bytes_that_cannot_be_compared_do_not_count(self) -> None:
        app = TusApp()
        path = app.begun(33)
        client = app.connect()
        lines = {**USER, **TUS, **BYTES, "Content-Digest": digest(FILE), "Upload-Offset": "0"}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        client.send(f"PATCH {path} HTTP/1.1\r\nHost: x\r\n{text}Content-Length: 33\r\n\r\n".encode())
        client.send(FILE[:-1])
        client.hang_up()
        self.assertEqual((app.offset(path), app.store.multiparts), (0, {}))

    def test_that_of_a_request_that_begins(self) -> None:
        app = TusApp()
        self.assertEqual(app.begin(33, body=FILE, Content_Digest=digest(FILE)).status, 201)
        self.assertEqual(refused(app.begin(33, body=FILE, Content_Digest=digest(b"other"))), BAD)
        # Without bytes it is that of none.
        before = set(app.tables.resumables)
        self.assertEqual(refused(app.begin(33, Content_Digest=digest(FILE))), BAD)
        self.assertEqual(set(app.tables.resumables), before)
        self.assertEqual(app.begin(33, Content_Digest=digest(b"")).status, 201)

    def test_one_that_cannot_be_read_is_refused(self) -> None:
        app = TusApp()
        path = app.begun(33)
        for text in ("sha-256", "sha-256=:AAAA:", "sha-256=abc"):
            for header in ("Content_Digest", "Repr_Digest"):
                self.assertEqual(refused(app.patch(path, 0, FILE, USER, **{header: text})), BAD)
                self.assertEqual(refused(app.begin(33, USER, None, UPLOADS, **{header: text})), BAD)
        self.assertEqual(app.offset(path), 0)


class OfTheWhole(TestCase):
    def ends(self, app: TusApp, path: str, expected: int, cut: int, elsewhere: bool, **more: str) -> None:
        """Two requests bring ``FILE``, of which the second has ``more``, and another process may serve it."""
        self.assertEqual(app.patch(path, 0, FILE[:cut]).status, 204)
        if elsewhere:
            another_process(app)
        answer = app.patch(path, cut, FILE[cut:], USER, **more)
        self.assertEqual(answer.status, expected, answer.body)
        if expected == 204:
            row = app.tables.objects["open", "a.txt"]
            self.assertEqual((row.sha256, app.stored()), (sha256(FILE).hexdigest(), [FILE]))
        else:
            self.assertEqual(refused(answer), BAD)
            self.assertEqual(app.head(path).status, 404)
            self.assertEqual(app.tables.objects, {})
            app.nothing_left()

    def test_all_bytes_in_one_request(self) -> None:
        for length in (0, 5, 33):
            whole = FILE[:length]
            app = TusApp()
            self.assertEqual(app.begin(length, body=whole, Repr_Digest=digest(whole)).status, 201)
            self.assertEqual(app.stored(), [whole])
            app = TusApp()
            self.assertEqual(refused(app.begin(length, body=whole, Repr_Digest=digest(b"other"))), BAD)
            app.nothing_left()

    def test_it_comes_with_the_request_that_begins_or_the_one_that_ends(self) -> None:
        for elsewhere in (False, True):
            for payload, expected in ((FILE, 204), (FILE[:-1], 400)):
                for cut in (4, 10, 32):
                    app = TusApp()
                    self.ends(app, app.begun(33, Repr_Digest=digest(payload)), expected, cut, elsewhere)
                    app = TusApp()
                    self.ends(app, app.begun(33), expected, cut, elsewhere, Repr_Digest=digest(payload))

    def test_any_request_may_have_it_but_no_other_than_before(self) -> None:
        app = TusApp()
        path = app.begun(33)
        for first in (0, 11, 22):
            if first:
                other = app.patch(path, first, FILE[first : first + 11], Repr_Digest=digest(b"other"))
                self.assertEqual((refused(other), app.offset(path)), (BAD, first))
            answer = app.patch(path, first, FILE[first : first + 11], Repr_Digest=digest(FILE))
            self.assertEqual(answer.status, 204)
        self.assertEqual(app.stored(), [FILE])

    def test_after_the_end_only_one_that_was_compared_is_accepted(self) -> None:
        app = TusApp()
        for known, sent, status in (
            ({"Repr_Digest": digest(FILE)}, digest(FILE), 204),
            ({"Repr_Digest": digest(FILE)}, digest(b"other"), 400),
            ({}, digest(FILE), 400),
        ):
            path = app.begun(33)
            self.assertEqual(app.patch(path, 0, FILE, USER, **known).status, 204)
            self.assertEqual(app.patch(path, 33, b"", Repr_Digest=sent).status, status)
            self.assertEqual(app.stored(), [FILE])

    def test_the_sha_256_counts_and_a_sha_512_alone_is_refused(self) -> None:
        app = TusApp()
        path = app.begun(33)
        self.assertEqual(refused(app.begin(33, Repr_Digest=digest(FILE, "sha-512"))), BAD)
        self.assertEqual(refused(app.patch(path, 0, FILE, Repr_Digest=digest(FILE, "sha-512"))), BAD)
        both = f"{digest(FILE)}, {digest(b'other', 'sha-512')}, {digest(b'other', 'md5')}"
        self.assertEqual(app.patch(path, 0, FILE, Repr_Digest=both).status, 204)
        # What RFC 9530 no longer recommends is ignored, as with a PUT.
        self.assertEqual(app.begin(33, body=FILE, Repr_Digest=digest(b"other", "md5")).status, 201)

    def test_a_process_that_makes_the_object_after_another_died_compares_it(self) -> None:
        for payload, status in ((FILE, 200), (b"other", 400)):
            app = TusApp()
            path = app.begun(33, Repr_Digest=digest(payload))
            with patch.object(MemoryStore, "complete_multipart", side_effect=RuntimeError):
                self.assertEqual(app.patch(path, 0, FILE).status, 500)
            self.flushLoggedErrors(RuntimeError)
            another_process(app)
            self.assertEqual(app.head(path).status, status)
            self.assertEqual([*app.tables.objects], [("open", "a.txt")] if status == 200 else [])

    def test_a_store_that_cannot_be_read_is_no_refusal(self) -> None:
        app = TusApp()
        path = app.begun(33, Repr_Digest=digest(FILE))
        app.patch(path, 0, FILE[:20])
        another_process(app)
        with patch.object(MemoryStore, "open", side_effect=StoreUnreachable("away")):
            self.assertEqual(refused(app.patch(path, 20, FILE[20:])), (503, "store_unavailable"))
        self.assertEqual(app.offset(path), 33)
        self.assertEqual(app.stored(), [FILE])

    def test_only_the_holder_says_what_it_must_be(self) -> None:
        app = TusApp()
        path = app.begun(33)
        with patch.object(FakeResumables, "expect_sha256", return_value=False):
            answer = app.patch(path, 0, FILE, Repr_Digest=digest(FILE))
        self.assertEqual(refused(answer), (423, "upload_locked"))
