"""What is streamed and what is not, how many rows are tried at once, and how slowly a client may read."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.session import Session
from project_service.deferreds import start
from project_service.http.body import ClientGone
from project_service.http.outbound import Reply, StreamReply
from project_service.tables.errors import TableError
from project_service.tables.identity import Identity
from project_service.tables.incoming import Incoming
from project_service.tables.large import LargeReplies
from project_service.tables.plan.media import Rendering
from project_service.tables.planner import Planner
from project_service.tables.respond.outcome import Outcome
from project_service.tables.respond.replies import read_reply
from project_service.tables.run import Preamble
from project_service.tables.sql.fragment import Sql
from project_service.tables.sql.statement import SAID
from project_service.tables.streaming import Pace, RowStream, Streams
from tests.unit.tables.planning import CONFIG, planned

ROWS = Rendering("json", "application/json")


class Connection:
    """A cursor with ``left`` rows; remembers what it was asked."""

    usable = True

    def __init__(self, left: int = 0) -> None:
        self.left = left
        self.asked: list[str] = []

    async def execute(self, sql: str) -> None:
        self.asked.append(sql)

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        self.asked.append(sql)
        if sql == SAID:
            return [(b'[{"X-Said": "yes"}]', None)]
        if "FETCH FORWARD" not in sql:
            return []
        count = min(self.left, int(sql.rpartition("FETCH FORWARD ")[2].split()[0]))
        self.left -= count
        return [(b"x" * 1000, 7, None)] * count


class Connections:
    """A pool of any number of them."""

    def __init__(self, *connections: Connection) -> None:
        self.free = list(connections)
        self.back: list[Any] = []

    async def take(self) -> Session:
        return cast(Session, self.free.pop())

    def give_back(self, session: Any) -> None:
        self.back.append(session)


class Client:
    """Takes what is written when ``take`` is called."""

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
        self.connection = Connection(2000)
        self.pool = Connections(self.connection)
        self.streams = self.made(16384)

    def made(self, bytes_per_second: int) -> Streams:
        pace = Pace(60.0, bytes_per_second)
        return Streams(cast(Any, self.pool), DeferredSemaphore(1), self.clock, 5.0, pace)

    def opened(self, leaves_things: bool = False) -> Deferred[RowStream]:
        told, rows = Preamble("SELECT 1", []), Sql("SELECT 2")
        likely = Outcome(rows=100, size=100_000)
        return start(self.streams.open(told, rows, [], ROWS, likely, True, leaves_things))


class Answers(Case):
    def reply(self, status: bytes | None, prefer: str = "") -> Reply | StreamReply:
        """To a request for more rows than are answered at once."""
        answering = LargeReplies(CONFIG, self.streams).after(
            Incoming("GET", ("works",), (), (), b""),
            planned("GET", "works", prefer=prefer),
            Outcome(rows=2000, total=9000 if prefer else None, status=status, whole=False),
            Preamble("", []),
            Identity("anon", "{}", False),
        )
        return self.successResultOf(start(answering))

    def test_rows_are_streamed(self) -> None:
        self.assertIsInstance(self.reply(None), StreamReply)

    def test_the_total_is_that_of_the_snapshot_that_is_streamed(self) -> None:
        reply = self.reply(None, prefer="count=exact")
        self.assertEqual(dict(reply.headers)["Content-Range"], "0-6/7")

    def test_a_status_without_a_body_takes_no_connection(self) -> None:
        for status in (b"204", b"304"):
            reply = self.reply(status)
            assert isinstance(reply, Reply)
            self.assertEqual((reply.status, reply.body), (int(status), b""))
        self.assertEqual(self.connection.asked, [])


class AtOnce(Case):
    """A request of a shape that was streamed last time."""

    def setUp(self) -> None:
        super().setUp()
        self.large = LargeReplies(CONFIG, self.streams)
        self.planned = planned("GET", "works", planner=Planner(CONFIG))
        self.planned.compiled.last.streamed = True

    def reply(self) -> Reply | StreamReply:
        self.assertTrue(self.large.expected(self.planned))
        told, identity = Preamble("SELECT 1", []), Identity("anon", "{}", False)
        incoming = Incoming("GET", ("works",), (), (), b"")
        whole: list[Outcome] = []

        def in_one_piece(outcome: Outcome) -> Reply:
            whole.append(outcome)
            return read_reply(self.planned.request, ROWS, outcome, "/works", False)

        return self.successResultOf(
            start(self.large.at_once(incoming, self.planned, told, identity, in_one_piece))
        )

    def test_what_is_large_again_is_run_once(self) -> None:
        reply = self.reply()
        self.assertIsInstance(reply, StreamReply)
        self.assertIn(("X-Said", "yes"), reply.headers)
        asked = self.connection.asked
        self.assertEqual([sql for sql in asked if "SELECT 1" in sql], asked[:1])
        self.assertLess(len(asked), 8)
        self.assertTrue(self.planned.compiled.last.streamed)

    def test_what_is_not_is_one_piece_and_probed_the_next_time(self) -> None:
        self.connection.left = 3
        reply = self.reply()
        assert isinstance(reply, Reply)
        self.assertEqual(dict(reply.headers)["Content-Range"], "0-2/*")
        self.assertEqual(reply.body.count(b"x" * 1000), 3)
        self.assertEqual(self.connection.asked[-1], "COMMIT")
        self.assertEqual((self.pool.back, self.streams.places.tokens), ([self.connection], 1))
        self.assertFalse(self.large.expected(self.planned))

    def test_nothing_waits_for_a_turn_that_it_may_not_need(self) -> None:
        self.successResultOf(self.opened())
        self.assertFalse(self.large.expected(self.planned))

    def test_only_rows_and_their_total_are_known_of_a_cursor(self) -> None:
        for prefer in ("count=planned", "count=estimated", "handling=strict, max-affected=1"):
            found = planned("GET", "works", prefer=prefer)
            found.compiled.last.streamed = True
            self.assertFalse(self.large.expected(found), prefer)


class Turns(Case):
    def test_the_next_stream_waits_for_its_turn_and_no_longer_than_for_a_connection(self) -> None:
        first = self.successResultOf(self.opened())
        second = self.opened()
        self.clock.advance(4.9)
        self.assertNoResult(second)
        self.clock.advance(0.2)
        error = self.failureResultOf(second, TableError).value
        assert isinstance(error, TableError)
        self.assertEqual((error.status, error.code), (504, "PGRST003"))
        self.assertIn("Retry-After", dict(error.headers))
        third = self.opened()
        self.pool.free.append(Connection())
        first.close()
        self.successResultOf(third)

    def test_who_leaves_while_waiting_takes_no_turn(self) -> None:
        first = self.successResultOf(self.opened())
        second = self.opened()
        second.cancel()
        self.failureResultOf(second)
        first.close()
        self.assertEqual(self.streams.places.tokens, 1)

    def test_a_query_that_fails_gives_everything_back(self) -> None:
        self.pool.free.clear()
        self.failureResultOf(self.opened(), IndexError)
        self.assertEqual(self.streams.places.tokens, 1)


class Paces(Case):
    def written(self) -> tuple[Client, Deferred[None]]:
        client = Client()
        return client, start(self.successResultOf(self.opened())(cast(Any, client)))

    def test_a_client_that_keeps_pace_gets_everything(self) -> None:
        client, done = self.written()
        while client.waiting is not None:
            self.clock.advance(15.0)
            client.take()
        self.successResultOf(done)
        self.assertEqual(client.written.count(b"x" * 1000), 2000)
        self.assertEqual(self.connection.asked[-1], "COMMIT")
        self.assertEqual(self.pool.back, [self.connection])

    def test_one_that_reads_nothing_is_dropped(self) -> None:
        _, done = self.written()
        self.clock.advance(60.1)
        self.failureResultOf(done, ClientGone)
        self.assertEqual((self.pool.back, self.streams.places.tokens), ([self.connection], 1))

    def test_one_that_trickles_is_dropped_however_steadily_it_does(self) -> None:
        """Each chunk of 256 kB is worth 16 seconds, and each takes 40."""
        client, done = self.written()
        chunks = 0
        while client.waiting is not None:
            self.clock.advance(40.0)
            if client.waiting is not None:
                client.take()
                chunks += 1
        self.failureResultOf(done, ClientGone)
        self.assertEqual(chunks, 2)

    def test_without_a_pace_only_one_that_stops(self) -> None:
        self.streams = self.made(0)
        client, done = self.written()
        while client.waiting is not None:
            self.clock.advance(59.0)
            client.take()
        self.successResultOf(done)

    def test_what_a_streamed_function_left_is_cleared_away_before_anybody_else_comes(self) -> None:
        self.connection.left = 1
        stream = self.successResultOf(self.opened(leaves_things=True))
        self.successResultOf(start(stream(cast(Any, Client()))))
        self.assertIn("pg_advisory_unlock_all", self.connection.asked[-1])
        self.assertEqual(self.pool.back, [self.connection])

    def test_haste_at_first_is_no_credit_for_later(self) -> None:
        self.assertEqual(Pace(60.0, 1000).left(60.0, 0.0, 10_000_000), 60.0)
