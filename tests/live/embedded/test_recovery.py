"""Recovery of embedded mode: from killed children, killed services and damaged directories."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_twisted
from psycopg2.extensions import parse_dsn

from project_service.database.connection import DatabaseGone
from project_service.embedded import postgres, seaweed
from project_service.embedded.assemble import Embedded
from project_service.embedded.data_directory import Running, running_beside
from project_service.embedded.leftovers import Identity, alive, identify
from project_service.embedded.postgres import USER
from project_service.lifecycle import start
from project_service.settings.model import Store
from project_service.storage.s3.client import S3Store
from tests.live.logged import LoggedErrors
from tests.live.services import WithDatabase, store_client
from tests.live.sql import connection_to
from tests.live.waiting import until


async def _query(dsn: str | None, sql: str) -> object:

    assert dsn is not None
    session = await connection_to(dsn)
    try:
        rows = await session.query(sql)
        return rows[0][0] if rows else None
    finally:
        session.close()


@pytest_twisted.async_yield_fixture
async def embedded(with_database: WithDatabase, tmp_path: Path) -> AsyncIterator[Embedded]:
    from twisted.internet import reactor

    one = Embedded(reactor, with_database(tmp_path / "var"))
    yield one
    await one.stop()


BUSY = """
select count(*) from pg_stat_activity
where state = 'active' and query like '%generate_series%' and pid <> pg_backend_pid()
"""


@pytest_twisted.ensureDeferred
async def test_killed_servers_come_back_with_their_data(
    embedded: Embedded, logged_errors: LoggedErrors
) -> None:
    running = await embedded.start()
    await _query(running.dsn, "create table public.kept as select 7 as n")
    store = _client(running.store)
    await store.put("kept", b"bytes", "text/plain", {})
    before = _pids(embedded)
    assert set(before) == {"postgres", "weed"}
    # A backend too busy to notice that its server is gone still holds the shared memory the next server needs.
    busy = start(_query(running.dsn, "select count(*) from generate_series(1, 100000000)"))

    async def is_busy() -> bool:
        return await _query(running.dsn, BUSY) == 1

    await until(is_busy)
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    await until(lambda: _all_ready(embedded) and _disjoint(_pids(embedded), before))
    assert await _query(running.dsn, "select n from public.kept") == 7
    # Under the same address, which the service has known since its start.
    assert (await store.requests.send("GET", "kept")).body == b"bytes"
    await store.close()
    assert len(logged_errors.flush("died (signal SIGKILL)")) == 2
    with pytest.raises(DatabaseGone):
        await busy


def _pids(embedded: Embedded) -> dict[str, int]:
    return {name: child.pid for name, child in embedded.children.items() if child.pid is not None}


def _all_ready(embedded: Embedded) -> bool:
    return all(child.is_ready for child in embedded.children.values())


def _disjoint(one: dict[str, int], other: dict[str, int]) -> bool:
    return not set(one.values()) & set(other.values())


@pytest_twisted.ensureDeferred
async def test_stop_leaves_no_process_and_no_socket(embedded: Embedded) -> None:
    running = await embedded.start()
    assert running_beside(embedded.data_dir) == running
    children = [_identity(pid) for pid in _pids(embedded).values()]
    await embedded.stop()
    assert not any(alive(child) for child in children)
    assert running_beside(embedded.data_dir) is None
    assert not (seaweed.SOCKETS / f"seaweedfs-s3-{_port(running.store)}.sock").exists()  # a test


def _identity(pid: int) -> Identity:
    identity = identify(pid)
    assert identity is not None
    return identity


SERVICE = """
import sys
from pathlib import Path
from twisted.internet import reactor
from project_service.embedded import seaweed
from project_service.embedded.assemble import Embedded
from project_service.lifecycle import start
embedded = Embedded(reactor, Path(sys.argv[1]))
def up(running):
    print(*(child.pid for child in embedded.children.values()), flush=True)
