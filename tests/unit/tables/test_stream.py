"""Which results are streamed, how many at a time, how slowly a client may read, and that connections come back."""

from __future__ import annotations

import re
from typing import Any, cast

import psycopg2
from attrs import evolve
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.acting import Actor
from project_service.database.connection import Connection, DatabaseGone
from project_service.http.admission import Slot
from project_service.http.body import ClientGone
from project_service.http.response import Reply, StreamReply
from project_service.lifecycle import start
from project_service.tables.errors import TableError
from project_service.tables.planner import Planner
from project_service.tables.reply.outcome import Outcome
from project_service.tables.request.request import RawRequest
from project_service.tables.run import stream
from project_service.tables.run.stream import CHUNK_BYTES, Pace, RowStream, Streams
from project_service.tables.sql.statement import RESPONSE_SETTINGS
from tests.unit.tables.planning import CONFIG, planned, preamble


class FakeConnection:
    """A connection with a cursor that has ``left`` more rows. ``said`` are the headers and the status that SQL has
    set. It records the queries."""

    usable = True
    plans_of: object = None
    pooled = False
    own: str = ""
    extra_seconds: float | None = 0.0
    role: str = ""

    def __init__(self, left: int = 0) -> None:
        self.left = left
        self.stated: tuple[bytes, bytes | None] = (b'[{"X-Said": "yes"}]', None)
        self.asked: list[str] = []

    async def execute(self, sql: str) -> None:
        self.asked.append(sql)

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        self.asked.append(sql)
        if sql == RESPONSE_SETTINGS:
            return [self.stated]
        if "FETCH FORWARD" not in sql:
            return []
        count = min(self.left, int(sql.rpartition("FETCH FORWARD ")[2].split()[0]))
        self.left -= count
        return [(b"x" * 1000, 7, None)] * count


class CountingSlot(Slot):
    """``steps`` has how often a request released its slot, and how often it took it again."""

    def __init__(self) -> None:
        self.steps = [0, 0]

    def release(self) -> None:
        self.steps[0] += 1

    def retake(self) -> None:
        self.steps[1] += 1


class FakePool:
    """A pool of any number of such connections."""

    def __init__(self, *connections: FakeConnection) -> None:
        self.free = list(connections)
        self.back: list[Any] = []

    async def acquire(self) -> Connection:
        return cast(Connection, self.free.pop())

    def release(self, connection: Any) -> None:
        self.back.append(connection)


class Client:
    """A sink that accepts what was written only when ``take`` is called."""

    def __init__(self) -> None:
        self.written = b""
        self.waiting: Deferred[None] | None = None

    def write(self, data: bytes) -> None:
        self.written += data

    async def drained(self) -> None:
        self.waiting = Deferred()
        await self.waiting

    def take(self) -> None:
        waiting, self.waiting = self.waiting, None
        assert waiting is not None
        waiting.callback(None)


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.connection = FakeConnection(2000)
        self.pool = FakePool(self.connection)
        self.streams = self.made(16384)
        self.slot = CountingSlot()

    def made(self, bytes_per_second: int) -> Streams:
        pace = Pace(60.0, bytes_per_second)
        return Streams(CONFIG, Actor(cast(Any, self.pool)), DeferredSemaphore(1), self.clock, 5.0, pace)

    def open_stream(self, expected_bytes: int = 1000) -> Deferred[RowStream]:
        likely = Outcome(rows=100, size=100 * expected_bytes)
        return start(self.streams.open(planned("GET", "works"), preamble(), "/works", likely, self.slot))

    @property
    def given_back(self) -> bool:
        """Whether the one connection and the one slot have been given back."""
        return (self.pool.back, self.streams.turns.tokens) == ([self.connection], 1)


class Unserializable(psycopg2.OperationalError):
    pgcode = "40001"


