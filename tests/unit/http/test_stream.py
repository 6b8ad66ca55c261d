"""A streamed response whose bytes are taken from another socket."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.exchange import BadLength, Stream


class Wire:
    """A fake ``wire.Connection`` that takes whatever it is offered, and records it."""

    def __init__(self) -> None:
        self.took: list[tuple[int, int]] = []
        self.wrote = b""

    def take(self, source: int, most: int) -> int:
        self.took.append((source, most))
        return min(most, 1000)

    def write(self, data: bytes) -> None:
        self.wrote += data

    def progress(self) -> object:
        return None

    def abort(self) -> None: ...
    def register_producer(self, producer: Any) -> None: ...
    def unregister_producer(self) -> None: ...


class Taking(SynchronousTestCase):
    def setUp(self) -> None:
        self.wire = Wire()

    def stream(self, length: int | None, chunked: bool = False) -> Stream:
        wire: Any = self.wire
        return Stream(wire, Clock(), 60.0, length, chunked)

    def test_what_is_taken_is_part_of_the_announced_length(self) -> None:
        stream = self.stream(1500)
        self.assertEqual([stream.take(7, 9999), stream.take(7, 9999)], [1000, 500])
        self.assertEqual((self.wire.took, stream.sent_bytes), ([(7, 1500), (7, 500)], 1500))
        stream.end()
        self.assertRaises(BadLength, stream.write, b"x")

    def test_what_was_not_taken_is_missed_at_the_end(self) -> None:
        stream = self.stream(1500)
        stream.take(7, 9999)
        self.assertRaises(BadLength, stream.end)

    def test_without_a_length_everything_is_taken(self) -> None:
        stream = self.stream(None)
        self.assertEqual((stream.take(7, 9999), stream.sent_bytes), (1000, 1000))
        stream.end()

    def test_nothing_is_taken_where_chunks_have_to_be_written_or_the_client_has_left(self) -> None:
        gone = self.stream(1500)
        gone.lost()
        for stream in (self.stream(None, chunked=True), gone):
            self.assertEqual((stream.take(7, 10), stream.sent_bytes), (0, 0))
        self.assertEqual(self.wire.took, [])
