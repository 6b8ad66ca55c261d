"""Several worker processes as one service: their ports, pools, deaths and reloads, and state that holds for all."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import psycopg2
import pytest
import requests

from project_service.embedded.leftovers import PROC
from project_service.http.metrics import MULTIPROCESS
from project_service.settings.model import Store
from tests.live.daemon import ROOT, Daemon, answers, children_on, eventually, sockets_of, workers_of
from tests.live.loaded_service import credentials, load_on, make_ledger, sections, started
from tests.live.services import WithDatabase
from tests.live.workers.shared_state import UNLIMITED_LOGINS, SharedState

# An odd number, which two workers cannot share equally.
POOLS = """
[database]
pool_size = 3
[auth]
bcrypt_cost = 4
signups_max_per_address = 0
[stages.dev.databases.main]
pool_size = 2
"""
# Each worker has a listening connection to each of its databases.
LISTENING = 2 * 2
CONNECTIONS = "select count(*) from pg_stat_activity where application_name = 'project-service'"


@pytest.fixture(scope="module")
def data_dir(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_database(tmp_path_factory.mktemp("workers") / "var")


@pytest.fixture(scope="module")
def daemon(data_dir: Path) -> Iterator[Daemon]:
    """One service for the module. A test that ends the service has one of its own."""
    config = data_dir.parent / "pools.toml"
    config.write_text(POOLS)
    with Daemon(data_dir, "--config", str(config), "--workers", "2") as one:
        one.wait_until_ready()
        # Long before the load: after a change of the schema uploads need further connections for a moment.
        make_ledger(data_dir.parent)
        yield one


def url_of(daemon: Daemon) -> str:
    return str(re.findall(r"ready on (http://\S+)", daemon.text)[-1])


def alive(pid: int) -> bool:
    return (PROC / str(pid)).exists()


def test_workers_share_the_port_and_metrics_sum_over_them(daemon: Daemon) -> None:
    url = url_of(daemon)
    assert len(workers_of(daemon)) == 2
    for _ in range(40):
        assert requests.head(f"{url}/live", timeout=60).status_code == 200

    def counted() -> float:
        metrics = requests.get(f"{url}/metrics", timeout=60).text
        # Other tests ask by GET.
        found = re.search(r'requests_total\{method="HEAD",route="/live",status="200"\} (\S+)', metrics)
        return float(found[1]) if found is not None else 0

    # The other worker writes its figures to its file once a second.
    eventually(lambda: counted() == 40, "the sum over both workers")
    processes = "\nproject_service_processes 2.0\n"
    eventually(lambda: processes in requests.get(f"{url}/metrics", timeout=60).text, "both processes")


def test_all_workers_together_stay_within_the_configured_connections(daemon: Daemon, data_dir: Path) -> None:
    """Under a load on all parts PostgreSQL never counts more than the totals."""
    known = credentials(data_dir.parent)
    counted: list[int] = []
    with closing(psycopg2.connect(known["dsn"])) as watching, load_on(data_dir.parent, clients=8) as load:
        watching.autocommit = True
        cursor = watching.cursor()

        def enough() -> bool:
            cursor.execute(CONNECTIONS)
            counted.extend(int(row[0]) for row in cursor.fetchall())
            return max(counted) >= most and load.has_gone_on(dict.fromkeys(load.tallies, 0), 40)

        # All connections are in use: for each worker 3 // 2 for the system and 2 // 2 for the table API.
        most = LISTENING + 2 * (3 // 2) + 2 * (2 // 2)
        eventually(enough, "a load on all parts, by all connections")
    assert load.wrong() == []
    assert max(counted) == most


def test_more_workers_than_connections_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(POOLS)
    with Daemon(tmp_path / "var", "--config", str(config), "--workers", "3") as daemon:
        assert daemon.wait_until_ended() == 1
    assert "server.workers is 3 and stages.dev.databases.main.pool_size is 2" in daemon.text
    assert not (tmp_path / "var").exists()


def test_a_worker_cannot_be_started_by_hand() -> None:
    alone = subprocess.run(
        [sys.executable, "-m", "project_service.workers.worker"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 1
    assert alone.stderr == "this program is started by project-service itself\n"


def test_ready_speaks_for_all_workers(daemon: Daemon) -> None:
    """Whichever worker is asked; one that hangs is noticed."""
    url = url_of(daemon)
    eventually(lambda: all(answers(f"{url}/ready") for _ in range(20)), "readiness, whichever is asked")
    hanging = min(workers_of(daemon))
    os.kill(hanging, signal.SIGSTOP)
    try:
        responses: list[dict[str, Any]] = []

        def not_ready() -> bool:
            responses.append(requests.get(f"{url}/ready", timeout=60).json())
            return "error" in responses[-1]

        eventually(not_ready, "the hanging worker being noticed")
        assert list(responses[-1]["error"]["details"]) == ["workers"]
        assert answers(f"{url}/live")
    finally:
        os.kill(hanging, signal.SIGCONT)
    eventually(lambda: answers(f"{url}/ready"), "readiness")


def test_no_secret_is_in_the_process_list(daemon: Daemon, data_dir: Path) -> None:
    """Nor are the keys in an environment, which processes of the same user can read and children inherit."""
    made = json.loads((data_dir / "embedded.json").read_text())
    keys = [credentials(data_dir.parent)[name] for name in ("anon_key", "service_key")]
    commands, environments = "", ""
    for pid in [daemon.process.pid, *workers_of(daemon), *children_on(data_dir)]:
        # A process of PostgreSQL may have ended with its connection.
        with suppress(FileNotFoundError, ProcessLookupError):
            commands += (PROC / str(pid) / "cmdline").read_text(errors="replace")
            environments += (PROC / str(pid) / "environ").read_text(errors="replace")
    assert f"--data-dir\0{data_dir}" in commands
    assert "PYTHONPATH=" in environments
    for secret in (*keys, *made.values()):
        assert len(secret) >= 20
        assert secret not in commands
    # The store's signing key is the exception: the store can read it only from its environment.
    for secret in (*keys, *(made[name] for name in made if name != "store_signing_key")):
        assert secret not in environments


def test_an_interrupt_from_the_terminal_is_handled_by_the_parent_only(daemon: Daemon) -> None:
    """SIGINT reaches the whole group; a worker that ended by it would look dead to the parent and be replaced."""
    for pid in workers_of(daemon):
        (ignored,) = re.findall(r"SigIgn:\s*(\w+)", (PROC / str(pid) / "status").read_text())
        assert int(ignored, 16) >> (signal.SIGINT - 1) & 1


def test_workers_end_when_their_parent_is_killed(
    with_database: WithDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Elsewhere any service that starts meanwhile removes the folder too.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Daemon(with_database(tmp_path / "var"), "--workers", "2") as daemon:
        daemon.wait_until_ready()
        workers = workers_of(daemon)
        assert len(workers) == 2
        (metrics,) = {metrics_of(pid) for pid in workers}
        # Each worker holds the folder, so that it is not removed while the worker outlives its parent.
        assert all(metrics in opened_by(pid) for pid in workers)
        daemon.kill()
    eventually(lambda: not any(alive(pid) for pid in workers), "the end of the workers")
    assert metrics.parent == tmp_path
    assert metrics.is_dir()
    # Only the next parent can remove the folder.
    with Daemon(tmp_path / "var", "--workers", "2") as following:
        following.wait_until_ready()
        assert not metrics.exists()
        (metrics,) = {metrics_of(pid) for pid in workers_of(following)}
        assert metrics.is_dir()
        assert following.stop() == 0
    assert not metrics.exists()


def opened_by(pid: int) -> set[Path]:
    found = set()
    for one in (PROC / str(pid) / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            found.add(one.readlink())
    return found


def metrics_of(pid: int) -> Path:
    """The folder in which a worker keeps its metrics."""
    environ = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    (found,) = (one for one in environ if one.startswith(f"{MULTIPROCESS}=".encode()))
    return Path(found.partition(b"=")[2].decode())


def uploads_at_each(workers: set[int], url: str, key: str, held: ExitStack) -> list[socket.socket]:
    """Starts uploads that are not finished, until each worker has some."""
    before = {pid: sockets_of(pid) for pid in workers}
    uploads: list[socket.socket] = []
    while any(sockets_of(pid) < before[pid] + 2 for pid in workers):
        assert len(uploads) < 200, "one worker takes all connections"
        head = f"PUT /storage/buckets/private/objects/drained-{len(uploads)} HTTP/1.1\r\nHost: h\r\n"
        upload = held.enter_context(socket.create_connection(("127.0.0.1", port_of(url)), 30))
        more = f"X-Service-Key: {key}\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        upload.sendall(f"{head}{more}".encode())
        # Now a worker has received the request.
        assert upload.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        upload.sendall(b"half")
        uploads.append(upload)
    return uploads


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def accepts(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port_of(url)), 60).close()
    except ConnectionRefusedError:
        return False
    return True


def test_sighup_reaches_all_workers_and_sigterm_drains_them(
    with_database: WithDatabase, tmp_path: Path
) -> None:
    data_dir, config = with_database(tmp_path / "var"), tmp_path / "c.toml"
    config.write_text('[server]\nworkers = 2\ncors_origins = ["https://old.test"]\n')
    with Daemon(data_dir, "--config", str(config)) as daemon:
        url = daemon.wait_until_ready()

        def allowed(name: str) -> bool:
            # So many new connections are made that each worker accepts some of them.
            answered = [
                requests.get(f"{url}/auth/user", headers={"Origin": name, "Connection": "close"}, timeout=60)
                for _ in range(20)
            ]
            return all("Access-Control-Allow-Origin" in one.headers for one in answered)

        assert allowed("https://old.test")
        config.write_text('[server]\nworkers = 2\ncors_origins = ["https://new.test"]\n')
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: allowed("https://new.test"), "the new origins")
        config.write_text("[server]\nworkers = 2\ncors_origins = 7\n")
        daemon.process.send_signal(signal.SIGHUP)
        # A worker that replaces another has the settings in force, not those in the file.
        before = workers_of(daemon)
        os.kill(min(before), signal.SIGKILL)
        eventually(lambda: len(workers_of(daemon) - before) == 1, "a new worker")
        eventually(lambda: answers(f"{url}/ready"), "readiness")
        assert allowed("https://new.test")
        workers = workers_of(daemon)
        with ExitStack() as held:
            uploads = uploads_at_each(workers, url, credentials(tmp_path)["service_key"], held)
            daemon.process.send_signal(signal.SIGTERM)
            eventually(lambda: not accepts(url), "the end of accepting")
            for upload in uploads:
                upload.sendall(b"-half")
                assert upload.recv(65536).startswith(b"HTTP/1.1 201 ")
        assert daemon.wait_until_ended() == 0, daemon.text
        assert not any(alive(pid) for pid in workers)
        assert children_on(data_dir) == []
        assert "the configuration was not reloaded" in daemon.text
        assert "server.cors_origins must be a list" in daemon.text


STEPS = 120


def test_whichever_worker_is_asked_knows_what_the_other_acknowledged(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*UNLIMITED_LOGINS)
    known = sections(database, store_settings)
    with started(tmp_path, **known, storage="") as daemon:
        make_ledger(tmp_path)
        SharedState(daemon, tmp_path, Random(7)).go(STEPS)
        assert daemon.stop() == 0, daemon.text