class Turns(Case):
    def test_a_stream_waits_for_its_turn_as_long_as_for_a_connection(self) -> None:
        first = self.successResultOf(self.open_stream())
        second = self.open_stream()
        self.clock.advance(4.9)
        self.assertNoResult(second)
        self.clock.advance(0.2)
        error = self.failureResultOf(second, TableError).value
        assert isinstance(error, TableError)
        self.assertEqual((error.status, error.code), (504, "PGRST003"))
        self.assertIn("Retry-After", dict(error.headers))
        third = self.open_stream()
        self.pool.free.append(FakeConnection())
        first.close()
        self.successResultOf(third)

    def test_a_stream_releases_its_slot_while_it_waits_for_the_clients_of_others(self) -> None:
        first = self.successResultOf(self.open_stream())
        self.assertEqual(self.slot.steps, [0, 0])
        second, refused = self.open_stream(), self.open_stream()
        self.assertEqual(self.slot.steps, [2, 0])
        self.pool.free.append(FakeConnection())
        first.close()
        self.successResultOf(second)
        self.clock.advance(5.1)
        self.failureResultOf(refused, TableError)
        self.assertEqual(self.slot.steps, [2, 2])

    def test_the_number_of_waiting_requests_is_bounded_by_what_they_hold_in_memory(self) -> None:
        self.patch(stream, "MAX_WAITING", 20)
        self.successResultOf(self.open_stream())
        for waiting in [self.open_stream() for _ in range(20)]:
            self.assertNoResult(waiting)
            waiting.addErrback(lambda failure: failure.trap(TableError))
        error = self.failureResultOf(self.open_stream(), TableError).value
        self.assertEqual((error.status, error.code), (504, "PGRST003"))

    def test_a_cancelled_wait_takes_no_turn(self) -> None:
        first = self.successResultOf(self.open_stream())
        second = self.open_stream()
        second.cancel()
        self.failureResultOf(second)
        first.close()
        self.assertEqual(self.streams.turns.tokens, 1)

    def test_a_database_error_is_mapped_and_gives_turn_and_connection_back(self) -> None:
        async def gone(sql: str, params: object = None) -> list[tuple[Any, ...]]:
            raise DatabaseGone("the server closed the connection")

        self.connection.query = gone  # type: ignore[method-assign]  # it was there a moment ago
        error = self.failureResultOf(self.open_stream(), TableError).value
        self.assertEqual((error.status, error.code), (503, "PGRST001"))
        self.assertTrue(self.given_back)

    def test_the_idle_timeout_of_the_transaction_exceeds_the_clients_timeout(self) -> None:
        self.successResultOf(self.open_stream())
        (seconds,) = re.findall(r"idle_in_transaction_session_timeout = '(\d+)s'", self.connection.asked[0])
        self.assertGreater(int(seconds), self.streams.pace.timeout_seconds)

    def test_no_connection_gives_the_turn_back(self) -> None:
        self.pool.free.clear()
        self.failureResultOf(self.open_stream(), IndexError)
        self.assertEqual((self.pool.back, self.streams.turns.tokens), ([], 1))


