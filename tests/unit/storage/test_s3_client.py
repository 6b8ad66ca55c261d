"""The operations of the store's client with canned responses, also where stores differ, by their documentation
and by reports of users."""

from __future__ import annotations

from base64 import b64encode
from hashlib import md5, sha256
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.python.failure import Failure

from project_service.lifecycle import start
from project_service.storage.durations import RENEWAL_SECONDS
from project_service.storage.s3.client import DELETES_AT_ONCE
from project_service.storage.s3.connection import SLICE
from project_service.storage.s3.errors import (
    NO_NEXT_PAGE,
    NO_SIZE,
    UNREADABLE,
    BrokenRead,
    CorruptTransfer,
    NoSuchBucket,
    NoSuchObject,
    StoreError,
    StoreUnreachable,
)
from project_service.storage.s3.parts import PartSizes
from project_service.storage.s3.signing import EMPTY_SHA256, INLINE_DIGEST_BYTES
from project_service.storage.s3.xml import OpenMultipart
from project_service.storage.upload import COPY_PART_BYTES, SizeLimit, Upload, Uploads
from project_service.storage.values import ObjectRow, store_path
from tests.unit.storage.test_s3_requests import IDLE, NOW, RETRY, Case

SOURCE, TARGET = (store_path("b", UUID(int=number)) for number in (1, 2))


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

    def test_a_digest_that_is_known_is_not_computed_again(self) -> None:
        """Whoever gives one that is not of these bytes has them refused by the store."""
        for payload in (b"few", b"many" * INLINE_DIGEST_BYTES):
            asked = self.ask(self.store.put("k", payload, "text/plain", {}, EMPTY_SHA256))
            self.assertIn(f"\r\nX-Amz-Content-SHA256: {EMPTY_SHA256}\r\n", self.wire.value().decode())
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
        """An earlier try may have completed it, though its response did not arrive."""
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


MD5 = md5(b"x").hexdigest()
OTHER = md5(b"y").hexdigest()


class ETags(Case):
    def test_an_etag_that_is_an_md5_is_compared_however_it_is_written(self) -> None:
        """Alibaba writes capitals; a proxy may make it weak or leave the quotes out."""
        for etag in (f'"{MD5}"', MD5, f'"{MD5.upper()}"', f'W/"{MD5}"'):
            asked = self.ask(self.store.put("k", b"x", "a/b", {}))
            self.answer(ETag=etag)
            self.assertEqual(self.successResultOf(asked).lower(), MD5)
        for etag in (f'"{OTHER}"', OTHER.upper(), f'W/"{OTHER}"', '""', ""):
            for work in (self.store.put("k", b"x", "a/b", {}), self.store.put_part("k", "u", 1, b"x")):
                asked = self.ask(work)
                self.answer(ETag=etag)
                self.failureResultOf(asked, CorruptTransfer)

    def test_an_etag_that_cannot_be_an_md5_is_accepted(self) -> None:
        """Google sends such for customer-managed keys, and some stores never compute an MD5."""
        for etag in ("CMDfyIHe7o4DEAE=", f"{OTHER}-1", f"{OTHER}{OTHER}", "0x8DB5C0"):
            asked = self.ask(self.store.put_part("k", "u", 1, b"x"))
            self.assertIn("content-md5", self.sent()[1])
            self.answer(ETag=f'"{etag}"')
            self.assertEqual(self.successResultOf(asked), etag)


