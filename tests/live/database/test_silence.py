"""A connection to a database on another host that stops answering without closing it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet import reactor as _reactor

from project_service.database.connection import Connection, DatabaseGone
from tests.live.proxy import RudeProxy, rude_proxy
from tests.live.sql import connection_to, run_sql
from tests.live.waiting import until

reactor: Any = _reactor
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
