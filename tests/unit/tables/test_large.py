"""Which results are streamed and which are sent in one piece."""

from __future__ import annotations

from attrs import evolve
from twisted.internet.defer import Deferred

from project_service.http.response import Reply, StreamReply
from project_service.lifecycle import start
from project_service.tables.errors import TableError
from project_service.tables.outcome import Outcome
from project_service.tables.planner import Planner
from project_service.tables.request.request import RawRequest
from project_service.tables.stream import RowStream
from tests.unit.tables.planning import CONFIG, planned, preamble
from tests.unit.tables.streaming import Case, FakeConnection

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
        found = self.successResultOf(self.answering())
        assert found is not None
        return found

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
        self.connection.said = (b"[]", b"304")
        reply = self.reply()
        assert isinstance(reply, Reply)
        self.assertEqual((reply.status, reply.body), (304, b""))
        self.assertTrue(self.given_back)

    def test_an_invalid_status_set_by_sql_closes_the_cursor(self) -> None:
        self.connection.said = (b"[]", b"9")
        error = self.failureResultOf(self.answering(), TableError).value
        self.assertEqual((error.status, error.code), (500, "PGRST112"))
        self.assertTrue(self.given_back)

    def test_requests_do_not_queue_for_a_stream_they_may_not_need(self) -> None:
        self.successResultOf(self.opened())
        self.assertFalse(self.streams.expected(self.planned))

    def test_planned_and_estimated_counts_and_max_affected_do_not_use_a_cursor_at_once(self) -> None:
        for prefer in ("count=planned", "count=estimated", "handling=strict, max-affected=1"):
            found = planned("GET", "works", prefer=prefer)
            found.compiled.history.streamed = True
            self.assertFalse(self.streams.expected(found), prefer)
