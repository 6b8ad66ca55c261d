"""Imports: which bodies they are for, how slow a client may be, what a batch is, and which errors are about a row."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import orjson
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.errors import ApiError
from project_service.http.body import Body, Source
from project_service.lifecycle import start
from project_service.tables.errors import TableError
from project_service.tables.planner import Planner
from project_service.tables.request.request import RawRequest, RequestHeaders
from project_service.tables.run.imports import BATCH_BYTES, BATCH_ROWS, Batch, Rows, Upload, _is_of_a_row
from project_service.tables.run.stream import Pace, Streams
from tests.unit.tables.planning import CONFIG

T = TypeVar("T")
LIMIT = 1000
MAX = 10 * 1024 * 1024


class Sent:
    """A request with a body that arrives when a test feeds it."""

    def __init__(
        self, length: int | None, media: str = "text/csv", method: str = "POST", limit: int = LIMIT
    ) -> None:
        self.method = method
        self.body = Body(Source(), length, expects_continue=False)
        self.max_json_bytes = limit
        self.headers = SimpleNamespace(text=lambda name: media if name == b"content-type" else None)
        self.admitted = 0

    async def admit_again(self) -> None:
        self.admitted += 1


def upload_of(sent: Any, *segments: str, max_bytes: int = MAX) -> Upload | None:
    return Upload.of(sent, segments or ("works",), max_bytes)


class WhichBodies(SynchronousTestCase):
    def test_rows_for_a_table_in_csv_and_ndjson(self) -> None:
        for media in ("text/csv", "text/csv; charset=utf-8", "application/x-ndjson"):
            self.assertIsNotNone(upload_of(Sent(None, media)), media)
        for sent, segments, max_bytes in (
            (Sent(None, "application/json"), ("works",), MAX),
            (Sent(None, ""), ("works",), MAX),
            (Sent(None, method="PATCH"), ("works",), MAX),
            (Sent(None, method="PUT"), ("works",), MAX),
            (Sent(None), ("rpc", "find"), MAX),
            (Sent(None), ("works",), LIMIT),
            (Sent(None), ("works",), 0),
        ):
            self.assertIsNone(upload_of(sent, *segments, max_bytes=max_bytes))

    def test_a_chunked_body_that_is_small_is_read_whole_and_its_caller_identified_again(self) -> None:
        sent = Sent(None)
        upload = upload_of(sent)
        assert upload is not None
        reading = start(upload.whole())
        sent.body.feed(b"x" * LIMIT)
        self.assertNoResult(reading)
        sent.body.finish()
        self.assertEqual((self.successResultOf(reading), sent.admitted), (b"x" * LIMIT, 1))

    def test_of_a_chunked_body_that_is_larger_nothing_is_lost(self) -> None:
        sent = Sent(None)
        upload = upload_of(sent)
        assert upload is not None
        reading = start(upload.whole())
        for piece in (b"a" * 600, b"b" * 600, b"c" * 600):
            sent.body.feed(piece)
        sent.body.finish()
        self.assertEqual((self.successResultOf(reading), sent.admitted), (None, 0))
        streams = streams_of(Clock())
        pieces = [self.successResultOf(start(upload.chunk(streams))) for _ in range(3)]
        self.assertEqual(pieces, [b"a" * 600 + b"b" * 600, b"c" * 600, b""])

    def test_more_than_the_limit_of_imports_is_413(self) -> None:
        declared = upload_of(Sent(3001), max_bytes=3000)
        assert declared is not None
        self.refused(start(declared.whole()))
        sent = Sent(None)
        chunked = upload_of(sent, max_bytes=3000)
        assert chunked is not None
        for _ in range(4):
            sent.body.feed(b"x" * 1000)
        self.assertIsNone(self.successResultOf(start(chunked.whole())))
        streams = streams_of(Clock())
        for _ in range(2):
            self.successResultOf(start(chunked.chunk(streams)))
        self.refused(start(chunked.chunk(streams)))

    def refused(self, reading: Deferred[Any]) -> None:
        error = self.failureResultOf(reading, ApiError).value
        assert isinstance(error, ApiError)
        self.assertEqual((error.status, error.code), (413, "payload_too_large"))
        self.assertIn("3000 bytes that the database's max_import_bytes allows", error.message)


def streams_of(clock: Clock) -> Streams:
    pool: Any = None
    return Streams(CONFIG, pool, DeferredSemaphore(1), clock, 5.0, Pace(60.0, 1000))


class Slow(SynchronousTestCase):
    """A client may fall 60 seconds behind one that sends 1000 bytes a second."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.streams = streams_of(self.clock)
        self.sent = Sent(MAX)
        upload = upload_of(self.sent)
        assert upload is not None
        self.upload = upload

    def after(self, seconds: float, size: int) -> Deferred[bytes]:
        reading = start(self.upload.chunk(self.streams))
        self.clock.advance(seconds)
        self.sent.body.feed(b"x" * size)
        return reading

    def test_one_that_sends_nothing_is_timed_out(self) -> None:
        reading = self.after(60.1, 1)
        error = self.failureResultOf(reading, ApiError).value
        assert isinstance(error, ApiError)
        self.assertEqual((error.status, error.code), (408, "request_timeout"))

    def test_one_that_trickles_is_timed_out_when_its_delays_add_up(self) -> None:
        for _ in range(3):
            self.successResultOf(self.after(19, 1))
        self.failureResultOf(self.after(19, 1), ApiError)

    def test_one_that_keeps_the_pace_may_take_any_time(self) -> None:
        for _ in range(20):
            self.successResultOf(self.after(50, 50_000))

    def test_what_it_sent_faster_before_does_not_count(self) -> None:
        self.successResultOf(self.after(0, 1_000_000))
        self.failureResultOf(self.after(60.1, 1), ApiError)


