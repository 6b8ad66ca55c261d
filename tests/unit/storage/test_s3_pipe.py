"""Passing an object's bytes from the store to the client, in memory: complete, with back-pressure, or failed."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from project_service.lifecycle import start
from project_service.storage.s3.client import S3Stream
from project_service.storage.s3.connection import READ_BYTES
from project_service.storage.s3.errors import BrokenRead, ReaderLeft
from tests.unit.storage.test_s3_connection import Case

IDLE = 10.0


class Sink:
    """A sink that accepts everything, unless it ``leaves`` or ``pauses`` at the first bytes.

    It ``takes`` so many bytes at a time from the store's socket, and records what it was asked for.
    """

    def __init__(self, leaves: bool = False, pauses: bool = False) -> None:
        self.data = b""
        self.producer: Any = None
        self.leaves = leaves
        self.pauses = pauses
        self.takes = 0
        self.asked: list[tuple[int, int]] = []

    def take(self, source: int, limit: int) -> int:
        self.asked.append((source, limit))
        return min(self.takes, limit)

    def write(self, data: bytes) -> None:
        self.data += data
        if self.leaves:
            self.producer.stopProducing()
        if self.pauses:
            self.producer.pauseProducing()

    def register_producer(self, producer: Any) -> None:
        self.producer = producer

    def unregister_producer(self) -> None:
        self.producer = None


class OpenCase(Case):
    def setUp(self) -> None:
        super().setUp()
        self.clock = Clock()

    def open(self, length: int, answer: bytes) -> S3Stream:
        asked = self.send()
        self.connection.dataReceived(b"HTTP/1.1 200 OK\r\n" + answer)
        return S3Stream(length, self.successResultOf(asked), self.clock, IDLE)

    def pipe(self, sink: Sink, length: int, answer: bytes) -> Deferred[None]:
        return start(self.open(length, answer).pipe_to(sink))


class Opened(OpenCase):
    """What ``S3Store.open`` returns, for a response that came at once."""

    def test_a_small_object_that_has_arrived_is_at_hand(self) -> None:
        self.assertEqual(self.open(5, b"Content-Length: 5\r\n\r\nhello").buffered(), b"hello")
        self.assertIsNone(self.open(9, b"Content-Length: 9\r\n\r\nhello").buffered())

    def test_dropping_an_incomplete_object_closes_its_connection(self) -> None:
        self.open(9, b"Content-Length: 9\r\n\r\nhello").close()
        self.assertTrue(self.wire.aborted)

    def test_dropping_a_complete_object_keeps_its_connection(self) -> None:
        self.open(5, b"Content-Length: 5\r\n\r\nhello").close()
        self.assertEqual((self.wire.aborted, self.pool.events), (False, ["free"]))

    def test_a_complete_response_of_another_length_is_not_the_object(self) -> None:
        stream = self.open(9, b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        self.assertIsNone(stream.buffered())
        self.failureResultOf(start(stream.pipe_to(Sink())), BrokenRead)


class Taking(OpenCase):
    """A reader that takes bytes from the store's socket by itself, before they are read."""

    def setUp(self) -> None:
        super().setUp()
        self.sink = Sink()
        self.length = 2 * READ_BYTES + 10
        self.piped = self.pipe(self.sink, self.length, b"Content-Length: %d\r\n\r\nhello" % self.length)

    def test_what_is_taken_counts_and_the_end_comes_as_data(self) -> None:
        self.sink.takes = READ_BYTES
        self.assertTrue(self.connection.passed_on(7))
        self.assertTrue(self.connection.passed_on(7))
        self.assertEqual(self.sink.asked, [(7, READ_BYTES)] * 2, "not all that is left: never the end")
        self.assertFalse(self.connection.passed_on(7), "what is left is the end")
        self.connection.dataReceived(b"x" * 5)
        self.successResultOf(self.piped)
        self.assertEqual((self.sink.data, self.pool.events), (b"helloxxxxx", ["free"]))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_more_than_was_announced_is_noticed(self) -> None:
        self.sink.takes = READ_BYTES
        for _ in range(2):
            self.connection.passed_on(7)
        self.connection.dataReceived(b"x" * 6)
        self.failureResultOf(self.piped, BrokenRead)
        self.assertTrue(self.wire.aborted)

    def test_what_is_not_taken_is_read(self) -> None:
        self.assertFalse(self.connection.passed_on(7))
        self.connection.dataReceived(b"world")
        self.assertEqual(self.sink.data, b"helloworld")

    def test_a_store_that_sends_is_not_silent_although_nothing_is_read(self) -> None:
        self.sink.takes = 1
        for _ in range(3):
            self.clock.advance(IDLE * 0.9)
            self.connection.passed_on(7)
        self.assertNoResult(self.piped)
        self.clock.advance(IDLE)
        self.failureResultOf(self.piped, BrokenRead)
        self.assertFalse(self.connection.passed_on(7))


