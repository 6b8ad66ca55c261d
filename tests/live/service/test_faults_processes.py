"""Processes that die under load, and a clock that is set."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
import requests

from tests.live.daemon import (
    ROOT,
    TIMEOUT_SECONDS,
    Daemon,
    answers,
    children_on,
    eventually,
    pid_of,
    twistd,
    workers_of,
)
from tests.live.loaded_service import (
    PATIENT_SECONDS,
    credentials,
    gone_on,
    judge,
    load_on,
    make_ledger,
    started,
    warmed_up,
)
from tests.live.mixed_load import PARTS
from tests.live.services import WithDatabase


@pytest.fixture(scope="module")
def directory(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_database(tmp_path_factory.mktemp("faults") / "var").parent


@pytest.fixture(scope="module")
def daemon(directory: Path) -> Iterator[Daemon]:
    """One service for the module. A test that ends the service has one of its own."""
    with started(directory) as one:
        make_ledger(directory)
        yield one


@pytest.fixture(scope="module")
def spare(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the tests that end their service, one after the other."""
    return with_database(tmp_path_factory.mktemp("spare") / "var").parent


# A planned restart, ``pg_ctl restart -m fast``, sends SIGINT.
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, signal.SIGINT], ids=["postgres-killed", "postgres-restarted"]
)
def test_a_database_that_dies_is_replaced(daemon: Daemon, directory: Path, how: signal.Signals) -> None:
    is_replaced(directory, "postgres", how, stops=PARTS)


def test_a_store_that_dies_is_replaced_and_only_its_part_stops(spare: Path) -> None:
    # The others do not fail as long as they are given time.
    with started(spare, acquire_seconds=PATIENT_SECONDS):
        make_ledger(spare)
        is_replaced(spare, "weed", signal.SIGKILL, stops=("storage",), goes_on=("tables", "auth"))


def is_replaced(
    directory: Path, name: str, how: signal.Signals, stops: Sequence[str], goes_on: Sequence[str] = ()
) -> None:
    """Asserts that a server that gets the signal is replaced, and that meanwhile only the parts ``stops`` do."""
    with load_on(directory) as load:
        warmed_up(load)
        victim, refused = (
            pid_of(directory / "var", name),
            {part: load.count(part, "refused") for part in PARTS},
        )
        os.kill(victim, how)
        since = monotonic()
        eventually(lambda: all(load.count(part, "refused") > refused[part] for part in stops), "503")
        eventually(lambda: pid_of(directory / "var", name) not in {0, victim}, f"a new {name}")
        eventually(lambda: answers(f"{load.base_url}/ready"), "readiness")
        gone_on(load)
    judge(load, f"{name}: {how.name}", since)
    for part in PARTS:
        # The service itself keeps running: no client's connection may break.
        assert load.count(part, "broken") == 0
    for part in goes_on:
        assert load.count(part, "refused") == refused[part]


def test_a_killed_worker_is_replaced(daemon: Daemon, directory: Path) -> None:
    with load_on(directory) as load:
        warmed_up(load)
        before = workers_of(daemon)
        os.kill(min(before), signal.SIGKILL)
        since = monotonic()
        eventually(lambda: len(workers_of(daemon) - before) == 1, "a new worker")
        gone_on(load)
    judge(load, "a worker killed", since)
    # Each client had at most one request at the killed worker.
    assert all(tally.broken <= 2 for tally in load.tallies.values())


def test_a_killed_parent_loses_nothing(spare: Path) -> None:
    """The next start finds everything."""
    with started(spare) as daemon:
        make_ledger(spare)
        with load_on(spare) as load:
            warmed_up(load)
            workers = workers_of(daemon)
            since = monotonic()
            daemon.kill()
            with started(spare) as again:
                load.base_url = credentials(spare)["base_url"]
                gone_on(load)
                load.stop()
                assert not workers & workers_of(again)
                judge(load, "the parent killed", since)
                assert again.stop() == 0, again.text
    assert children_on(spare / "var") == []


