"""Streams from fake connections to clients that read when they are told to."""

from __future__ import annotations

from typing import Any, cast

from attrs import evolve
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.connection import Connection
from project_service.http.admission import Slot
from project_service.lifecycle import start
from project_service.tables.outcome import Outcome
from project_service.tables.sql.statement import RESPONSE_SETTINGS
from project_service.tables.stream import Pace, RowStream, Streams
from tests.unit.tables.planning import CONFIG, planned, preamble


class FakeConnection:
    """A connection with a cursor that has ``left`` more rows. ``said`` are the headers and the status that SQL has
    set. It records the queries."""

    usable = True

    def __init__(self, left: int = 0) -> None:
        self.left = left
        self.said: tuple[bytes, bytes | None] = (b'[{"X-Said": "yes"}]', None)
        self.asked: list[str] = []

    async def execute(self, sql: str) -> None:
        self.asked.append(sql)

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        self.asked.append(sql)
        if sql == RESPONSE_SETTINGS:
            return [self.said]
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
        return Streams(CONFIG, cast(Any, self.pool), DeferredSemaphore(1), self.clock, 5.0, pace)

    def opened(self, leaves_state: bool = False, expected_bytes: int = 1000) -> Deferred[RowStream]:
        likely = Outcome(rows=100, size=100 * expected_bytes)
        works = planned("GET", "works")
        works = evolve(works, compiled=evolve(works.compiled, leaves_state=leaves_state))
        return start(self.streams.open(works, preamble(), "/works", likely, self.slot))

    @property
    def given_back(self) -> bool:
        """Whether the one connection and the one slot have been given back."""
        return (self.pool.back, self.streams.turns.tokens) == ([self.connection], 1)
