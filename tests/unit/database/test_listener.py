"""The listener for notifications of the system database: it reads what it missed, notices a dead connection,
reconnects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from psycopg2.errors import ReadOnlySqlTransaction
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.listener import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    PROBE_SECONDS,
    Listener,
)
from project_service.lifecycle import start
from tests.captured_log import captured_logs


class FakeConnection:
    """A connection that answers at once as long as its server is up."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.silent = False
        self.standby = False
        self.closed = False
        self.answers_later: list[Deferred[None]] = []
        self.answer_seconds: float | None = None
        self.on_lost: Callable[[Any], None] | None = None
        self.on_notify: Callable[[str, str], None] | None = None

    async def query(self, sql: str, params: Any = None) -> list[Any]:
        self.asked.append(sql)
        if self.answers_later:
            await self.answers_later[len(self.asked) - 1]
        if self.silent:
            raise DatabaseGone("the database did not answer")
        if self.standby and sql.startswith("listen"):
            raise ReadOnlySqlTransaction
        return []

    def close(self) -> None:
        self.closed = True

    def die(self) -> None:
        if self.on_lost is not None:
            self.on_lost(self)


class Listening(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.made: list[FakeConnection] = []
        self.tried = 0
        self.away = False
        self.standby = False
        self.heard: list[str] = []
        self.gaps: list[Deferred[None]] = []
        self.reading_takes_time = False
        self.listener = Listener(self.connect, self.clock)
        self.listener.subscribe("news", self.heard.append, self.gap)
        self.addCleanup(self.stop)

    def stop(self) -> None:
        if self.listener.running:
            stopping = self.listener.stopService()
            assert stopping is not None
            self.successResultOf(stopping)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    async def connect(self) -> Connection:
        self.tried += 1
        if self.away:
            raise DatabaseGone("refused")
        self.made.append(FakeConnection())
        self.made[-1].standby = self.standby
        return cast(Connection, self.made[-1])

    async def gap(self) -> None:
        self.gaps.append(Deferred())
        if self.reading_takes_time:
            await self.gaps[-1]

    def test_it_is_current_once_it_listens_and_what_was_missed_has_been_read(self) -> None:
        self.reading_takes_time = True
        self.listener.subscribe("news", self.heard.append, self.gap)
        self.listener.subscribe("more", self.heard.append, self.gap)
        waiting = self.listener.ready()
        self.assertFalse(self.listener.current)
        self.listener.startService()
        self.assertEqual(
            self.made[0].asked, ['listen "more"', 'listen "news"'], "each channel once, and first"
        )
        for number in range(3):
            self.assertNoResult(waiting)
            self.assertFalse(self.listener.current)
            self.gaps[number].callback(None)
        self.successResultOf(waiting)
        self.successResultOf(self.listener.ready())
        self.assertTrue(self.listener.current)
        self.assertEqual(len(self.gaps), 3)

    def test_each_subscriber_hears_its_own_channel(self) -> None:
        others: list[str] = []
        self.listener.subscribe("more", others.append, self.gap)
        self.listener.startService()
        assert self.made[0].on_notify is not None
        self.made[0].on_notify("news", "one")
        self.made[0].on_notify("more", "two")
        self.made[0].on_notify("unknown", "three")
        self.assertEqual((self.heard, others), (["one"], ["two"]))

    def test_a_lost_connection_is_noticed_at_once_and_what_was_missed_is_read_again(self) -> None:
        self.listener.startService()
        self.made[0].die()
        self.assertFalse(self.listener.current)
        self.assertTrue(self.made[0].closed)
        waiting = self.listener.ready()
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.successResultOf(waiting)
        self.assertEqual((len(self.made), len(self.gaps)), (2, 2))

    def test_a_silently_dead_connection_is_found_by_probing(self) -> None:
        self.listener.startService()
        self.assertEqual(self.made[0].answer_seconds, PROBE_SECONDS)
        del self.made[0].asked[:]
        for _ in range(3):
            self.clock.advance(PROBE_SECONDS)
        self.assertEqual(self.made[0].asked, ["select 1"] * 3)
        self.made[0].silent = True
        self.clock.advance(PROBE_SECONDS)
        self.assertEqual((self.listener.current, self.made[0].closed), (False, True))
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertEqual((self.listener.current, len(self.made)), (True, 2))

    def test_queries_go_over_the_listening_connection_one_after_the_other(self) -> None:
        self.failureResultOf(start(self.listener.query("select 0")), DatabaseGone)
        self.listener.startService()
        del self.made[0].asked[:]
        self.made[0].answers_later = later = [Deferred[None](), Deferred[None]()]
        first, second = (start(self.listener.query(f"select {number}")) for number in (1, 2))
        self.assertEqual(self.made[0].asked, ["select 1"])
        later[0].callback(None)
        self.assertEqual(self.successResultOf(first), [])
        self.assertEqual(self.made[0].asked, ["select 1", "select 2"])
        later[1].callback(None)
        self.successResultOf(second)

    def test_a_connection_that_is_lost_under_a_query_is_replaced(self) -> None:
        self.listener.startService()
        self.made[0].silent = True
        self.failureResultOf(start(self.listener.query("select 1")), DatabaseGone)
        self.assertEqual((self.listener.current, self.made[0].closed), (False, True))
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertEqual((self.listener.current, len(self.made)), (True, 2))

    def test_a_standby_which_lets_nobody_listen_can_be_asked_until_the_next_attempt(self) -> None:
        self.standby = True
        connected, ready = self.listener.connected(), self.listener.ready()
        self.assertNoResult(connected)
        self.listener.startService()
        self.successResultOf(connected)
        for attempt in range(8):
            self.assertEqual((len(self.made), self.made[-1].closed), (attempt + 1, False))
            self.assertEqual(self.successResultOf(start(self.listener.query("select 1"))), [])
            self.clock.advance(LONGEST_PAUSE_SECONDS)
        self.assertFalse(self.listener.current)
        self.made[-1].die()
        self.assertNoResult(self.listener.connected())
        self.assertEqual(len(self.made), 9, "the pause is no shorter")
        self.standby = False
        self.clock.advance(LONGEST_PAUSE_SECONDS)
        self.successResultOf(ready)
        self.assertEqual([connection.closed for connection in self.made], [True] * 9 + [False])

    def test_an_unreachable_database_is_tried_again_after_growing_pauses(self) -> None:
        self.away = True
        pauses = []
        with captured_logs() as events:
            self.listener.startService()
            for _ in range(8):
                [again] = self.clock.getDelayedCalls()
                pauses.append(round(again.getTime() - self.clock.seconds(), 3))
                self.clock.advance(pauses[-1] + 0.001)
        growing = [FIRST_PAUSE_SECONDS * 2**number for number in range(4)]
        self.assertEqual(pauses[:4], growing)
        self.assertEqual(set(pauses[4:]), {LONGEST_PAUSE_SECONDS})
        expected = "listening to the system database failed: refused"
        self.assertEqual({formatEvent(event) for event in events}, {expected})
        self.away = False
        self.clock.advance(LONGEST_PAUSE_SECONDS)
        self.made[0].die()
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertTrue(self.listener.current, "after a success the pauses begin anew")

    def test_if_reading_fails_another_connection_is_made(self) -> None:
        self.reading_takes_time = True
        self.listener.startService()
        self.gaps[0].errback(DatabaseGone("closed"))
        self.assertFalse(self.listener.current)
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertTrue(self.made[0].closed)
        self.gaps[1].callback(None)
        self.assertTrue(self.listener.current)

    def test_it_stops_in_every_state(self) -> None:
        def at_work() -> None: ...

        def reading() -> None:
            self.reading_takes_time = True

        def away() -> None:
            self.away = True

        for where in (at_work, reading, away):
            self.setUp()
            where()
            self.listener.startService()
            with captured_logs() as events:
                self.stop()
            self.assertEqual((events, self.listener.current, self.listener.running), ([], False, 0), where)
            self.assertEqual([connection.closed for connection in self.made], [True] * len(self.made), where)
            tried = self.tried
            self.clock.advance(60)
            self.assertEqual(self.tried, tried, where)
