"""What is sent for a request, through treq and signed, and what must not be sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.storage.s3.agent import TreqClient
from project_service.storage.s3.connection import Connection, MemoryBody, ResponseParser, StoreResponse
from project_service.storage.s3.requests import Sender
from project_service.storage.s3.signing import EMPTY_SHA256, Address, Signer

ADDRESS = Address("http://store:9000/base", "bucket")
SIGNER = Signer("AKID", "secret")
NOW = datetime(2026, 11, 21, 10, 0, 1, 999, UTC)


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
        self.sender = Sender(TreqClient(pool, Clock()), ADDRESS, SIGNER, lambda: NOW)

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