class Missing(Case):
    """Operations that some stores do not have."""

    def test_without_multi_object_delete_objects_are_deleted_one_by_one(self) -> None:
        """Google has sent 400 and 501, others 405. The responses come in any order."""
        for status in (400, 405, 501):
            self.setUp()
            keys = [f"b/{number}" for number in range(DELETES_AT_ONCE + 1)]
            asked = self.ask(self.store.delete_many(keys))
            self.assertEqual(self.sent()[0], "POST /base/bucket?delete=")
            self.answer(status, "<Error><Code>NotImplemented</Code></Error>")
            wanted = [*self.endpoint.connections]
            self.assertEqual(len(wanted), DELETES_AT_ONCE)
            for number, connection in enumerate(wanted):
                self.assertIn(b"DELETE /base/bucket/b/%d " % number, connection.transport.value())
                connection.transport.clear()
                status_line = (b"204 No", b"404 Not Found", b"403 Forbidden")[number if number < 3 else 0]
                connection.dataReceived(b"HTTP/1.1 " + status_line + b"\r\nContent-Length: 0\r\n\r\n")
            (last,) = [one for one in self.endpoint.connections if one.transport.value()]
            self.assertIn(b"DELETE /base/bucket/b/16 ", last.transport.value())
            last.dataReceived(b"HTTP/1.1 204 No\r\n\r\n")
            self.assertEqual(self.successResultOf(asked), ("b/2",))

    def test_a_refused_multi_object_delete_is_not_repeated_one_by_one(self) -> None:
        asked = self.ask(self.store.delete_many(["a", "b"]))
        self.answer(403, "<Error><Code>AccessDenied</Code></Error>")
        self.failureResultOf(asked, StoreError)
        self.assertEqual(self.wire.value(), b"")

    def test_a_missing_store_bucket_is_not_taken_for_deleted_objects(self) -> None:
        asked = self.ask(self.store.delete_many(["a"]))
        self.answer(501)
        self.answer(404, "<Error><Code>NoSuchBucket</Code></Error>")
        self.failureResultOf(asked, NoSuchBucket)

    def test_objects_that_were_not_there_count_as_deleted(self) -> None:
        asked = self.ask(self.store.delete_many(["a", "b", "c"]))
        errors = (("a", "NoSuchKey"), ("b", "AccessDenied"), ("c", "InternalError"))
        sent_text = "".join(f"<Error><Key>{key}</Key><Code>{code}</Code></Error>" for key, code in errors)
        self.answer(body=f"<DeleteResult>{sent_text}</DeleteResult>")
        self.assertEqual(self.successResultOf(asked), ("b", "c"))

    def test_without_a_list_of_open_uploads_there_are_none(self) -> None:
        for status in (405, 501):
            asked = self.ask(self.store.list_multiparts())
            self.answer(status)
            self.assertEqual(self.successResultOf(asked), ())
        asked = self.ask(self.store.list_multiparts())
        self.answer(403)
        self.failureResultOf(asked, StoreError)

    def test_an_etag_that_no_header_can_hold_is_a_failure(self) -> None:
        for etag in ("a\r\nb: c", "a b", 'a"b', "&#8364;"):
            asked = self.ask(self.store.complete_multipart("b/k", "u", ("e",)))
            self.answer(body=f'<R><ETag>"{etag}"</ETag></R>')
            self.assertEqual(str(self.failureResultOf(asked, StoreUnreachable).value), UNREADABLE)


class Lists(Case):
    def test_a_list_of_uploads_that_repeats_itself_ends(self) -> None:
        upload = "<Upload><Key>c</Key><UploadId>2</UploadId></Upload>"
        page = f"<R><IsTruncated>true</IsTruncated><NextKeyMarker>c</NextKeyMarker>{upload}</R>"
        asked = self.ask(self.store.list_multiparts())
        self.answer(body=page)
        self.assertNoResult(asked)
        self.answer(body=page)
        self.assertEqual({one.upload_id for one in self.successResultOf(asked)}, {"2"})

    def test_a_truncated_page_without_a_token_is_a_failure(self) -> None:
        """An old Ceph has only the first version of the listing; what it left out would be missing in a check."""
        asked = self.ask(self.store.list())
        self.answer(body="<R><IsTruncated>true</IsTruncated><NextMarker>k</NextMarker></R>")
        self.assertEqual(str(self.failureResultOf(asked, StoreUnreachable).value), NO_NEXT_PAGE)

    def test_keys_are_decoded_only_if_the_store_says_it_encoded_them(self) -> None:
        written = "<Contents><Key>a+%2B%01%C3%A4/b</Key><Size>1</Size></Contents>"
        for sent_text, key in (("<EncodingType>url</EncodingType>", "a +\x01ä/b"), ("", "a+%2B%01%C3%A4/b")):
            asked = self.ask(self.store.list("p", "t+/=", 7))
            self.assertEqual(
                self.sent()[0],
                "GET /base/bucket?continuation-token=t%2B%2F%3D&encoding-type=url&list-type=2&max-keys=7&prefix=p",
            )
            self.answer(body=f"<R>{sent_text}{written}</R>")
            self.assertEqual([one.key for one in self.successResultOf(asked).objects], [key])


class Places(Case):
    """Where the store's bucket is."""

    def test_the_location_of_a_new_bucket_is_sent_if_the_store_asks_for_it(self) -> None:
        asked = self.ask(self.store.ensure_bucket())
        self.answer(404)
        self.assertEqual(self.sent()[1]["content-length"], "0")
        self.answer(400, "<Error><Code>IllegalLocationConstraintException</Code></Error>")
        line, _, body = self.sent()
        self.assertEqual(line, "PUT /base/bucket")
        self.assertTrue(body.startswith("<CreateBucketConfiguration "), body)
        self.assertIn("<LocationConstraint>us-east-1</LocationConstraint>", body)
        self.answer(400, "<Error><Code>IllegalLocationConstraintException</Code></Error>")
        self.failureResultOf(asked, StoreError)

    def test_a_bucket_that_another_process_created_is_accepted(self) -> None:
        asked = self.ask(self.store.ensure_bucket())
        self.answer(404)
        self.answer(409, "<Error><Code>OperationAborted</Code></Error>")
        self.clock.advance(0.1)
        self.answer(409, "<Error><Code>BucketAlreadyOwnedByYou</Code></Error>")
        self.successResultOf(asked)
        asked = self.ask(self.store.ensure_bucket())
        self.answer(404)
        self.answer(409, "<Error><Code>BucketAlreadyExists</Code></Error>")
        self.failureResultOf(asked, StoreError)

    def test_a_refusal_names_the_region_of_the_bucket(self) -> None:
        asked = self.ask(self.store.stat("k"))
        self.answer(301, x_amz_bucket_region="eu-west-1")
        message = str(self.failureResultOf(asked, StoreError).value)
        self.assertEqual(message, "301 (HTTP 301); the region is eu-west-1")
        asked = self.ask(self.store.list())
        self.answer(400, "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>")
        message = str(self.failureResultOf(asked, StoreError).value)
        self.assertEqual(message, "AuthorizationHeaderMalformed (HTTP 400); the region is eu-west-1")
        asked = self.ask(self.store.list())
        self.answer(403, "<Error><Code>AccessDenied</Code></Error>")
        self.assertEqual(str(self.failureResultOf(asked, StoreError).value), "AccessDenied (HTTP 403)")