class Paces(Case):
    def written(self) -> tuple[Client, Deferred[None]]:
        client = Client()
        return client, start(self.successResultOf(self.open_stream())(cast(Any, client)))

    def test_a_client_that_keeps_the_pace_gets_everything(self) -> None:
        client, done = self.written()
        while client.waiting is not None:
            self.clock.advance(15.0)
            client.take()
        self.successResultOf(done)
        self.assertEqual(client.written, b"[" + b", \n ".join([b"x" * 1000] * 2000) + b"]")
        self.assertEqual(self.connection.asked[-1], "COMMIT")
        self.assertEqual(self.pool.back, [self.connection])

    def test_a_client_that_reads_nothing_is_dropped(self) -> None:
        _, done = self.written()
        self.clock.advance(60.1)
        self.failureResultOf(done, ClientGone)
        self.assertTrue(self.given_back)

    def test_a_client_below_the_pace_is_dropped_however_steady(self) -> None:
        """A chunk of 256 kB may take 16 seconds at this pace, and each takes 40."""
        client, done = self.written()
        chunks = 0
        while client.waiting is not None:
            self.clock.advance(40.0)
            if client.waiting is not None:
                client.take()
                chunks += 1
        self.failureResultOf(done, ClientGone)
        self.assertEqual(chunks, 2)

    def test_without_a_pace_only_a_stalled_client_is_dropped(self) -> None:
        self.streams = self.made(0)
        client, done = self.written()
        while client.waiting is not None:
            self.clock.advance(59.0)
            client.take()
        self.successResultOf(done)

    def test_fewer_rows_are_fetched_if_they_are_wider_than_expected(self) -> None:
        stream = self.successResultOf(self.open_stream(expected_bytes=10))
        client = Client()
        done = start(stream(cast(Any, client)))
        while client.waiting is not None:
            client.take()
        self.successResultOf(done)
        fetches = (re.search(r"FETCH FORWARD (\d+)", sql) for sql in self.connection.asked)
        first, *rest = [int(result[1]) for result in fetches if result is not None]
        self.assertGreater(first * 1000, CHUNK_BYTES)
        self.assertLessEqual(max(rest) * 1000, CHUNK_BYTES)
        self.assertGreater(min(rest) * 1000, CHUNK_BYTES // 2)

    def test_reading_fast_at_first_earns_no_time_for_later(self) -> None:
        self.assertEqual(Pace(60.0, 1000).left(60.0, 0.0, 10_000_000), 60.0)


WORKS = RawRequest("GET", ("works",), "/works", path="/works")


class Answers(Case):
    def reply(self, status: bytes | None, prefer: str = "") -> Reply | StreamReply:
        return self.successResultOf(self.answering(status, prefer))

    def answering(
        self, status: bytes | None, prefer: str, *pairs: tuple[str, str]
    ) -> Deferred[Reply | StreamReply]:
        """The reply to a request for more rows than are sent in one piece."""
        self.planned = planned("GET", "works", *pairs, prefer=prefer)
        return start(
            self.streams.after(
                WORKS,
                self.planned,
                Outcome(rows=2000, total=9000 if prefer else None, status=status, whole=False),
                preamble(),
            )
        )

    def test_a_large_result_is_streamed_and_its_shape_is_remembered_as_large(self) -> None:
        reply = self.reply(None)
        self.assertIsInstance(reply, StreamReply)
        self.assertNotIn("Content-Range", dict(reply.headers))
        self.assertTrue(self.planned.compiled.history.streamed)

    def test_the_total_comes_from_the_snapshot_that_is_streamed(self) -> None:
        reply = self.reply(None, prefer="count=exact")
        self.assertEqual(dict(reply.headers)["Content-Range"], "0-6/7")

    def test_an_offset_past_the_end_of_the_streamed_snapshot_is_416(self) -> None:
        """Rows may have been deleted between the probe and the stream."""
        refused = self.answering(None, "count=exact", ("offset", "8"))
        error = self.failureResultOf(refused, TableError).value
        self.assertEqual((error.status, error.code), (416, "PGRST103"))
        self.assertTrue(self.given_back)

    def test_an_empty_page_reports_the_total_that_was_counted_before(self) -> None:
        self.connection.left = 0
        for offset, shown in (("9000", "*/9000"), ("0", "*/0")):
            reply = self.successResultOf(self.answering(None, "count=exact", ("offset", offset)))
            self.assertEqual(dict(reply.headers)["Content-Range"], shown)
            assert isinstance(reply, StreamReply) and isinstance(reply.source, RowStream)
            reply.source.close()
            self.pool.free.append(self.connection)

    def test_a_status_without_a_body_takes_no_connection(self) -> None:
        for status in (b"204", b"304"):
            reply = self.reply(status)
            assert isinstance(reply, Reply)
            self.assertEqual((reply.status, reply.body), (int(status), b""))
        self.assertEqual(self.connection.asked, [])

    def test_a_reply_with_an_unwritable_header_takes_no_connection(self) -> None:
        known = planned("GET", "works")
        unwritable = evolve(known.compiled, headers=(("Content-Profile", "two\nlines"),))
        reply = start(
            self.streams.after(
                WORKS,
                evolve(known, compiled=unwritable),
                Outcome(rows=2000, whole=False),
                preamble(),
            )
        )
        self.assertIsInstance(self.successResultOf(reply), Reply)
        self.assertEqual(self.connection.asked, [])


class AtOnce(Case):
    """A request of a shape that was streamed last time: its statement runs only once, with a cursor."""

    def setUp(self) -> None:
        super().setUp()
        self.ask()

    def ask(self, *pairs: tuple[str, str], prefer: str = "") -> None:
        self.planned = planned("GET", "works", *pairs, prefer=prefer, planner=Planner(CONFIG))
        self.planned.compiled.history.streamed = True

    def reply(self) -> Reply | StreamReply:
        result = self.successResultOf(self.answering())
        assert result is not None
        return result

    def answering(self) -> Deferred[Reply | StreamReply | None]:
        self.assertTrue(self.streams.expected(self.planned))
        return start(self.streams.at_once(WORKS, self.planned, preamble()))

    def test_a_result_that_is_large_again_runs_its_statement_once(self) -> None:
        reply = self.reply()
        self.assertIsInstance(reply, StreamReply)
        self.assertIn(("X-Said", "yes"), reply.headers)
        asked = self.connection.asked
        self.assertEqual([sql for sql in asked if "works" in sql], asked[:1])
        self.assertLess(len(asked), 8)
        self.assertTrue(self.planned.compiled.history.streamed)

    def test_a_result_that_became_small_is_sent_in_one_piece_and_probed_next_time(self) -> None:
        """That goes up to the size that is sent in one piece, however many steps it takes to read."""
        self.connection.left = 900
        reply = self.reply()
        assert isinstance(reply, Reply)
        self.assertEqual(dict(reply.headers)["Content-Range"], "0-899/*")
        self.assertEqual(reply.body, b"[" + b", \n ".join([b"x" * 1000] * 900) + b"]")
        self.assertGreater(len([sql for sql in self.connection.asked if "FETCH" in sql]), 1)
        self.assertEqual(self.connection.asked[-1], "COMMIT")
        self.assertTrue(self.given_back)
        self.assertFalse(self.streams.expected(self.planned))

    def test_an_empty_result_is_sent_in_one_piece(self) -> None:
        self.connection.left = 0
        reply = self.reply()
        assert isinstance(reply, Reply)
        self.assertEqual((reply.status, reply.body), (200, b"[]"))

    def test_an_exact_count_is_read_with_the_rows(self) -> None:
        """It is, whether they are sent in one piece or streamed."""
        for left, expected in ((0, "*/0"), (1, "0-0/7"), (3, "0-2/7"), (2000, "0-6/7")):
            self.ask(prefer="count=exact")
            self.pool.free = [FakeConnection(left)]
            self.assertEqual(dict(self.reply().headers)["Content-Range"], expected)

    def test_an_empty_page_past_an_offset_is_run_again_to_count(self) -> None:
        self.connection.left = 0
        self.ask(("offset", "5"), prefer="count=exact")
        self.assertIsNone(self.successResultOf(self.answering()))
        self.assertTrue(self.given_back)
        self.assertFalse(self.streams.expected(self.planned))

    def test_status_and_headers_set_by_sql_are_read_with_the_first_rows(self) -> None:
        self.connection.stated = (b"[]", b"304")
        reply = self.reply()
        assert isinstance(reply, Reply)
        self.assertEqual((reply.status, reply.body), (304, b""))
        self.assertTrue(self.given_back)

    def test_an_invalid_status_set_by_sql_closes_the_cursor(self) -> None:
        self.connection.stated = (b"[]", b"9")
        error = self.failureResultOf(self.answering(), TableError).value
        self.assertEqual((error.status, error.code), (500, "PGRST112"))
        self.assertTrue(self.given_back)

    def test_requests_do_not_queue_for_a_stream_they_may_not_need(self) -> None:
        self.successResultOf(self.open_stream())
        self.assertFalse(self.streams.expected(self.planned))

    def test_planned_and_estimated_counts_and_max_affected_do_not_use_a_cursor_at_once(self) -> None:
        for prefer in ("count=planned", "count=estimated", "handling=strict, max-affected=1"):
            result = planned("GET", "works", prefer=prefer)
            result.compiled.history.streamed = True
            self.assertFalse(self.streams.expected(result), prefer)