class Batches(SynchronousTestCase):
    def setUp(self) -> None:
        self.threads = 0

    async def in_thread(self, function: Callable[[], T]) -> T:
        self.threads += 1
        return function()

    def rows_of(self, sent: Any, prefer: str = "") -> Rows:
        upload = upload_of(sent)
        assert upload is not None
        given = RequestHeaders.of((("content-type", "text/csv"), ("prefer", prefer)))
        shape, _ = Planner(CONFIG).shape(RawRequest("POST", ("works",), headers=given))
        return Rows.of(shape.head, shape.query, upload, streams_of(Clock()), self.in_thread)

    def batches(self, pieces: list[bytes]) -> list[Batch]:
        sent = Sent(MAX, limit=MAX - 1)
        rows = self.rows_of(sent)
        for piece in pieces:
            sent.body.feed(piece)
        sent.body.finish()
        batches = []
        while batch := self.successResultOf(start(rows.batch())):
            batches.append(batch)
        return batches

    @given(st.lists(st.integers(1, 400_000), max_size=12), st.integers(1000, 300_000))
    def test_every_row_is_in_one_batch_in_order_and_batches_are_bounded(
        self, sizes: list[int], cut: int
    ) -> None:
        body = b"id\n" + b"".join(b"x" * size + b"\n" for size in sizes)
        batches = self.batches([body[at : at + cut] for at in range(0, len(body), cut)])
        found = [[len(row["id"]) for row in orjson.loads(batch.json())] for batch in batches]
        self.assertEqual([size for batch in found for size in batch], sizes)
        self.assertEqual([len(batch) for batch in batches], [len(batch) for batch in found])
        for batch in found:
            # The last one may be as large as a row may be.
            self.assertLess(sum(size + 9 for size in batch[:-1]), BATCH_BYTES)

    def test_many_small_rows_are_several_batches(self) -> None:
        batches = self.batches([b"id\n", b"1\n" * 25_000])
        self.assertEqual([len(batch) for batch in batches], [BATCH_ROWS, BATCH_ROWS, 5_000])
        self.assertEqual([batch.lines[0] for batch in batches], [2, 10_002, 20_002])
        # The large piece alone.
        self.assertEqual(self.threads, 1)

    @given(st.lists(st.tuples(st.integers(1, 2**40), st.text()), min_size=2))
    def test_halves_have_every_row_once_in_order(self, rows: list[tuple[int, str]]) -> None:
        batch = Batch()
        for line, text in rows:
            batch.add((line, orjson.dumps(text)))
        halves = batch.halves()
        self.assertEqual(
            [text for half in halves for text in orjson.loads(half.json())], [text for _, text in rows]
        )
        self.assertEqual([line for half in halves for line in half.lines], [line for line, _ in rows])
        self.assertTrue(all(halves))
        for half in halves:
            if len(half) > 1:
                again = half.halves()
                texts = [text for one in again for text in orjson.loads(one.json())]
                self.assertEqual(texts, orjson.loads(half.json()))

    def test_what_the_statement_is_planned_for(self) -> None:
        sent = Sent(MAX)
        rows = self.rows_of(sent)
        sent.body.feed(b"id,name\n")
        sent.body.finish()
        self.assertEqual(self.successResultOf(start(rows.batch())).json(), "[]")
        payload = rows.payload
        self.assertEqual((payload.keys, payload.is_array, payload.is_empty), (("id", "name"), True, False))

    def test_rows_are_not_returned(self) -> None:
        error = self.assertRaises(TableError, self.rows_of, Sent(MAX), "return=representation")
        self.assertEqual((error.status, error.code), (413, "payload_too_large"))
        self.rows_of(Sent(MAX), "return=headers-only")


class WhichErrors(SynchronousTestCase):
    def test_errors_that_a_row_may_cause(self) -> None:
        def of(code: str | None, function: str = "") -> Any:
            return SimpleNamespace(pgcode=code, diag=SimpleNamespace(source_function=function))

        for code in ("22P02", "23505", "23502", "21000", "P0001", "PT418", "54001"):
            self.assertTrue(_is_of_a_row(of(code)), code)
        self.assertFalse(_is_of_a_row(of(None)))
        for code in ("57014", "40P01", "40001", "53100", "42P01", "08006", "25006", "55P03"):
            self.assertFalse(_is_of_a_row(of(code)), code)
        self.assertTrue(_is_of_a_row(of("42501", "ExecWithCheckOptions")))
        self.assertFalse(_is_of_a_row(of("42501", "aclcheck_error")))