class Answers(Case):
    def test_a_missing_content_length_is_not_taken_for_zero(self) -> None:
        """An import would have taken a large object for an empty one."""
        asked = self.ask(self.store.stat("k"))
        self.endpoint.connections[-1].dataReceived(b"HTTP/1.1 200 OK\r\nETag: e\r\n\r\n")
        self.assertEqual(str(self.failureResultOf(asked, StoreUnreachable).value), NO_SIZE)

    def test_a_response_that_ends_with_the_connection(self) -> None:
        """As of HTTP/1.0, or of a server that closes: it is complete if the connection ended in order, and
        requested again if not."""
        for line in (b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"):
            asked = self.ask(self.store.list())
            for reason in (ConnectionLost(), ConnectionDone()):
                self.assertNoResult(asked)
                connection = self.endpoint.connections[-1]
                connection.dataReceived(line + b"<R><Contents><Key>k</Key><Size>1</Size></Contents></R>")
                connection.connectionLost(Failure(reason))
                self.clock.advance(0.1)
            self.assertEqual([one.key for one in self.successResultOf(asked).objects], ["k"])
            asked = self.ask(self.store.delete("k"))
            self.endpoint.connections[-1].dataReceived(line)
            self.endpoint.connections[-1].connectionLost(Failure(ConnectionDone()))
            self.successResultOf(asked)

    def test_a_truncated_document_is_a_failure_even_if_the_connection_ended_in_order(self) -> None:
        asked = self.ask(self.store.list())
        self.endpoint.connections[-1].dataReceived(b"HTTP/1.0 200 OK\r\n\r\n<R><Contents><Key>k</Key>")
        self.endpoint.connections[-1].connectionLost(Failure(ConnectionDone()))
        self.assertEqual(str(self.failureResultOf(asked, StoreUnreachable).value), UNREADABLE)


class Again(Case):
    def test_statuses_of_proxies_are_retried(self) -> None:
        for status in (408, 520, 522, 524, 598):
            asked = self.ask(self.store.stat("k"))
            self.answer(status)
            self.clock.advance(0.1)
            self.answer(200, ETag="e")
            self.successResultOf(asked)
        for status in (501, 505, 507):
            asked = self.ask(self.store.stat("k"))
            self.answer(status)
            self.failureResultOf(asked, StoreError)

    def test_a_part_that_took_long_to_send_is_sent_again(self) -> None:
        """Refusing at the end of one slow part used to lose uploads of hours."""
        asked = self.ask(self.store.put_part("k", "u", 1, b"x" * (3 * SLICE)))
        for _ in range(2):
            self.clock.advance(RETRY)
            self.wire.producer.resumeProducing()
        self.clock.advance(RETRY - 0.2)
        self.answer(503, "<Error><Code>SlowDown</Code></Error>")
        self.clock.advance(0.1)
        line, _, body = self.sent()
        self.assertEqual((line, len(body)), ("PUT /base/bucket/k?partNumber=1&uploadId=u", SLICE))
        for _ in range(2):
            self.wire.producer.resumeProducing()
        self.clock.advance(RETRY - 0.1)
        self.answer(503)
        self.failureResultOf(asked, StoreUnreachable)

    def test_completing_an_upload_that_took_long_is_tried_again(self) -> None:
        asked = self.ask(self.store.complete_multipart("k", "u", ["e"]))
        connection = self.endpoint.connections[-1]
        connection.dataReceived(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            self.clock.advance(IDLE * 0.9)
            connection.dataReceived(b"1\r\n \r\n")
        connection.dataReceived(b"2a\r\n<Error><Code>InternalError</Code></Error>  \r\n0\r\n\r\n")
        self.clock.advance(0.1)
        self.answer(body="<R><ETag>e-1</ETag></R>")
        self.assertEqual(self.successResultOf(asked), "e-1")
