"""Connections to the store, in memory: errors, flow control, request bodies, and which connection the pool uses."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from project_service.network import SEND_BYTES
from project_service.storage.s3 import client
from project_service.storage.s3.client import store_endpoint
from project_service.storage.s3.connection import (
    IDLE_CONNECTION_SECONDS,
    READ_BYTES,
    SLICE,
    Connection,
    ConnectionPool,
    MemoryBody,
    StoreResponse,
)
from project_service.storage.s3.errors import BrokenResponse
from project_service.storage.s3.signing import Address

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
    def test_a_connection_lost_before_the_response_says_only_that_it_was_lost(self) -> None:
        answer = self.send()
        self.lose()
        self.assertEqual(str(self.failureResultOf(answer, BrokenResponse).value), "it closed the connection")
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
        self.failureResultOf(answer, BrokenResponse)
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


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@implementer(IStreamClientEndpoint)
class Endpoint:
    """A fake endpoint that connects at once; ``answers`` says what it does otherwise, one after the other."""

    def __init__(self, transport: type[StringTransport] = StringTransport) -> None:
        self.transport = transport
        self.connections: list[Any] = []
        self.answers: list[Deferred[Any]] = []

    def connect(self, factory: Any) -> Deferred[Any]:
        if self.answers:
            return self.answers.pop(0)
        connection = factory.buildProtocol(None)
        connection.makeConnection(self.transport())
        self.connections.append(connection)
        return succeed(connection)


class Pooled(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.endpoint = Endpoint()
        self.pool = ConnectionPool(self.clock, self.endpoint, 2)

    def ask(self) -> Deferred[StoreResponse]:
        return self.pool.request(b"GET", b"GET / HTTP/1.1\r\n\r\n", None)

    def answer(self, number: int) -> None:
        self.endpoint.connections[number].dataReceived(ANSWER)

    def asked(self) -> list[int]:
        """How many requests were sent on each connection."""
        return [one.transport.value().count(b"GET") for one in self.endpoint.connections]

    def closed(self) -> list[bool]:
        return [one.transport.disconnecting for one in self.endpoint.connections]

    def lose(self, number: int) -> None:
        self.endpoint.connections[number].connectionLost()

    def test_the_most_recently_freed_connection_is_used_first(self) -> None:
        for _ in range(2):
            self.ask()
        self.answer(0)
        self.answer(1)
        for _ in range(2):
            self.ask()
            self.answer(1)
        self.assertEqual(self.asked(), [1, 3])

    def test_any_number_may_be_open_but_only_some_are_kept(self) -> None:
        for _ in range(4):
            self.ask()
        for number in range(4):
            self.answer(number)
        self.assertEqual(self.closed(), [False, False, True, True])

    def test_a_connection_the_store_closed_is_not_reused(self) -> None:
        self.ask()
        self.answer(0)
        self.lose(0)
        self.ask()
        self.assertEqual(self.asked(), [1, 1])

    def test_idle_connections_are_closed_after_a_while(self) -> None:
        self.clock.advance(IDLE_CONNECTION_SECONDS)
        for _ in range(2):
            self.ask()
        self.answer(0)
        self.clock.advance(IDLE_CONNECTION_SECONDS / 2)
        self.answer(1)
        self.clock.advance(IDLE_CONNECTION_SECONDS / 2)
        self.assertEqual(self.closed(), [True, False])
        self.clock.advance(IDLE_CONNECTION_SECONDS / 2)
        self.assertEqual((self.closed(), self.clock.getDelayedCalls()), ([True, True], []))

    def test_closing_waits_for_an_idle_connection_to_close(self) -> None:
        self.successResultOf(self.pool.close())
        for _ in range(2):
            self.ask()
            self.answer(-1)
        self.ask()
        self.answer(0)
        closing = self.pool.close()
        self.assertEqual((self.closed(), self.clock.getDelayedCalls()), ([True], []))
        self.assertNoResult(closing)
        self.lose(0)
        self.successResultOf(closing)

    def test_closing_waits_for_all_connections(self) -> None:
        for _ in range(2):
            self.ask()
        for number in range(2):
            self.answer(number)
        closing = self.pool.close()
        self.assertEqual(self.closed(), [True, True])
        for number in range(2):
            self.assertNoResult(closing)
            self.lose(number)
        self.successResultOf(closing)

    def test_a_refused_connection_fails_the_request(self) -> None:
        waiting: Deferred[Any] = Deferred()
        self.endpoint.answers = [waiting]
        asked = self.ask()
        waiting.errback(Failure(Refused()))
        self.failureResultOf(asked, Refused)

    def test_cancelling_a_request_cancels_its_connecting(self) -> None:
        given_up: list[object] = []
        self.endpoint.answers = [Deferred(given_up.append)]
        asked = self.ask()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(len(given_up), 1)


class Connecting(SynchronousTestCase):
    def test_connecting_may_take_as_long_as_configured(self) -> None:
        made: list[tuple[Any, ...]] = []
        self.patch(client, "HostnameEndpoint", lambda _, *how: made.append(how))
        store_endpoint(None, Address("http://store:9000/base", "b"), 3.0)
        self.assertEqual(made, [(b"store", 9000, 3.0)])
