"""Requests to the store: which are tried again, and how long is waited."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectingCancelledError, ConnectionAborted, ConnectionLost
from twisted.python.failure import Failure

from project_service.storage.durations import MAX_RESPONSE_SECONDS
from project_service.storage.s3.connection import SLICE
from project_service.storage.s3.errors import (
    CorruptTransfer,
    NoSuchBucket,
    NoSuchObject,
    StoreError,
    StoreUnreachable,
)
from project_service.storage.s3.requests import MAX_RESPONSE_BYTES
from project_service.storage.s3.xml import StoredStat
from tests.unit.storage.test_s3_client import IDLE, RETRY, Case


class Refusals(Case):
    def test_temporary_refusals_are_retried(self) -> None:
        for status, code in (
            (429, ""), (500, ""), (502, ""), (503, "SlowDown"), (504, ""), (400, "RequestTimeout"),
            (400, "BadDigest"), (400, "IncompleteBody"), (400, "XAmzContentSHA256Mismatch"), (409, "InternalError"),
        ):  # fmt: skip
            asked = self.ask(self.store.put("k", b"x", "a/b", {}))
            first = self.sent()
            self.answer(status, f"<Error><Code>{code}</Code></Error>")
            self.clock.advance(0.09)
            self.assertEqual(self.wire.value(), b"")
            self.clock.advance(0.02)
            self.assertEqual(self.sent(), first, code or status)
            self.answer(ETag='"9dd4e461268c8034f5c8564e155c67a6"')
            self.successResultOf(asked)

    def test_permanent_refusals_are_not_retried(self) -> None:
        for status, code, kind in (
            (400, "InvalidRequest", StoreError), (501, "", StoreError), (403, "AccessDenied", StoreError),
            (301, "PermanentRedirect", StoreError), (404, "", NoSuchObject), (400, "NoSuchUpload", NoSuchObject),
            (404, "NoSuchBucket", NoSuchBucket),
        ):  # fmt: skip
            asked = self.ask(self.store.put("k", b"x", "a/b", {}))
            self.answer(status, f"<Error><Code>{code}</Code></Error>" if code else "")
            refusal = self.failureResultOf(asked, kind).value
            self.assertEqual((refusal.status, refusal.code), (status, code or str(status)))
            self.assertEqual(self.clock.getDelayedCalls()[:-1], [])

    def test_an_error_document_with_status_200_is_an_error(self) -> None:
        for code, kind in (("InternalError", None), ("InvalidPart", StoreError)):
            asked = self.ask(self.store.complete_multipart("k", "u", ["e"]))
            # While it completes an upload, a store sends white space.
            self.answer(body=f"\n <?xml version='1.0'?><Error><Code>{code}</Code></Error>")
            if kind is None:
                self.clock.advance(0.1)
                self.answer(body='\n <?xml version="1.0"?><R><ETag>"e-1"</ETag></R>')
                self.assertEqual(self.successResultOf(asked), "e-1")
            else:
                self.failureResultOf(asked, kind)

    def test_a_lost_connection_is_retried_on_another(self) -> None:
        asked = self.ask(self.store.stat("k"))
        first = self.sent()
        for begun in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n", b"SSH-2.0-x\r\n\r\n"):
            connection = self.endpoint.connections[-1]
            connection.dataReceived(begun)
            connection.connectionLost(Failure(ConnectionLost()))
            self.clock.advance(0.4)
            self.assertEqual(self.sent(), first)
        self.answer(ETag='"e"', Content_Type="a/b")
        self.assertEqual(self.successResultOf(asked), StoredStat(0, "e", "a/b"))

    def test_a_truncated_document_is_requested_again(self) -> None:
        asked = self.ask(self.store.list())
        first = self.sent()
        for framing in (b"Content-Length: 9\r\n\r\n<R/>", b"\r\n<R/>"):
            connection = self.endpoint.connections[-1]
            connection.dataReceived(b"HTTP/1.1 200 OK\r\n" + framing)
            connection.connectionLost(Failure(ConnectionLost()))
            self.clock.advance(0.4)
            self.assertEqual(self.sent(), first)
        self.answer(body="<R/>")
        self.assertEqual(self.successResultOf(asked).objects, ())

    def test_pauses_double_and_the_fourth_attempt_is_the_last(self) -> None:
        """Each pause is a random part of that, so that requests refused together do not return together."""
        for self.jitter in (1.0, 0.25):
            asked = self.ask(self.store.stat("k"))
            for pause in (0.1, 0.2, 0.4):
                self.answer(503)
                self.assertNoResult(asked)
                self.clock.advance(pause * self.jitter)
                self.assertEqual(self.sent()[0], "HEAD /base/bucket/k")
            self.answer(503)
            self.assertEqual(str(self.failureResultOf(asked, StoreUnreachable).value), "503")

    def test_nothing_is_retried_after_the_allowed_time(self) -> None:
        for late in (False, True):
            asked = self.ask(self.store.stat("k"))
            self.clock.advance(RETRY - 0.1 + (0.01 if late else 0))
            self.answer(503)
            if late:
                self.failureResultOf(asked, StoreUnreachable)
            else:
                self.clock.advance(0.1)
                self.answer(200, ETag="e")
                self.successResultOf(asked)

    def test_another_checksum_is_accepted_only_with_the_stores_own_encryption_keys(self) -> None:
        for encryption, kind in (("", CorruptTransfer), ("AES256", CorruptTransfer), ("aws:kms", None)):
            asked = self.ask(self.store.put("k", b"x", "a/b", {"key": "a%20b"}))
            self.assertEqual(self.sent()[1]["x-amz-meta-key"], "a%20b")
            self.answer(ETag=f'"{"0" * 32}"', x_amz_server_side_encryption=encryption)
            if kind is None:
                self.assertEqual(self.successResultOf(asked), "0" * 32)
            else:
                self.failureResultOf(asked, kind)


class Silence(Case):
    """How long a store that says nothing is waited for."""

    def test_sending_a_body_slowly_is_not_silence(self) -> None:
        asked = self.ask(self.store.put("k", b"x" * (4 * SLICE), "a/b", {}))
        for _ in range(3):
            self.clock.advance(IDLE * 0.9)
            self.wire.producer.resumeProducing()
        self.assertNoResult(asked)
        self.assertIsNone(self.wire.producer)
        self.clock.advance(IDLE)
        self.failureResultOf(asked, StoreUnreachable)

    def test_a_store_that_does_not_respond_is_given_up(self) -> None:
        asked = self.ask(self.store.stat("k"))
        self.clock.advance(IDLE)
        self.failureResultOf(asked, StoreUnreachable)
        self.assertTrue(self.wire.aborted)

    def test_a_slow_response_is_waited_for_as_long_as_bytes_come(self) -> None:
        """A store that completes an upload says 200 first, and then sends white space for minutes."""
        asked = self.ask(self.store.complete_multipart("k", "u", ["e"]))
        connection = self.endpoint.connections[-1]
        connection.dataReceived(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(30):
            self.clock.advance(IDLE * 0.9)
            connection.dataReceived(b"1\r\n \r\n")
        self.assertNoResult(asked)
        self.clock.advance(IDLE)
        self.failureResultOf(asked, StoreUnreachable)
        self.assertTrue(self.wire.aborted)
        connection.connectionLost(Failure(ConnectionAborted()))

    def test_a_response_that_never_ends_is_given_up(self) -> None:
        asked = self.ask(self.store.list())
        connection = self.endpoint.connections[-1]
        connection.dataReceived(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(int(MAX_RESPONSE_SECONDS / IDLE * 2)):
            self.assertNoResult(asked)
            connection.dataReceived(b" ")
            self.clock.advance(IDLE / 2)
        connection.dataReceived(b" ")
        self.clock.advance(IDLE / 2)
        self.failureResultOf(asked, StoreUnreachable)
        self.assertTrue(self.wire.aborted)

    def test_cancelling_closes_the_connection(self) -> None:
        for begun in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"):
            asked = self.ask(self.store.list())
            self.endpoint.connections[-1].dataReceived(begun)
            asked.cancel()
            self.failureResultOf(asked, CancelledError)
            self.assertTrue(self.wire.aborted)
            self.assertEqual(self.clock.getDelayedCalls(), [])
            self.setUp()

    def test_cancelling_while_connecting(self) -> None:
        address = IPv4Address("TCP", "192.0.2.1", 8333)
        for waited, kind in ((0.0, CancelledError), (IDLE, StoreUnreachable)):
            connecting: Deferred[Any] = Deferred(lambda it: it.errback(ConnectingCancelledError(address)))
            self.endpoint.answers = [connecting]
            asked = self.ask(self.store.stat("k"))
            self.clock.advance(waited)
            asked.cancel()
            self.failureResultOf(asked, kind)

    def test_a_response_that_is_too_long_is_given_up(self) -> None:
        asked = self.ask(self.store.list())
        connection = self.endpoint.connections[-1]
        connection.dataReceived(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(8):
            self.assertFalse(self.wire.aborted)
            connection.dataReceived(b"x" * (MAX_RESPONSE_BYTES // 8))
        connection.dataReceived(b"x")
        self.assertTrue(self.wire.aborted)
        connection.connectionLost(Failure(ConnectionAborted()))
        self.clock.advance(0.1)
        # The same goes for a long response that does end.
        self.answer(body="<R/>" + " " * MAX_RESPONSE_BYTES)
        self.clock.advance(0.2)
        self.answer(body="<R/>")
        self.assertEqual(self.successResultOf(asked).objects, ())
