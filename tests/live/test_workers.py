"""Several processes on one port: they share the work, are replaced when they die and leave with their parent."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from project_service.embedded.identity import PROC
from tests.live.daemon import Daemon, answers, children_on, eventually


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers") / "var"


@pytest.fixture(scope="module")
def daemon(data_dir: Path) -> Iterator[Daemon]:
    """One for the module; the last of its tests stops it."""
    with Daemon(data_dir, "--workers", "2") as one:
        one.wait_until_ready()
        yield one


def workers_of(daemon: Daemon) -> set[int]:
    """The pids of the parent's serving children."""
    found = set()
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended while we looked
        if parent == daemon.process.pid and b"project_service.worker" in command:
            found.add(int(entry.name))
    return found


def url_of(daemon: Daemon) -> str:
    return str(re.findall(r"ready on (http://\S+)", daemon.text)[-1])


def alive(pid: int) -> bool:
    return (PROC / str(pid)).exists()


def test_they_share_the_port_and_metrics_sum_over_them(daemon: Daemon) -> None:
    url = url_of(daemon)
    assert len(workers_of(daemon)) == 2
    for _ in range(40):
        assert requests.get(f"{url}/live", timeout=10).status_code == 200
    metrics = requests.get(f"{url}/metrics", timeout=10).text
    counted = re.search(r'requests_total\{method="GET",route="/live",status="200"\} (\S+)', metrics)
    assert counted is not None, metrics
    assert float(counted[1]) == 40


def test_no_secret_is_in_the_process_list(daemon: Daemon, data_dir: Path) -> None:
    secrets = list(re.findall(r'"([^"]{20,})"', (data_dir / "credentials.json").read_text()))
    shown = ""
    for pid in [daemon.process.pid, *workers_of(daemon), *children_on(data_dir)]:
        shown += (PROC / str(pid) / "cmdline").read_text(errors="replace")
        shown += (PROC / str(pid) / "environ").read_text(errors="replace")
    for secret in secrets:
        assert secret not in shown
        password = re.search(r":([^:@/]+)@", secret)
        assert password is None or password[1] not in shown


def test_a_worker_that_is_killed_is_replaced_and_the_others_go_on(daemon: Daemon) -> None:
    url = url_of(daemon)
    before = workers_of(daemon)
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(workers_of(daemon) - before) == 1, "a new worker")
    eventually(lambda: answers(f"{url}/ready"), "readiness")
    assert not alive(victim)
    assert max(before) in workers_of(daemon)


def test_workers_leave_when_their_parent_is_killed(daemon: Daemon) -> None:
    workers = workers_of(daemon)
    daemon.kill()
    eventually(lambda: not any(alive(pid) for pid in workers), "the end of the workers")


def test_sighup_reaches_the_workers_and_sigterm_stops_all(data_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[server]\nworkers = 2\ncors_origins = ["https://old.test"]\n')
    with Daemon(data_dir, "--config", str(config)) as daemon:
        url = daemon.wait_until_ready()

        def allowed(name: str) -> bool:
            # On new connections each time, so that both workers are asked sooner or later.
            answered = [
                requests.get(f"{url}/live", headers={"Origin": name, "Connection": "close"}, timeout=10)
                for _ in range(20)
            ]
            return all("Access-Control-Allow-Origin" in one.headers for one in answered)

        assert allowed("https://old.test")
        config.write_text('[server]\nworkers = 2\ncors_origins = ["https://new.test"]\n')
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: allowed("https://new.test"), "the new origins")
        config.write_text("[server]\nworkers = 2\ncors_origins = 7\n")
        daemon.process.send_signal(signal.SIGHUP)
        workers = workers_of(daemon)
        assert daemon.stop() == 0, daemon.text
        assert not any(alive(pid) for pid in workers)
        assert children_on(data_dir) == []
        assert "the configuration was not reloaded" in daemon.text
        assert "server.cors_origins must be a list" in daemon.text
