"""The listening connection to a real database, which also runs queries."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg2
import pytest_twisted
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from project_service.database.connecting import Connector
from project_service.database.listener import Listener
from project_service.dsn import read_dsn
from project_service.lifecycle import start

reactor: Any = _reactor


@pytest_twisted.ensureDeferred
async def test_a_subscriber_may_query_on_the_listening_connection_at_once(database: str) -> None:
    listener = Listener(Connector(reactor, read_dsn(database), 10.0), reactor)
    answered: Deferred[list[Any]] = Deferred()

    async def ask() -> list[Any]:
        return [await listener.query("select 7"), await listener.query("select 8")]

    def heard(payload: str) -> None:
        start(ask()).chainDeferred(answered)

    async def nothing() -> None:
        return

    listener.subscribe("news", heard, nothing)
    listener.startService()
    try:
        await listener.ready()
        with closing(psycopg2.connect(database)) as other, other, other.cursor() as cursor:
            cursor.execute("notify news")
        assert await answered == [[(7,)], [(8,)]]
    finally:
        stopping = listener.stopService()
        assert stopping is not None
        await stopping