class Piping(OpenCase):
    def test_it_ends_with_the_last_byte_and_leaves_nothing_running(self) -> None:
        for answer in (b"Content-Length: 5\r\n\r\nhello", b"Content-Length: 5\r\n\r\n"):
            sink = Sink()
            piped = self.pipe(sink, 5, answer)
            if not sink.data:
                self.assertNoResult(piped)
                self.connection.dataReceived(b"hello")
            self.successResultOf(piped)
            self.assertEqual((sink.data, sink.producer, self.clock.getDelayedCalls()), (b"hello", None, []))

    def test_nothing_is_taken_from_the_socket_before_there_is_a_reader_or_without_a_length(self) -> None:
        for length in (b"Content-Length: 9999999", b"Transfer-Encoding: chunked"):
            self.setUp()
            sink = Sink()
            self.assertFalse(self.connection.passed_on(7))
            stream = self.open(9999999, length + b"\r\n\r\n")
            self.assertFalse(self.connection.passed_on(7))
            piped = start(stream.pipe_to(sink))
            self.assertFalse(self.connection.passed_on(7))
            self.assertEqual(len(sink.asked), 1 if b"Length" in length else 0)
            piped.cancel()
            self.failureResultOf(piped, CancelledError)

    def test_bytes_beyond_the_object_are_not_passed_on(self) -> None:
        sink = Sink()
        piped = self.pipe(sink, 5, b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        self.connection.dataReceived(b"1\r\n!\r\n")
        self.failureResultOf(piped, BrokenRead)
        self.assertEqual((sink.data, sink.producer, self.wire.aborted), (b"hello", None, True))

    def test_a_short_response_is_an_error(self) -> None:
        for end in (b"0\r\n\r\n", None):
            self.setUp()
            sink = Sink()
            piped = self.pipe(sink, 9, b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            if end is None:
                self.lose()
            else:
                self.connection.dataReceived(end)
            self.failureResultOf(piped, BrokenRead)
            self.assertEqual((sink.data, sink.producer, self.clock.getDelayedCalls()), (b"hello", None, []))

    def test_a_reader_that_leaves_gets_nothing_more(self) -> None:
        stream = self.open(9, b"Content-Length: 9\r\n\r\none")
        self.connection.dataReceived(b"two")
        sink = Sink(leaves=True)
        self.failureResultOf(start(stream.pipe_to(sink)), ReaderLeft)
        self.assertEqual((sink.data, self.wire.aborted), (b"one", True))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cancelling_closes_the_connection(self) -> None:
        sink = Sink()
        piped = self.pipe(sink, 9, b"Content-Length: 9\r\n\r\none")
        piped.cancel()
        self.failureResultOf(piped, CancelledError)
        self.assertEqual((sink.producer, self.wire.aborted), (None, True))
        self.lose()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_silent_store_is_given_up_after_its_last_bytes(self) -> None:
        sink = Sink()
        piped = self.pipe(sink, 9, b"Content-Length: 9\r\n\r\none")
        self.clock.advance(IDLE * 0.9)
        self.connection.dataReceived(b"two")
        self.clock.advance(IDLE * 0.9)
        self.assertNoResult(piped)
        self.clock.advance(IDLE * 0.2)
        self.failureResultOf(piped, BrokenRead)
        self.assertEqual((sink.producer, self.wire.aborted), (None, True))

    def test_resuming_twice_starts_one_timer(self) -> None:
        sink = Sink()
        piped = self.pipe(sink, 6, b"Content-Length: 6\r\n\r\none")
        for _ in range(2):
            sink.producer.resumeProducing()
        self.connection.dataReceived(b"two")
        self.successResultOf(piped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_pause_of_the_reader_does_not_count_as_the_stores_silence(self) -> None:
        sink = Sink(pauses=True)
        piped = self.pipe(sink, 9, b"Content-Length: 9\r\n\r\none")
        self.assertEqual(self.clock.getDelayedCalls(), [])
        for _ in range(2):
            self.clock.advance(IDLE * 2)
            sink.producer.resumeProducing()
            self.assertEqual(self.wire.producerState, "producing")
            self.clock.advance(IDLE * 0.9)
            self.assertNoResult(piped)
            sink.producer.pauseProducing()
            self.assertEqual(self.wire.producerState, "paused")
        sink.producer.resumeProducing()
        self.clock.advance(IDLE)
        self.failureResultOf(piped, BrokenRead)
