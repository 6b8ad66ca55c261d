"""Sending the body of a request to the store: together with its head, or as fast as the socket accepts it."""

from __future__ import annotations

from project_service.storage.s3.connection import SLICE, MemoryBody
from tests.unit.storage.test_s3_connection import HEAD, OK, Case


class Bodies(Case):
    def test_a_small_body_is_sent_with_the_head(self) -> None:
        answer = self.send(MemoryBody(b"hello"), b"PUT")
        self.assertEqual((self.wire.value(), self.wire.producer), (HEAD + b"hello", None))
        self.connection.dataReceived(OK % 0)
        self.successResultOf(answer)
        self.assertEqual(self.pool.events, ["free"])

    def test_a_large_body_waits_for_the_socket(self) -> None:
        payload = bytes(range(256)) * (3 * SLICE // 256)
        body = MemoryBody(payload)
        answer = self.send(body, b"PUT")
        for sent in (1, 2):
            self.assertEqual(len(self.wire.value()), len(HEAD) + sent * SLICE)
            body.resumeProducing()
        self.assertEqual((self.wire.value(), self.wire.producer), (HEAD + payload, None))
        self.connection.dataReceived(OK % 0)
        self.successResultOf(answer)
        self.assertEqual((self.wire.aborted, self.pool.events), (False, ["free"]))

    def test_a_response_before_the_end_of_the_body_closes_the_connection(self) -> None:
        body = MemoryBody(b"x" * (3 * SLICE))
        answer = self.send(body, b"PUT")
        self.connection.dataReceived(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
        self.assertEqual(self.successResultOf(answer).code, 503)
        self.assertEqual((self.wire.aborted, self.pool.events), (True, []))

    def test_a_body_that_is_sent_no_more_lets_go_of_its_memory(self) -> None:
        payload = bytearray(3 * SLICE)
        body = MemoryBody(payload)
        self.send(body, b"PUT").addErrback(lambda _: None)
        with self.assertRaises(BufferError):
            payload.append(0)
        body.stopProducing()
        payload.append(0)
