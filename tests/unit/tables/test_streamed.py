"""Streams of rows: how many there may be at once, how slowly a client may read, and that connections always come
back."""

from __future__ import annotations

import re
from typing import Any, cast

import psycopg2
from twisted.internet.defer import Deferred

from project_service.database.connection import DatabaseGone
from project_service.http.body import ClientGone
from project_service.lifecycle import start
from project_service.tables.errors import TableError
from project_service.tables.stream import CHUNK_BYTES, MAX_WAITING, Pace
from tests.unit.tables.streaming import Case, Client, FakeConnection


class Unserializable(psycopg2.OperationalError):
    pgcode = "40001"


class Turns(Case):
    def test_a_stream_waits_for_its_turn_as_long_as_for_a_connection(self) -> None:
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
        self.pool.free.append(FakeConnection())
        first.close()
        self.successResultOf(third)

    def test_a_stream_tells_that_it_waits_for_the_clients_of_others(self) -> None:
        first = self.successResultOf(self.opened())
        self.assertEqual(self.slot.steps, [0, 0])
        second, refused = self.opened(), self.opened()
        self.assertEqual(self.slot.steps, [2, 0])
        self.pool.free.append(FakeConnection())
        first.close()
        self.successResultOf(second)
        self.clock.advance(5.1)
        self.failureResultOf(refused, TableError)
        self.assertEqual(self.slot.steps, [2, 2])

    def test_those_who_wait_are_bounded_by_what_they_hold_in_memory(self) -> None:
        self.successResultOf(self.opened())
        for waiting in [self.opened() for _ in range(MAX_WAITING)]:
            self.assertNoResult(waiting)
            waiting.addErrback(lambda failure: failure.trap(TableError))
        error = self.failureResultOf(self.opened(), TableError).value
        self.assertEqual((error.status, error.code), (504, "PGRST003"))

    def test_a_cancelled_wait_takes_no_turn(self) -> None:
        first = self.successResultOf(self.opened())
        second = self.opened()
        second.cancel()
        self.failureResultOf(second)
        first.close()
        self.assertEqual(self.streams.turns.tokens, 1)

    def test_a_database_error_is_mapped_and_gives_turn_and_connection_back(self) -> None:
        async def gone(sql: str, params: object = None) -> list[tuple[Any, ...]]:
            raise DatabaseGone("the server closed the connection")

        self.connection.query = gone  # type: ignore[method-assign]  # it was there a moment ago
        error = self.failureResultOf(self.opened(), TableError).value
        self.assertEqual((error.status, error.code), (503, "PGRST001"))
        self.assertTrue(self.given_back)

    def test_the_idle_timeout_of_the_transaction_exceeds_the_clients_timeout(self) -> None:
        self.successResultOf(self.opened())
        (seconds,) = re.findall(r"idle_in_transaction_session_timeout = '(\d+)s'", self.connection.asked[0])
        self.assertGreater(int(seconds), self.streams.pace.timeout_seconds)

    def test_no_connection_gives_the_turn_back(self) -> None:
        self.pool.free.clear()
        self.failureResultOf(self.opened(), IndexError)
        self.assertEqual((self.pool.back, self.streams.turns.tokens), ([], 1))


class Paces(Case):
    def written(self) -> tuple[Client, Deferred[None]]:
        client = Client()
        return client, start(self.successResultOf(self.opened())(cast(Any, client)))

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
        stream = self.successResultOf(self.opened(expected_bytes=10))
        client = Client()
        done = start(stream(cast(Any, client)))
        while client.waiting is not None:
            client.take()
        self.successResultOf(done)
        fetches = (re.search(r"FETCH FORWARD (\d+)", sql) for sql in self.connection.asked)
        first, *rest = [int(found[1]) for found in fetches if found is not None]
        self.assertGreater(first * 1000, CHUNK_BYTES)
        self.assertLessEqual(max(rest) * 1000, CHUNK_BYTES)
        self.assertGreater(min(rest) * 1000, CHUNK_BYTES // 2)

    def test_session_state_left_by_a_streamed_function_is_cleared(self) -> None:
        self.connection.left = 1
        stream = self.successResultOf(self.opened(leaves_state=True))
        self.successResultOf(start(stream(cast(Any, Client()))))
        self.assertIn("pg_advisory_unlock_all", self.connection.asked[-1])
        self.assertEqual(self.pool.back, [self.connection])

    def test_session_state_is_cleared_also_after_a_refused_commit(self) -> None:
        self.connection.left = 1
        stream = self.successResultOf(self.opened(leaves_state=True))
        asked = self.connection.query

        async def refused(sql: str, params: object = None) -> list[tuple[Any, ...]]:
            if sql == "COMMIT":
                raise Unserializable
            return await asked(sql, params)

        self.connection.query = refused  # type: ignore[method-assign]
        written = start(stream(cast(Any, Client())))
        self.failureResultOf(written, TableError)
        self.assertIn("pg_advisory_unlock_all", self.connection.asked[-1])
        self.assertTrue(self.given_back)

    def test_reading_fast_at_first_earns_no_time_for_later(self) -> None:
        self.assertEqual(Pace(60.0, 1000).left(60.0, 0.0, 10_000_000), 60.0)
