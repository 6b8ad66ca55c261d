"""Streamed bodies, and the timer that cuts off what does not move."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.exchange import BadLength, Stream
from project_service.lifecycle import CHECKS, IdleTimer


class Wire:
    """A fake ``wire.Connection`` that takes whatever it is offered, and records it."""

    def __init__(self) -> None:
        self.took: list[tuple[int, int]] = []
        self.wrote = b""

    def take(self, source: int, max_bytes: int) -> int:
        self.took.append((source, max_bytes))
        return min(max_bytes, 1000)

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


SECONDS = 10.0


class Dropping(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.moved = 0
        self.dropped: list[float] = []
        self.idle = IdleTimer(
            self.clock, SECONDS, lambda: self.dropped.append(self.clock.seconds()), lambda: self.moved
        )
        self.idle.start()

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)

    def test_what_does_not_move_is_dropped_in_time(self) -> None:
        self.passes(SECONDS - 0.2)
        self.assertEqual(self.dropped, [])
        self.passes(0.3)
        self.assertEqual((len(self.dropped), self.idle.expired, self.clock.getDelayedCalls()), (1, True, []))

    def test_what_moves_a_little_after_it_was_first_looked_at_is_not_given_a_second_period(self) -> None:
        """A kernel sends a little more after its buffer was full; a client that reads nothing has not moved."""
        self.passes(0.1)
        self.moved += 1
        self.passes(SECONDS * (1 + 2 / CHECKS))
        self.assertEqual(len(self.dropped), 1)

    def test_what_came_while_the_process_stood_still_counts(self) -> None:
        """It is read after the reactor's calls, the first of which finds that nothing has moved."""

        def read() -> None:
            self.moved += 1

        self.clock.callLater(SECONDS + 5, read)
        self.clock.advance(SECONDS + 5)
        self.assertEqual(self.dropped, [])
        self.passes(SECONDS * (1 + 1 / CHECKS))
        self.assertEqual(len(self.dropped), 1)

    def test_a_touch_gives_another_period(self) -> None:
        expired: list[float] = []
        idle = IdleTimer(self.clock, SECONDS, lambda: expired.append(self.clock.seconds()))
        idle.start()
        self.passes(SECONDS / 2)
        idle.touch()
        self.passes(SECONDS - 0.2)
        self.assertEqual(expired, [])
        self.passes(0.3)
        self.assertEqual(len(expired), 1)
        self.passes(2 * SECONDS)
        self.assertEqual(len(expired), 1, "once")

    def test_what_moves_now_and_then_is_kept(self) -> None:
        for _ in range(5):
            self.passes(SECONDS * 0.9)
            self.moved += 1
        self.assertEqual(self.dropped, [])
        self.idle.stop()
        self.passes(2 * SECONDS)
        self.assertEqual((self.dropped, self.clock.getDelayedCalls()), ([], []))
