"""The operations of the store's client, with canned responses: what is sent, and what responses mean."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Coroutine
from hashlib import md5, sha256
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.lifecycle import start
from project_service.storage.durations import RENEWAL_SECONDS
from project_service.storage.s3.agent import TreqClient
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.connection import ConnectionPool
from project_service.storage.s3.errors import BrokenRead, NoSuchObject, StoreError, StoreUnreachable
from project_service.storage.s3.requests import RetryingClient, Sender
from project_service.storage.s3.signing import INLINE_DIGEST_BYTES
from project_service.storage.s3.xml import OpenMultipart
from project_service.storage.upload import COPY_PART_BYTES, PartSizes, SizeLimit, Upload, Uploads
from project_service.storage.values import ObjectRow, store_path
from tests.unit.storage.test_s3_connection import Wire
from tests.unit.storage.test_s3_pool import Endpoint
from tests.unit.storage.test_s3_sender import ADDRESS, NOW, SIGNER

IDLE, RETRY = 10.0, 5.0
SOURCE, TARGET = (store_path("b", UUID(int=number)) for number in (1, 2))


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(1000)
        self.endpoint = Endpoint(Wire)
        client = TreqClient(ConnectionPool(self.clock, self.endpoint, 5), self.clock)
        sender = Sender(client, ADDRESS, SIGNER, lambda: NOW)
        self.jitter = 1.0
        requests = RetryingClient(sender, self.clock, IDLE, RETRY, lambda: self.jitter)
        self.store = S3Store(requests, lambda work, *args: succeed(work(*args)))

    def ask(self, work: Coroutine[Any, Any, Any]) -> Deferred[Any]:
        return start(work)

    @property
    def wire(self) -> Any:
        """The wire of the connection that was opened last."""
        return self.endpoint.connections[-1].transport

    def sent(self) -> tuple[str, dict[str, str], str]:
        """The one request that has gone out since the last look: its first line, headers and body.

        What was signed is what is sent. AWS refuses anything else; the stores of the tests do not look at that.
        """
        head, _, body = self.wire.value().decode().partition("\r\n\r\n")
        self.wire.clear()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if "content-length" not in headers or len(body) == int(headers["content-length"]):
            self.assertEqual(headers["x-amz-content-sha256"], sha256(body.encode()).hexdigest(), first)
        return first.removesuffix(" HTTP/1.1"), headers, body

    def answer(self, status: int = 200, body: str = "", **headers: str) -> None:
        self.wire.clear()
        lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.endpoint.connections[-1].dataReceived("\r\n".join([*lines, "", body]).encode())


class Bytes(Case):
    """Uploads of bytes."""

    def test_digests_are_sent_with_the_bytes(self) -> None:
        """Those of large bodies are computed in a thread, and sent when the socket asks for more."""
        for payload in (b"few", b"many" * INLINE_DIGEST_BYTES):
            for work in (
                self.store.put("k", payload, "text/plain", {}),
                self.store.put_part("k", "u", 1, memoryview(payload)),
            ):
                asked = self.ask(work)
                headers = self.sent()[1]
                self.assertEqual(headers["x-amz-content-sha256"], sha256(payload).hexdigest())
                self.assertEqual(headers["content-md5"], b64encode(md5(payload).digest()).decode())
                asked.cancel()
                self.failureResultOf(asked, CancelledError)


class Documents(Case):
    def test_open_uploads_are_listed_page_by_page(self) -> None:
        page = (
            "<R><IsTruncated>true</IsTruncated><NextKeyMarker>a&amp;b</NextKeyMarker><NextUploadIdMarker>1"
            "</NextUploadIdMarker><Upload><Key>a&amp;b</Key><UploadId>1</UploadId></Upload></R>"
        )
        asked = self.ask(self.store.list_multiparts())
        self.answer(body=page)
        line, _, _ = self.sent()
        self.assertEqual(
            line, "GET /base/bucket?key-marker=a%26b&max-uploads=1000&upload-id-marker=1&uploads="
        )
        self.answer(
            body="<R><NextKeyMarker>c</NextKeyMarker><Upload><Key>c</Key><UploadId>2</UploadId></Upload></R>"
        )
        self.assertEqual(self.successResultOf(asked), (OpenMultipart("a&b", "1"), OpenMultipart("c", "2")))
        for endless in (
            "<NextKeyMarker>c</NextKeyMarker>",
            "<Upload><Key>c</Key><UploadId>2</UploadId></Upload>",
        ):
            asked = self.ask(self.store.list_multiparts())
            self.answer(body=f"<R><IsTruncated>true</IsTruncated>{endless}</R>")
            self.successResultOf(asked)

    def test_only_a_truncated_page_has_a_next_one(self) -> None:
        token = "<NextContinuationToken>t</NextContinuationToken>"
        for body, expected in (
            (f"<IsTruncated>true</IsTruncated>{token}", "t"),
            (f"<IsTruncated>false</IsTruncated>{token}", None),
        ):
            asked = self.ask(self.store.list())
            self.answer(body=f"<R>{body}</R>")
            self.assertEqual(self.successResultOf(asked).next_token, expected)

    def test_a_listing_with_an_invalid_size_is_a_failure(self) -> None:
        asked = self.ask(self.store.list())
        self.answer(body="<R><Contents><Key>k</Key><Size>-1</Size></Contents></R>")
        self.failureResultOf(asked, StoreUnreachable)

    def test_delete_many_returns_the_keys_that_could_not_be_deleted(self) -> None:
        asked = self.ask(self.store.delete_many(["a&b", "c"]))
        line, headers, body = self.sent()
        self.assertEqual((line, "content-md5" in headers), ("POST /base/bucket?delete=", True))
        self.assertEqual(headers["content-type"], "application/xml")
        self.assertEqual(
            body,
            '<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>'
            "<Object><Key>a&amp;b</Key></Object><Object><Key>c</Key></Object></Delete>",
        )
        self.answer(
            body="<DeleteResult><Deleted><Key>c</Key></Deleted>"
            "<Error><Key>a&amp;b</Key><Code>AccessDenied</Code></Error></DeleteResult>"
        )
        self.assertEqual(self.successResultOf(asked), ("a&b",))

    def test_completing_an_upload_that_is_complete_succeeds(self) -> None:
        """An earlier attempt may have completed it, though its response did not arrive."""
        for status, etag in ((200, "whole-2"), (404, None)):
            asked = self.ask(self.store.complete_multipart("k", "u", ["e1", "e2"]))
            body = self.sent()[2]
            self.assertTrue(body.startswith("<CompleteMultipartUpload"), body)
            self.assertTrue(body.endswith('<ETag>"e2"</ETag></Part></CompleteMultipartUpload>'), body)
            self.answer(404, "<Error><Code>NoSuchUpload</Code></Error>")
            self.assertEqual(self.sent()[0], "HEAD /base/bucket/k")
            self.answer(status, ETag='"whole-2"')
            if etag is None:
                self.failureResultOf(asked, NoSuchObject)
            else:
                self.assertEqual(self.successResultOf(asked), etag)

    def test_deleting_what_is_gone_succeeds(self) -> None:
        for work in (self.store.delete("k"), self.store.abort_multipart("k", "u")):
            asked = self.ask(work)
            self.assertNotIn("content-length", self.sent()[1])
            self.answer(404, "<Error><Code>NoSuchKey</Code></Error>")
            self.assertIsNone(self.successResultOf(asked))

    def test_a_missing_store_bucket_is_created(self) -> None:
        asked = self.ask(self.store.ensure_bucket())
        self.answer(404)
        line, headers, _ = self.sent()
        self.assertEqual((line, headers["content-length"]), ("PUT /base/bucket", "0"))
        self.answer()
        self.successResultOf(asked)
        for status in (200, 403):
            asked = self.ask(self.store.ensure_bucket())
            self.answer(status)
            self.assertEqual(self.wire.value(), b"")
            asked.addErrback(lambda failure: failure.trap(StoreError))


class Copies(Case):
    """Copies as an upload makes them."""

    def copy(self, size: int) -> Deferred[Any]:
        self.renewals: list[float] = []

        async def renew(version: UUID) -> bool:
            self.renewals.append(self.clock.seconds())
            return True

        rows, nothing = SimpleNamespace(renew_upload=renew), cast(Any, None)
        uploads = Uploads(
            cast(Any, rows), nothing, self.store, nothing, nothing, self.clock, 1, lambda step: None
        )
        upload = Upload(uploads, UUID(int=2), "b", SizeLimit(size), PartSizes(1, 0))
        row = ObjectRow("b", "k", UUID(int=1), size, "a/b", "e", None, NOW)

        async def copied() -> str:
            await upload.copy(row)
            return upload.etag

        return start(copied())

    def test_a_small_copy_is_one_request(self) -> None:
        asked = self.copy(COPY_PART_BYTES)
        line, headers, _ = self.sent()
        self.assertEqual(
            (line, headers["x-amz-copy-source"]), (f"PUT /base/bucket/{TARGET}", f"/bucket/{SOURCE}")
        )
        self.answer(body='<R><ETag>"e"</ETag></R>')
        self.assertEqual(self.successResultOf(asked), "e")

    def test_a_large_copy_is_made_in_parts(self) -> None:
        size = 2 * COPY_PART_BYTES + 1
        asked = self.copy(size)
        line, headers, _ = self.sent()
        self.assertEqual((line, headers["content-type"]), (f"POST /base/bucket/{TARGET}?uploads=", "a/b"))
        self.answer(body="<R><UploadId>u</UploadId></R>")
        for number, last in ((1, COPY_PART_BYTES - 1), (2, 2 * COPY_PART_BYTES - 1), (3, size - 1)):
            line, headers, _ = self.sent()
            self.assertEqual(line, f"PUT /base/bucket/{TARGET}?partNumber={number}&uploadId=u")
            self.assertEqual(len(self.renewals), number - 1)
            expected = f"bytes={(number - 1) * COPY_PART_BYTES}-{last}"
            self.assertEqual(headers["x-amz-copy-source-range"], expected)
            self.assertEqual(headers["x-amz-copy-source"], f"/bucket/{SOURCE}")
            # The next part begins more than a minute after the last renewal.
            self.clock.rightNow += RENEWAL_SECONDS
            self.answer(body=f'<R><ETag>"e{number}"</ETag></R>')
        line, _, body = self.sent()
        self.assertEqual(line, f"POST /base/bucket/{TARGET}?uploadId=u")
        parts = (f'<Part><PartNumber>{n}</PartNumber><ETag>"e{n}"</ETag></Part>' for n in (1, 2, 3))
        self.assertIn("".join(parts), body)
        self.answer(body='<R><ETag>"whole-3"</ETag></R>')
        self.assertEqual(self.successResultOf(asked), "whole-3")

    def test_a_failed_copy_in_parts_aborts_its_upload(self) -> None:
        for dropped in (204, 500):
            asked = self.copy(COPY_PART_BYTES + 1)
            self.answer(body="<R><UploadId>u</UploadId></R>")
            self.answer(404)
            self.assertEqual(self.sent()[0], f"DELETE /base/bucket/{TARGET}?uploadId=u")
            self.assertNoResult(asked)
            self.answer(dropped)
            self.clock.pump([RETRY] * 4)
            self.failureResultOf(asked, NoSuchObject)

    def test_without_copying_of_parts_a_large_object_is_copied_at_once(self) -> None:
        """Storj."""
        asked = self.copy(COPY_PART_BYTES + 1)
        self.answer(body="<R><UploadId>u</UploadId></R>")
        self.answer(501, "<Error><Code>NotImplemented</Code></Error>")
        self.assertEqual(self.sent()[0], f"DELETE /base/bucket/{TARGET}?uploadId=u")
        self.answer(204)
        line, headers, _ = self.sent()
        self.assertEqual(
            (line, headers["x-amz-copy-source"]), (f"PUT /base/bucket/{TARGET}", f"/bucket/{SOURCE}")
        )
        self.assertNotIn("x-amz-copy-source-range", headers)
        self.answer(body='<R><ETag>"e"</ETag></R>')
        self.assertEqual(self.successResultOf(asked), "e")


class Opening(Case):
    """Opening an object for reading."""

    def test_only_the_range_that_was_asked_for_is_accepted(self) -> None:
        for first, length, status, announced, fine in (
            (0, 5, 200, "hello", True), (1, 3, 206, "ell", True), (1, 3, 200, "ell", False),
            (0, 5, 206, "hello", False), (0, 5, 200, "hell", False), (1, 3, 206, "ello", False),
        ):  # fmt: skip
            asked = self.ask(self.store.open("k", first, length, 5))
            wanted = None if length == 5 else f"bytes={first}-{first + length - 1}"
            self.assertEqual(self.sent()[1].get("range"), wanted)
            self.answer(status, announced)
            if fine:
                self.assertEqual(self.successResultOf(asked).buffered(), announced.encode())
            else:
                self.failureResultOf(asked, BrokenRead)

    def test_a_body_of_another_length_is_not_read(self) -> None:
        asked = self.ask(self.store.open("k", 0, 5, 5))
        self.endpoint.connections[-1].dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
        self.failureResultOf(asked, BrokenRead)
        self.assertTrue(self.wire.aborted)

    def test_a_refusal_is_retried_or_raised(self) -> None:
        asked = self.ask(self.store.open("k", 0, 5, 5))
        self.answer(503, "<Error><Code>SlowDown</Code></Error>")
        self.clock.advance(0.1)
        self.answer(404, "<Error><Code>NoSuchVersion</Code></Error>")
        self.assertEqual(self.failureResultOf(asked, NoSuchObject).value.code, "NoSuchVersion")

    def test_a_response_without_a_length_is_checked_by_its_bytes(self) -> None:
        asked = self.ask(self.store.open("k", 0, 5, 5))
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        self.endpoint.connections[-1].dataReceived(chunked)
        self.assertEqual(self.successResultOf(asked).buffered(), b"hello")
