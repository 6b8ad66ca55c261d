"""The listening connection to a real database, and connections to a server that stops answering."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from project_service.database.connecting import Connector
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.listener import Listener
from project_service.dsn import read_dsn
from project_service.lifecycle import start
from tests.live.proxy import RudeProxy, rude_proxy
from tests.live.sql import connection_to, run_sql
from tests.live.waiting import until

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


# A statement long enough to fill the receiver's buffer in the kernel, and short enough for the sender's.
LARGE = "x" * 40_000
SMALL_WINDOW = 4096


@asynccontextmanager
async def over_tcp(database: str, **more: str) -> AsyncIterator[tuple[Connection, RudeProxy]]:
    known = parse_dsn(database)
    async with rude_proxy(f"unix:{known['host']}/.s.PGSQL.{known['port']}") as (proxy, port):
        dsn = make_dsn(database, host="127.0.0.1", port=port, **more)
        connection = await connection_to(dsn)
        try:
            yield connection, proxy
        finally:
            connection.close()


@pytest.mark.parametrize(("more", "idle"), [({}, 30), ({"keepalives_idle": "7"}, 7)])
@pytest_twisted.ensureDeferred
async def test_keepalive_is_set_on_both_sides(database: str, more: dict[str, str], idle: int) -> None:
    async with over_tcp(database, **more) as (connection, _):
        with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as seen:
            assert seen.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            asked = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            assert [seen.getsockopt(socket.IPPROTO_TCP, one) for one in asked] == [idle, 10, 3]
        # The server's own socket is a Unix socket here, so it has no values to show.
        sources = await connection.query(
            "select distinct source from pg_settings where name like 'tcp_keepalives_%%'", ()
        )
        assert sources == [("session",)]
        # And a host that stands still in a transaction does not keep its locks.
        assert await connection.query("show idle_in_transaction_session_timeout") == [("1min",)]


@pytest_twisted.ensureDeferred
async def test_a_statement_that_was_given_up_is_not_run_later(database: str) -> None:
    """After an interruption of the network the kernel would go on sending for minutes what nobody waits for."""
    run_sql(database, "create table public.given_up (said text)")
    async with over_tcp(database, application_name="given up") as (connection, proxy):
        (client,) = proxy.open
        transport: Any = client.transport
        transport.getHandle().setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
        transport.pauseProducing()
        connection.answer_seconds = 0.2
        with pytest.raises(DatabaseGone, match="did not answer"):
            await connection.query("insert into public.given_up values (%s)", [LARGE])
        transport.resumeProducing()

        async def over() -> bool:
            return (
                run_sql(database, "select 1 from pg_stat_activity where application_name = 'given up'") == []
            )

        await until(over)
    assert run_sql(database, "select length(said) from public.given_up") == []
