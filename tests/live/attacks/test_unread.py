"""Clients that ask for large responses and do not read them: the memory for them is bounded and freed again."""

from __future__ import annotations

import gc
import socket
from functools import partial
from pathlib import Path

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.tcp import Server

from project_service.database.pool import Pool, Transaction
from project_service.http import connection
from project_service.http.limits import UnsentLimit
from project_service.network import unsent
from project_service.settings.model import Store
from tests.live.application import Api, serving, settings_for
from tests.live.sql import connector, run_sql
from tests.live.tables.service import BASE
from tests.live.waiting import until

MIB = 1024 * 1024
CLIENTS = 12
WIDE = """
create table wide (id int, words text); insert into wide values (1, repeat('x', 100000)); grant select on wide to anon
"""
PATH = f"{BASE}/wide?select={','.join(f'a{number}:words' for number in range(120))}"


def asking(api: Api) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", api.application.addresses[0].port))
    headers = f"Host: a\r\nApikey: {api.anon_key}\r\nAccept: application/vnd.pgrst.object+json"
    client.sendall(f"GET {PATH} HTTP/1.1\r\n{headers}\r\n\r\n".encode())
    return client


def state_of(client: socket.socket) -> str:
    """ "cut off", "answered" or "waiting". A connection says only once that it was cut off."""
    try:
        client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return "waiting"
    except ConnectionError:
        return "cut off"
    return "cut off" if client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) else "answered"


@pytest_twisted.ensureDeferred
async def test_some_of_many_clients_that_do_not_read_are_cut_off(
    database: str,
    store_settings: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(connection, "UnsentLimit", partial(UnsentLimit, max_bytes=30 * MIB))
    run_sql(database, WIDE)
    gc.disable()
    request.addfinalizer(gc.enable)
    # None is refused for its wait, which would leave too few answers that nobody reads.
    patient = {"acquire_timeout_seconds": 60.0}
    settings = settings_for(database, store_settings, tmp_path, database=patient)
    async with serving(settings) as api:
        clients = [asking(api) for _ in range(CLIENTS)]
        cut_off: set[socket.socket] = set()

        def all_have_had_theirs() -> bool:
            # Otherwise the next one's answer might cut off the client that reads, which has only just begun.
            states = {one: state_of(one) for one in clients if one not in cut_off}
            cut_off.update(one for one, state in states.items() if state == "cut off")
            return "waiting" not in states.values() and len(cut_off) >= CLIENTS - 5

        await until(all_have_had_theirs)
        assert len(cut_off) < CLIENTS
        # A client that reads gets its whole response.
        status, _, body = await api.request("GET", PATH)
        assert (status, len(body[0])) == (200, 120)
        for client in clients:
            client.close()
        # Connections that the garbage collector has not freed yet.
        gone = [one for one in gc.get_objects() if isinstance(one, Server) and not one.connected]
        assert sum(map(unsent, gone)) == 0, "what was for them is not freed"


@pytest_twisted.ensureDeferred
async def test_a_database_connection_does_not_keep_a_large_result(database: str) -> None:
    pool = Pool(connector(database), 1, 5.0, reactor)
    await pool.query("select repeat('x', 100)")
    assert pool._idle[0]._cursor is not None
    await pool.query("select repeat('x', 2000000)")
    assert pool._idle[0]._cursor is None
    assert await pool.query("select 1") == [(1,)]
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_database_connection_whose_buffer_has_grown_large_is_closed(database: str) -> None:
    pool = Pool(connector(database), 1, 5.0, reactor)
    before = await pool.query("select pg_backend_pid()")

    async def asks_for_much(transaction: Transaction) -> None:
        await transaction.query("create table public.kept (a int)")
        await transaction.query("select repeat('x', 20000000)")
        # The transaction that asked for it keeps the connection until its end.
        assert await transaction.query("select pg_backend_pid()") == before

    await pool.transaction(asks_for_much)
    assert await pool.query("select count(*) from public.kept") == [(0,)]
    assert await pool.query("select pg_backend_pid()") != before
    await pool.close()
