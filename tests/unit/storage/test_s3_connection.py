"""A connection to the store, in memory: its errors, its flow control, and whether it is used again."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss

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


class Reader(Protocol):
    """Records what it gets. It pauses if ``pauses`` is set, and resumes at once if ``resumes`` is."""

    def __init__(self, pauses: bool = False, resumes: bool = False) -> None:
        self.data = b""
        self.reason: Failure | None = None
        self.pauses = pauses
        self.resumes = resumes

    def dataReceived(self, data: bytes) -> None:
        self.data += data
        if self.pauses:
            self.producer.pauseProducing()
        if self.resumes:
            self.producer.resumeProducing()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = reason

    @property
    def producer(self) -> Any:
        return self.transport


class Owner:
    def __init__(self) -> None:
        self.events: list[str] = []

    def free(self, connection: Connection) -> None:
        self.events.append("free")

    def gone(self, connection: Connection) -> None:
        self.events.append("gone")


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.owner = Owner()
        self.wire = Wire()
        self.connection = Connection(self.owner)
        self.connection.makeConnection(self.wire)

    def send(self, body: MemoryBody | None = None, method: bytes = b"GET") -> Deferred[StoreResponse]:
        return self.connection.send(method, HEAD, body)

    def read(self, reader: Reader) -> None:
        """Sends a request and reads the response as it arrives."""
        self.send().addCallback(lambda response: response.deliverBody(reader))

    def lose(self) -> None:
        self.connection.connectionLost(Failure(ConnectionLost("10.0.0.1 went away")))


class Answers(Case):
    """Responses that arrive as they should."""

    def test_a_small_response_frees_the_connection_before_it_is_read(self) -> None:
        answer = self.send()
        at_once = (self.wire.bufferSize, self.wire.SEND_LIMIT)
        self.assertEqual((self.wire.value(), *at_once), (HEAD, READ_BYTES, SEND_BYTES))
        self.connection.dataReceived(OK % 5 + b"hello")
        self.assertEqual(self.owner.events, ["free"])
        reader = Reader()
        response = self.successResultOf(answer)
        response.deliverBody(reader)
        self.assertEqual((response.code, response.length, reader.data), (200, 5, b"hello"))
        assert reader.reason is not None
        self.assertTrue(reader.reason.check(ResponseDone))
        self.assertRaises(RuntimeError, response.deliverBody, reader)

    def test_whole_returns_a_complete_unread_body_only(self) -> None:
        answer = self.send()
        self.connection.dataReceived(OK % 10 + b"hello")
        response = self.successResultOf(answer)
        self.assertIsNone(response.whole())
        self.connection.dataReceived(b"world")
        self.assertEqual(response.whole(), b"helloworld")
        response.deliverBody(Reader())
        self.assertIsNone(response.whole())
        answer = self.send()
        self.connection.dataReceived(OK % 10 + b"hello")
        self.lose()
        self.assertIsNone(self.successResultOf(answer).whole())

    def test_requests_follow_each_other_on_one_connection(self) -> None:
        for number in range(3):
            answer = self.send()
            self.connection.dataReceived(OK % 1 + b"%d" % number)
            reader = Reader()
            self.successResultOf(answer).deliverBody(reader)
            self.assertEqual(reader.data, b"%d" % number)
        self.assertEqual(self.owner.events, ["free"] * 3)

    def test_an_unread_body_is_paused(self) -> None:
        answer = self.send()
        self.connection.dataReceived(OK % 10 + b"hello")
        self.assertEqual(self.wire.producerState, "paused")
        reader = Reader()
        self.successResultOf(answer).deliverBody(reader)
        self.assertEqual((self.wire.producerState, reader.data), ("producing", b"hello"))
        self.connection.dataReceived(b"world")
        self.assertEqual((reader.data, self.owner.events), (b"helloworld", ["free"]))

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
                    self.successResultOf(answer).deliverBody(reader)
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
        reader.producer.resumeProducing()
        self.assertEqual(self.wire.producerState, "producing")
        self.connection.dataReceived(b"two")
        self.assertEqual((self.wire.producerState, self.owner.events), ("paused", []))

    def test_a_reader_that_pauses_at_the_end_does_not_pause_the_next_response(self) -> None:
        reader = Reader(pauses=True)
        self.read(reader)
        self.connection.dataReceived(OK % 6 + b"one")
        self.connection.dataReceived(b"two")
        self.assertEqual((reader.data, self.wire.producerState), (b"onetwo", "producing"))
        answer = self.send()
        reader.producer.pauseProducing()
        reader.producer.resumeProducing()
        reader.producer.pauseProducing()
        reader.producer.loseConnection()
        self.assertEqual((self.wire.producerState, self.wire.aborted), ("producing", False))
        self.connection.dataReceived(OK % 0)
        self.assertEqual(self.successResultOf(answer).length, 0)

    def test_a_reader_that_leaves_closes_the_connection(self) -> None:
        reader = Reader()
        self.read(reader)
        self.connection.dataReceived(OK % 9 + b"one")
        reader.producer.loseConnection()
        self.assertTrue(self.wire.aborted)
        self.lose()
        assert reader.reason is not None
        self.assertTrue(reader.reason.check(BrokenAnswer))
        self.assertEqual(self.owner.events, ["gone"])

    def test_connection_close_is_respected(self) -> None:
        self.send()
        self.connection.dataReceived(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self.assertEqual((self.owner.events, self.wire.disconnecting), ([], True))

    def test_a_response_to_head_has_no_body(self) -> None:
        self.send(method=b"HEAD")
        self.connection.dataReceived(OK % 5)
        self.assertEqual(self.owner.events, ["free"])


class Faults(Case):
    def test_a_connection_lost_before_the_response_names_only_the_kind_of_failure(self) -> None:
        answer = self.send()
        self.lose()
        self.assertEqual(str(self.failureResultOf(answer, BrokenAnswer).value), "ConnectionLost")
        self.assertEqual(self.owner.events, ["gone"])

    def test_a_truncated_body_is_an_error(self) -> None:
        for framing in (b"Content-Length: 9\r\n\r\none", b"Transfer-Encoding: chunked\r\n\r\n9\r\none"):
            self.setUp()
            reader = Reader()
            self.read(reader)
            self.connection.dataReceived(b"HTTP/1.1 200 OK\r\n" + framing)
            self.lose()
            assert reader.reason is not None
            self.assertTrue(reader.reason.check(BrokenAnswer))
            self.assertEqual(reader.data, b"one")

    def test_a_body_without_a_length_ends_as_possibly_truncated(self) -> None:
        reader = Reader()
        self.read(reader)
        self.connection.dataReceived(b"HTTP/1.1 200 OK\r\n\r\none")
        self.assertIsNone(reader.producer.length)
        self.lose()
        assert reader.reason is not None
        self.assertTrue(reader.reason.check(PotentialDataLoss))

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
        assert reader.reason is not None
        self.assertTrue(reader.reason.check(BrokenAnswer))
        self.assertEqual((self.wire.aborted, self.owner.events), (True, []))

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
        self.assertEqual(self.owner.events, ["gone"])