def test_a_full_disk_under_the_log(spare: Path) -> None:
    """Every write to the log fails; requests are answered all the same, and the service ends cleanly."""
    data_dir = spare / "var"
    made = data_dir / "credentials.json"
    before = made.stat().st_ino if made.exists() else 0
    options = ["--listen", "tcp:0:interface=127.0.0.1", "--data-dir", str(data_dir), "--workers", "2"]
    with Path("/dev/full").open("w") as full:
        service = subprocess.Popen(
            [*twistd(sys.executable), "--nodaemon", "--pidfile=", "project-service", *options],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=full,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        eventually(lambda: made.exists() and made.stat().st_ino != before, "being ready")
        url = credentials(spare)["base_url"]
        eventually(lambda: answers(f"{url}/ready"), "readiness")
        killed = pid_of(data_dir, "weed")
        os.kill(killed, signal.SIGKILL)  # something to log
        # A 503 of /ready would not do as a sign: the new store may be ready before the test asks.
        eventually(lambda: pid_of(data_dir, "weed") not in (0, killed), "another store")
        eventually(lambda: answers(f"{url}/ready"), "readiness")
    finally:
        service.terminate()
    assert service.wait(TIMEOUT_SECONDS) == 0
    assert children_on(data_dir) == []


# One hour, and the leeway granted to clocks that differ.
HOUR = 3600.0 + 60.0
# Longer than a busy machine stands still, since the clients of the load are not to be given up.
IDLE_SECONDS = 6.0
# Each Python process of the service imports this as it starts; it adds the seconds in a file to the clock.
STEPPING = """
import os
import time

true = time.time


def stepped():
    with open(os.environ["CLOCK_STEP"]) as file:
        return true() + float(file.read())


time.time = stepped
"""


class SteppedClock:
    """Sets what ``time.time`` returns in the service. PostgreSQL and the store keep the real clock."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        directory.mkdir()
        (directory / "sitecustomize.py").write_text(STEPPING)
        self.pythonpath = f"{directory}{os.pathsep}{ROOT}"
        self._file = directory / "step"
        self.step(0.0)
        monkeypatch.setenv("CLOCK_STEP", str(self._file))

    def step(self, seconds: float) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.rename(self._file)


def is_given_up(url: str, meanwhile: Callable[[], None]) -> bool:
    """Whether an unfinished request is given up after the idle timeout. Fails if that never happens."""
    began = monotonic()
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), TIMEOUT_SECONDS) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost")
        meanwhile()
        while client.recv(1000):
            continue
    return monotonic() - began >= IDLE_SECONDS


def known(base: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return requests.get(f"{base}/auth/user", headers=headers, timeout=60).status_code


def test_an_hour_forward_and_back(spare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock(tmp_path / "clock", monkeypatch)
    monkeypatch.setenv("PROJECT_SERVICE__SERVER__IDLE_TIMEOUT_SECONDS", str(IDLE_SECONDS))
    with started(spare, pythonpath=clock.pythonpath, acquire_seconds=PATIENT_SECONDS):
        make_ledger(spare)
        base = credentials(spare)["base_url"]
        account = {"email": "clock@example.test", "password": "a long enough one"}
        signed_up = requests.post(f"{base}/auth/signup", json=account, timeout=60).json()["data"]
        with load_on(spare) as load:
            warmed_up(load)
            since = monotonic()
            # Tokens expire by the calendar; timeouts go by the time that really passed.
            for step, status in ((HOUR, 401), (-HOUR, 401), (0.0, 200)):
                assert is_given_up(base, partial(clock.step, step))
                assert known(base, signed_up["access_token"]) == status
                gone_on(load)
        judge(load, "the clock set an hour forward, two back, one forward", since)
    for part in PARTS:
        assert (load.count(part, "broken"), load.count(part, "refused")) == (0, 0)
