"""Overload: more requests and connections than the service can take, and who waits, or is refused or closed.

The loads that take a minute, with their figures, are in ``tests/chaos/overload.py``.
"""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.protocol import Factory

from project_service.lifecycle import start
from project_service.network import bind_endpoints
from project_service.settings.model import Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open
from tests.live.sql import run_sql
from tests.live.waiting import until

ROWS = "/dev/db/main/rest/counted"
SLOW = "/dev/db/main/rest/rpc/slow"
# Requests that a database of the table API serves at once: one for each of its ten connections, and two more.
PLACES = 12
AT_ONCE = 10
MOST_CONNECTIONS = 150
LARGE_BYTES = 8 * 1024 * 1024
TABLES = """
create table counted (id int); grant select on counted to anon;
create function slow() returns int language sql stable as 'select 1 from pg_sleep(0.2)';
"""


@pytest.fixture(scope="module")
def api(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    run_sql(module_database, TABLES)
    settings = settings_for(
        module_database,
        evolve(store_settings, max_connections=1),
        Path(tmp_path_factory.mktemp("overload")),
        # Longer than a busy machine stands still, with these clients: those that are to be kept must not seem idle.
        server={"idle_timeout_seconds": 6.0, "max_connections": MOST_CONNECTIONS},
        # So long that no request times out on a slow machine.
        database={"acquire_timeout_seconds": 60.0},
    )
    with held_open(serving(settings)) as running:
        yield running


class Raw:
    """A client with full control of its connection, which waits for nothing by itself."""

    def __init__(self, api: Api, sent: bytes = b"", window: int | None = None) -> None:
        self._socket = socket.socket()
        if window is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._socket.settimeout(5)
        self._socket.connect(("127.0.0.1", api.port))
        self._socket.sendall(sent)
        self._socket.setblocking(False)
        self.received = b""
        self.closed = False

    def read(self, most: int = 4096) -> bytes:
        """What can be read now."""
        try:
            data = self._socket.recv(most)
        except BlockingIOError:
            return b""
        except ConnectionError:
            data = b""
        self.closed = self.closed or not data
        self.received += data
        return data

    def is_closed(self) -> bool:
        while self.read():
            pass
        return self.closed

    def close(self) -> None:
        self._socket.close()


@asynccontextmanager
async def crowd(*groups: list[Raw]) -> AsyncIterator[None]:
    """Groups of clients, to which members may be added; at the end all are closed."""
    try:
        yield
    finally:
        for member in itertools.chain(*groups):
            member.close()


@pytest_twisted.ensureDeferred
async def test_those_who_do_not_fit_wait_for_their_turn(api: Api) -> None:
    answers: list[int] = []

    async def ask() -> None:
        answers.append((await api.request("GET", ROWS))[0])

    with closing(psycopg2.connect(api.dsn)) as owner:
        owner.cursor().execute("lock table counted")
        asked: list[Deferred[None]] = [start(ask()) for _ in range(100)]

        async def all_wait() -> bool:
            waiting = await metric(api, 'project_service_requests_waiting{part="tables:dev/main"}')
            return waiting == 100 - PLACES

        await until(all_wait)
        # The other parts are not affected.
        assert [(await api.request("GET", path, key=None))[0] for path in ("/live", "/ready")] == [200, 200]
        assert (await api.sign_up("calm@example.test"))["access_token"]
        listed = await api.request("GET", "/storage/buckets/public/objects")
        assert listed[0] == 200
        assert answers == []
        owner.rollback()
    await gatherResults(asked)
    assert answers == [200] * 100


@pytest_twisted.ensureDeferred
async def test_clients_of_a_slow_function_are_all_served(api: Api) -> None:
    """Of a function of 200 ms, ten connections serve fifty a second: five clients for each are no overload."""

    async def ask(method: str) -> list[int]:
        return [
            (await api.request(method, SLOW, data=b"{}" if method == "POST" else None))[0] for _ in range(3)
        ]

    for method in ("GET", "POST"):
        statuses = await gatherResults([start(ask(method)) for _ in range(50)])
        assert Counter(itertools.chain(*statuses)) == {200: 150}


async def metric(api: Api, name: str) -> float:
    _, _, shown = await api.request("GET", "/metrics", key=None)
    return sum(
        float(line.rpartition(" ")[2]) for line in shown.decode().splitlines() if line.startswith(name)
    )


@pytest_twisted.ensureDeferred
async def test_idle_and_slow_clients_keep_nobody_from_being_served(api: Api) -> None:
    path = "/storage/buckets/public/objects/large"
    assert (await api.request("PUT", path, key="service", data=b"x" * LARGE_BYTES))[0] == 201
    head = f"Host: x\r\nX-Service-Key: {api.anon_key}\r\n".encode()
    half = [Raw(api, b"GET /live HTTP/1.1\r\n" + head + b"X-Endless: ") for _ in range(30)]
    idle = [Raw(api, b"GET /live HTTP/1.1\r\n" + head + b"\r\n") for _ in range(30)]
    ask = f"GET {path} HTTP/1.1\r\n".encode() + head + b"\r\n"
    readers: list[Raw] = []

    def all_answered() -> bool:
        """Whether all have received something. They read a little, so that none is taken for idle."""
        for one in (*idle, *readers):
            one.read(1024)
        return all(one.received for one in (*idle, *readers))

    async with crowd(half, idle, readers):
        # Far more than there are places.
        for _ in range(6):
            readers += [Raw(api, ask, window=4096) for _ in range(AT_ONCE)]
            await until(all_answered)
        assert {one.received[9:12] for one in (*idle, *readers)} == {b"200"}
        for _ in range(5):
            assert (await api.request("GET", ROWS))[0] == 200
            assert (await api.request("GET", path, headers={"Range": "bytes=0-9"}))[0] == 206
            all_answered()
        # Slow readers may go on; idle and half-sent connections are closed.
        await until(lambda: all_answered() and all(one.is_closed() for one in (*half, *idle)))
        assert {one.received for one in half} == {b""}
        assert not any(one.closed for one in readers)


@pytest_twisted.ensureDeferred
async def test_connections_beyond_the_limit_take_the_place_of_idle_ones(api: Api) -> None:
    idle = [Raw(api) for _ in range(MOST_CONNECTIONS + 50)]
    async with crowd(idle):
        await until(lambda: sum(one.is_closed() for one in idle) >= 50)
        assert not idle[-1].closed
        assert (await api.request("GET", "/live"))[0] == 200


@pytest_twisted.ensureDeferred
async def test_a_burst_of_new_connections_waits_to_be_accepted(reactor_port: int) -> None:
    # The reactor accepts none of them before this test ends.
    clients = [socket.create_connection(("127.0.0.1", reactor_port), timeout=5) for _ in range(300)]
    for client in clients:
        client.close()


@pytest_twisted.async_yield_fixture
async def reactor_port() -> AsyncIterator[int]:
    from twisted.internet import reactor

    (port,) = await bind_endpoints(reactor, ["tcp:0:interface=127.0.0.1"])(Factory())
    yield port.getHost().port  # type: ignore[attr-defined]  # a TCP one's address has it
    port.stopListening()
