"""A connection pool with a clock of the test's own and sessions that answer when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pool import Pool


class FakeConnection:
    """A connection that answers when a test says so. ``state`` is its transaction status."""

    def __init__(self) -> None:
        self.state = "idle"
        self.closed = False
        self.altered = False
        self.on_lost: Callable[[Any], None] | None = None
        self.asked: list[str] = []
        self.answer: Deferred[list[Any]] | None = None

    @property
    def usable(self) -> bool:
        return self.state == "idle" and not self.closed

    @property
    def in_transaction(self) -> bool:
        return self.state == "in transaction"

    async def query(self, sql: str, params: Any = None) -> list[Any]:
        self.asked.append(sql)
        if sql == "begin":
            self.state = "in transaction"
        elif sql == "rollback":
            self.state = "idle"
        elif sql == "wait":
            self.answer = Deferred()
            return await self.answer
        return [(sql,)]

    async def execute(self, sql: str, params: Any = None) -> Any:
        await self.query(sql)
        tag = "ROLLBACK" if self.state == "failed transaction" else "COMMIT"
        self.state = "idle"
        return type("Cursor", (), {"statusmessage": tag})()

    def close(self) -> None:
        self.closed = True


class Case(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.made: list[FakeConnection] = []
        self.away = False
        self.pool = Pool(self.connect, 2, 5.0, self.clock)

    async def connect(self) -> Connection:
        if self.away:
            raise DatabaseGone("refused")
        self.made.append(FakeConnection())
        return cast(Connection, self.made[-1])

    def failure(self, waiting: Deferred[Any], kind: type[Exception]) -> Exception:
        failed: Exception = self.failureResultOf(waiting, kind).value
        return failed