reactor.callWhenRunning(lambda: start(embedded.start()).addCallback(up))
reactor.run()
"""


def _service(directory: Path) -> tuple[subprocess.Popen[str], list[Identity]]:
    """Starts a process with embedded servers, and returns it with their pids."""
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert service.stdout is not None
    children = [_identity(int(pid)) for pid in service.stdout.readline().split()]
    service.stdout.close()
    assert len(children) == 2
    return service, children


@pytest_twisted.ensureDeferred
async def test_servers_do_not_outlive_a_killed_service(tmp_path: Path) -> None:
    service, children = _service(tmp_path / "var")
    service.kill()
    service.wait()
    await until(lambda: not any(alive(child) for child in children))


@pytest_twisted.ensureDeferred
async def test_the_service_starts_again_after_sigkill(embedded: Embedded) -> None:
    """A killed service stops nothing; what it left behind must not keep the next one from starting."""
    service, children = _service(embedded.data_dir)
    # A stopped process does not act on being orphaned, so this one surely still runs at the next start.
    os.kill(children[0].pid, signal.SIGSTOP)
    service.kill()
    service.wait()
    os.kill(children[0].pid, signal.SIGCONT)
    running = await embedded.start()
    assert not any(alive(child) for child in children)
    assert await _query(running.dsn, "select 1") == 1


@pytest_twisted.ensureDeferred
async def test_a_server_that_the_killed_service_had_not_noted_yet_is_stopped(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is recognised by the directory that it works on."""
    monkeypatch.setattr(postgres, "STOPS", ((signal.SIGKILL, 5.0),))
    service, children = _service(embedded.data_dir)
    os.kill(children[0].pid, signal.SIGSTOP)
    service.kill()
    service.wait()
    (embedded.data_dir / "run" / "postgres.pid").unlink()
    running = await embedded.start()
    assert not alive(children[0])
    assert await _query(running.dsn, "select 1") == 1


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of a process of the user that PostgreSQL runs as; it takes no notice of other users' processes."""
    user = USER if os.geteuid() == 0 else None
    with subprocess.Popen(["sleep", "600"], cwd="/", user=user) as process:
        yield process.pid
        process.kill()


@pytest_twisted.ensureDeferred
async def test_a_stale_lock_file_with_a_living_pid_is_no_obstacle(embedded: Embedded, stranger: int) -> None:
    """After a crash in a container the pid in ``postmaster.pid`` may be any process's."""
    await embedded.start()
    await embedded.stop()
    stale = f"{stranger}\n{embedded.data_dir}/postgres\n1\n5432\n/nowhere\n\n  1 1\nready\n"
    data = embedded.data_dir / "postgres"
    (data / "postmaster.pid").write_text(stale)
    lock = embedded.data_dir / "run" / "socket" / ".s.PGSQL.5432.lock"
    lock.write_text(stale)
    running = await embedded.start()
    assert await _query(running.dsn, "select 1") == 1


@pytest_twisted.ensureDeferred
async def test_a_start_after_one_that_was_killed_while_it_made_the_database(tmp_path: Path) -> None:
    from twisted.internet import reactor

    half = tmp_path / "postgres.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    embedded = Embedded(reactor, tmp_path, store=False)
    running = await embedded.start()
    try:
        assert await _query(running.dsn, "select 1") == 1
    finally:
        await embedded.stop()


@pytest_twisted.ensureDeferred
async def test_a_data_directory_with_a_very_long_name(tmp_path: Path) -> None:
    from twisted.internet import reactor

    embedded = Embedded(reactor, tmp_path / ("long" * 30), store=False)

    async def sockets() -> Path:
        running: Running = await embedded.start()
        try:
            assert await _query(running.dsn, "select 1") == 1
            assert running.store is None
            assert running.dsn is not None
            return Path(parse_dsn(running.dsn)["host"])
        finally:
            await embedded.stop()

    first = await sockets()
    assert await sockets() == first
    # A directory that others can write to is not used for the socket.
    first.chmod(0o777)
    assert await sockets() != first
    first.rmdir()


@pytest_twisted.ensureDeferred
async def test_a_database_of_another_major_version_is_refused(embedded: Embedded) -> None:
    await embedded.start()
    await embedded.stop()
    version = embedded.data_dir / "postgres" / "PG_VERSION"
    version.write_text("17\n")
    with pytest.raises(Exception, match="made by PostgreSQL 17 and this program brings 18"):
        await embedded.start()
    assert _pids(embedded) == {}
    version.write_text("18\n")
    running = await embedded.start()
    assert await _query(running.dsn, "select 1") == 1


def _client(settings: Store | None) -> S3Store:
    assert settings is not None
    return store_client(settings)


@pytest_twisted.ensureDeferred
async def test_a_store_whose_port_is_taken_gets_another_and_keeps_its_objects(embedded: Embedded) -> None:
    running = await embedded.start()
    store = _client(running.store)
    await store.put("kept", b"bytes", "text/plain", {})
    await store.close()
    await embedded.stop()
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", _port(running.store)))
        rival.listen()
        again = await embedded.start()
    assert _port(again.store) != _port(running.store)
    store = _client(again.store)
    assert (await store.requests.send("GET", "kept")).body == b"bytes"
    await store.close()


def _port(settings: Store | None) -> int:
    assert settings is not None
    assert settings.endpoint_url is not None
    return int(settings.endpoint_url.rpartition(":")[2])
