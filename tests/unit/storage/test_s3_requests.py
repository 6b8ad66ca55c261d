"""One request to the store: what is sent through treq, which requests are sent again, and how long is waited."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.error import (
    ConnectingCancelledError,
    ConnectionAborted,
    ConnectionLost,
    ConnectionRefusedError,
)
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from project_service.lifecycle import start
from project_service.storage.durations import MAX_RESPONSE_SECONDS
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.connection import (
    SLICE,
    Connection,
    ConnectionPool,
    MemoryBody,
    ResponseParser,
    StoreResponse,
)
from project_service.storage.s3.errors import (
    NO_ANSWER,
    CorruptTransfer,
    NoSuchBucket,
    NoSuchObject,
    StoreError,
    StoreUnreachable,
)
from project_service.storage.s3.requests import MAX_RESPONSE_BYTES, MAX_TRIES, RetryingClient, Sender
from project_service.storage.s3.signing import EMPTY_SHA256, Address, Signer
from project_service.storage.s3.xml import StoredStat
from tests.captured_log import captured_logs
from tests.unit.storage.test_s3_connection import Endpoint, Wire

ADDRESS = Address("http://store:9000/base", "bucket")
SIGNER = Signer("AKID", "secret")
NOW = datetime(2026, 11, 21, 10, 0, 1, 999, UTC)
IDLE, RETRY = 10.0, 5.0


class Pool:
    """A pool that records what it is asked to send."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes, Any]] = []
        self.answers: list[Deferred[StoreResponse]] = []

    def request(self, method: bytes, head: bytes, body: Any) -> Deferred[StoreResponse]:
        self.sent.append((method, head, body))
        self.answers.append(Deferred())
        return self.answers[-1]


class Sent(SynchronousTestCase):
    def setUp(self) -> None:
        self.pool = Pool()
        pool: Any = self.pool
        self.sender = Sender(pool, Clock(), ADDRESS, SIGNER, lambda: NOW)

    def send(
        self, key: str, query: Any = None, headers: dict[str, str] | None = None, body: Any = None
    ) -> Deferred[Any]:
        return self.sender.send("PUT", key, query, headers or {}, EMPTY_SHA256, body)

    def test_the_head_is_exactly_what_was_signed(self) -> None:
        key, query = "a/%41 ü//b", {"partNumber": "1"}
        self.send(key, query, {"content-type": "text/plain"}, MemoryBody(b"hello"))
        ((method, head, body),) = self.pool.sent
        first, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
        self.assertEqual(first, "PUT /base/bucket/a/%2541%20%C3%BC//b?partNumber=1 HTTP/1.1")
        self.assertEqual((method, body.length), (b"PUT", 5))
        signed = {"host": "store:9000", "user-agent": "project-service", "content-type": "text/plain"}
        expected = SIGNER.headers("PUT", ADDRESS.url(key, query), signed, EMPTY_SHA256, NOW)
        self.assertEqual(lines, [*(f"{n}: {v}" for n, v in expected.items()), "Content-Length: 5"])
        self.assertIn("X-Amz-Date: 20261121T100001Z", lines)
        (authorization,) = (line for line in lines if line.startswith("Authorization: "))
        self.assertNotIn("user-agent", authorization)

    def test_headers_and_urls_cannot_split_a_request(self) -> None:
        for headers in ({"x-a": "b\r\nx: y"}, {"x-a": "b\ny"}, {"x-a\r\nx": "b"}, {"x-a": "b\r"}):
            self.assertRaises(ValueError, self.send, "k", headers=headers)
        self.sender.address = Address("http://store:9000", "bucket of a command line")
        self.assertRaises(ValueError, self.send, "k")
        self.assertEqual(self.pool.sent, [])
        self.sender.address = ADDRESS
        for text in ("k HTTP/1.1", "k\r\nX: y", "k\nX: y"):
            self.send(text, {text: text})
            first, *lines = self.pool.sent.pop()[1].split(b"\r\n")
            self.assertEqual((first.count(b" "), first.count(b"\n")), (2, 0), first)
            self.assertNotIn(b"X: y", lines)

    def test_treq_neither_decodes_bodies_nor_keeps_cookies(self) -> None:
        answered = self.send("k")
        head = ResponseParser()
        head.feed(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nSet-Cookie: a=b\r\nETag: e\r\nContent-Length: 1\r\n\r\n"
        )
        connection: Any = Connection
        self.pool.answers[0].callback(StoreResponse(connection, head))
        response = self.successResultOf(answered)
        self.assertIsInstance(response, StoreResponse)
        self.assertEqual(response.headers[b"etag"], b"e")
        self.assertEqual(response.headers[b"content-encoding"], b"gzip")
        self.send("k")
        self.assertNotIn(b"cookie", self.pool.sent[-1][1].lower())


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(1000)
        self.endpoint = Endpoint(Wire)
        pool = ConnectionPool(self.clock, self.endpoint, 5)
        sender = Sender(pool, self.clock, ADDRESS, SIGNER, lambda: NOW)
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

    def test_pauses_double_and_the_fourth_try_is_the_last(self) -> None:
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

    def test_the_allowed_time_counts_from_the_last_byte_that_moved(self) -> None:
        for moved in (False, True):
            asked = self.ask(self.store.put("k", b"x" * (4 * SLICE), "a/b", {}))
            self.clock.advance(RETRY - 0.1)
            if moved:
                self.wire.producer.resumeProducing()
            self.clock.advance(1)
            opened = len(self.endpoint.connections)
            self.endpoint.connections[-1].connectionLost(Failure(ConnectionLost()))
            self.clock.advance(0.1)
            if moved:
                self.assertEqual(len(self.endpoint.connections), opened + 1)
                asked.cancel()
                self.failureResultOf(asked, CancelledError)
            else:
                self.failureResultOf(asked, StoreUnreachable)

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

    def test_the_log_names_the_store_and_what_is_wrong_with_it(self) -> None:
        with captured_logs() as events:
            self.endpoint.answers = [fail(ConnectionRefusedError("secret")) for _ in range(MAX_TRIES)]
            asked = self.ask(self.store.stat("k"))
            for _ in range(MAX_TRIES - 1):
                self.clock.advance(1)
            self.failureResultOf(asked, StoreUnreachable)
            asked = self.ask(self.store.stat("k"))
            self.clock.advance(IDLE)
            self.assertEqual(str(self.failureResultOf(asked, StoreUnreachable).value), NO_ANSWER)
            # Each reason once, until the store can be used again.
            for _ in range(3):
                asked = self.ask(self.store.stat("k"))
                self.clock.advance(IDLE)
                self.failureResultOf(asked, StoreUnreachable)
            for _ in range(2):
                asked = self.ask(self.store.stat("k"))
                self.endpoint.connections[-1].dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
                self.successResultOf(asked)
            asked = self.ask(self.store.stat("k"))
            self.clock.advance(IDLE)
            self.failureResultOf(asked, StoreUnreachable)
        self.assertEqual(
            [formatEvent(event) for event in events],
            [
                "The store http://store:9000 cannot be used: no server listens there",
                "The store http://store:9000 cannot be used: it did not answer in time",
                "The store http://store:9000 can be used again",
                "The store http://store:9000 cannot be used: it did not answer in time",
            ],
        )

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
