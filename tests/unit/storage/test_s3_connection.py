"""A connection to the store, in memory: its errors, its flow control, and whether it is used again."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from project_service.network import SEND_BYTES
from project_service.storage.s3.connection import READ_BYTES, Connection, MemoryBody, StoreResponse
from project_service.storage.s3.errors import BrokenAnswer

HEAD = b"GET /b/k HTTP/1.1\r\nHost: store\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


class Wire(StringTransport):
    """A fake socket, with ``bufferSize`` and ``SEND_LIMIT``. It asks its producer for more when a test says so."""

    bufferSize = SEND_LIMIT = 0
    aborted = False

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        super().registerProducer(producer, streaming)
        if not streaming:
            producer.resumeProducing()

    def abortConnection(self) -> None:
        self.aborted = True


class Reader:
    """Records what it gets. It pauses if ``pauses`` is set, and resumes at once if ``resumes`` is."""

    response: StoreResponse

    def __init__(self, pauses: bool = False, resumes: bool = False) -> None:
        self.data = b""
        self.complete: bool | None = None
        self.pauses = pauses
        self.resumes = resumes

    def read(self, response: StoreResponse) -> None:
        self.response = response
        response.deliver(self)

    def take(self, source: int, most: int) -> int:
        return 0

    def received(self, data: bytes) -> None:
        self.data += data
        if self.pauses:
            self.response.pause()
        if self.resumes:
            self.response.resume()

    def ended(self, complete: bool) -> None:
        self.complete = complete


class Pool:
    def __init__(self) -> None:
        self.events: list[str] = []

    def free(self, connection: Connection) -> None:
        self.events.append("free")

    def gone(self, connection: Connection) -> None:
        self.events.append("gone")


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.pool = Pool()
        self.wire = Wire()
        pool: Any = self.pool
        self.connection = Connection(pool)
        self.connection.makeConnection(self.wire)

    def send(self, body: MemoryBody | None = None, method: bytes = b"GET") -> Deferred[StoreResponse]:
        return self.connection.send(method, HEAD, body)

    def read(self, reader: Reader) -> None:
        """Sends a request and reads the response as it arrives."""
        self.send().addCallback(reader.read)

    def lose(self) -> None:
        self.connection.connectionLost(Failure(ConnectionLost("10.0.0.1 went away")))


class Answers(Case):
    """Responses that arrive as they should."""

    def test_a_small_response_frees_the_connection_before_it_is_read(self) -> None:
        answer = self.send()
        at_once = (self.wire.bufferSize, self.wire.SEND_LIMIT)
        self.assertEqual((self.wire.value(), *at_once), (HEAD, READ_BYTES, SEND_BYTES))
        self.connection.dataReceived(OK % 5 + b"hello")
        self.assertEqual(self.pool.events, ["free"])
        reader = Reader()
        response = self.successResultOf(answer)
        reader.read(response)
        self.assertEqual((response.code, response.length, reader.data), (200, 5, b"hello"))
        self.assertTrue(reader.complete)
        self.assertRaises(RuntimeError, response.deliver, reader)

    def test_only_a_complete_unread_body_is_buffered(self) -> None:
        answer = self.send()
        self.connection.dataReceived(OK % 10 + b"hello")
        response = self.successResultOf(answer)
        self.assertIsNone(response.buffered())
        self.connection.dataReceived(b"world")
        self.assertEqual(response.buffered(), b"helloworld")
        Reader().read(response)
        self.assertIsNone(response.buffered())
        answer = self.send()
        self.connection.dataReceived(OK % 10 + b"hello")
        self.lose()
        self.assertIsNone(self.successResultOf(answer).buffered())

    def test_requests_follow_each_other_on_one_connection(self) -> None:
        for number in range(3):
            answer = self.send()
            self.connection.dataReceived(OK % 1 + b"%d" % number)
            reader = Reader()
            reader.read(self.successResultOf(answer))
            self.assertEqual(reader.data, b"%d" % number)
        self.assertEqual(self.pool.events, ["free"] * 3)

    def test_an_unread_body_is_paused(self) -> None:
        answer = self.send()
        self.connection.dataReceived(OK % 10 + b"hello")
        self.assertEqual(self.wire.producerState, "paused")
        reader = Reader()
        reader.read(self.successResultOf(answer))
        self.assertEqual((self.wire.producerState, reader.data), ("producing", b"hello"))
        self.connection.dataReceived(b"world")
        self.assertEqual((reader.data, self.pool.events), (b"helloworld", ["free"]))

    def test_the_reader_controls_the_flow_from_its_first_bytes(self) -> None:
        for waiting in (False, True):
            for pauses, resumes in ((False, False), (True, False), (True, True)):
                self.setUp()
                reader = Reader(pauses, resumes)
                if waiting:
                    answer = self.send()
                else:
                    self.read(reader)
                self.connection.dataReceived(OK % 9 + b"one")
                if waiting:
                    reader.read(self.successResultOf(answer))
                expected = "paused" if pauses and not resumes else "producing"
                self.assertEqual((reader.data, self.wire.producerState), (b"one", expected))

    def test_a_head_in_pieces(self) -> None:
        answer = self.send()
        for piece in (b"HTTP/1.1 200 OK\r\nContent-Len", b"gth: 1\r\n\r", b"\n"):
            self.assertNoResult(answer)
            self.connection.dataReceived(piece)
        self.assertEqual(self.successResultOf(answer).length, 1)

    def test_the_reader_pauses_the_store(self) -> None:
        reader = Reader(pauses=True)
        self.read(reader)
        self.connection.dataReceived(OK % 9 + b"one")
        self.assertEqual(self.wire.producerState, "paused")
        reader.response.resume()
        self.assertEqual(self.wire.producerState, "producing")
        self.connection.dataReceived(b"two")
        self.assertEqual((self.wire.producerState, self.pool.events), ("paused", []))

    def test_a_reader_that_pauses_at_the_end_does_not_pause_the_next_response(self) -> None:
        reader = Reader(pauses=True)
        self.read(reader)
        self.connection.dataReceived(OK % 6 + b"one")
        self.connection.dataReceived(b"two")
        self.assertEqual((reader.data, self.wire.producerState), (b"onetwo", "producing"))
        answer = self.send()
        reader.response.pause()
        reader.response.resume()
        reader.response.pause()
        reader.response.close()
        self.assertEqual((self.wire.producerState, self.wire.aborted), ("producing", False))
        self.connection.dataReceived(OK % 0)
        self.assertEqual(self.successResultOf(answer).length, 0)

    def test_a_reader_that_leaves_closes_the_connection(self) -> None:
        reader = Reader()
        self.read(reader)
        self.connection.dataReceived(OK % 9 + b"one")
        reader.response.close()
        self.assertTrue(self.wire.aborted)
        self.lose()
        self.assertIs(reader.complete, False)
        self.assertEqual(self.pool.events, ["gone"])

    def test_connection_close_is_respected(self) -> None:
        self.send()
        self.connection.dataReceived(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self.assertEqual((self.pool.events, self.wire.disconnecting), ([], True))

    def test_a_response_to_head_has_no_body(self) -> None:
        self.send(method=b"HEAD")
        self.connection.dataReceived(OK % 5)
        self.assertEqual(self.pool.events, ["free"])


class Faults(Case):
    def test_a_connection_lost_before_the_response_names_only_the_kind_of_failure(self) -> None:
        answer = self.send()
        self.lose()
        self.assertEqual(str(self.failureResultOf(answer, BrokenAnswer).value), "ConnectionLost")
        self.assertEqual(self.pool.events, ["gone"])

    def test_a_truncated_body_is_an_error(self) -> None:
        for framing in (b"Content-Length: 9\r\n\r\none", b"Transfer-Encoding: chunked\r\n\r\n9\r\none"):
            self.setUp()
            reader = Reader()
            self.read(reader)
            self.connection.dataReceived(b"HTTP/1.1 200 OK\r\n" + framing)
            self.lose()
            self.assertIs(reader.complete, False)
            self.assertEqual(reader.data, b"one")

    def test_a_body_without_a_length_ends_as_possibly_truncated(self) -> None:
        reader = Reader()
        self.read(reader)
        self.connection.dataReceived(b"HTTP/1.1 200 OK\r\n\r\none")
        self.assertIsNone(reader.response.length)
        self.lose()
        self.assertIs(reader.complete, False)

    def test_bytes_that_are_not_http_close_the_connection(self) -> None:
        answer = self.send()
        self.connection.dataReceived(b"SSH-2.0-x\r\n\r\n")
        self.failureResultOf(answer, BrokenAnswer)
        self.assertTrue(self.wire.aborted)

    def test_bytes_after_the_response_close_the_connection(self) -> None:
        reader = Reader()
        self.read(reader)
        self.connection.dataReceived(OK % 4 + b"one")
        self.connection.dataReceived(b"two")
        self.assertIs(reader.complete, False)
        self.assertEqual((self.wire.aborted, self.pool.events), (True, []))

    def test_an_unrequested_response_closes_the_connection(self) -> None:
        self.connection.dataReceived(OK % 0)
        self.assertTrue(self.wire.aborted)

    def test_cancelling_closes_the_connection(self) -> None:
        answer = self.send()
        answer.cancel()
        self.failureResultOf(answer, CancelledError)
        self.assertTrue(self.wire.aborted)
        self.connection.dataReceived(OK % 0)
        self.lose()
        self.assertEqual(self.pool.events, ["gone"])
