"""The service under a mixed load while a process of it is killed: it recovers by itself and loses nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic

import psycopg2
import pytest
import requests

from tests.live.daemon import Daemon, answers, children_on, eventually
from tests.live.mixed_load import LEDGER, PARTS, ROWS, Load
from tests.live.test_workers import workers_of

# Short, so that an absence of a second is seen as 503 and not as a slow answer.
CONFIG = """
[server]
workers = 2
shutdown_seconds = 5
[database]
acquire_timeout_seconds = 0.5
[auth]
bcrypt_cost = 4
signups_max_per_address = 0
login_failures_max_per_address = 0
"""
# What one request may take with these settings: the acquire timeout, or the store client's tries and pauses; and
# a machine that is busy with the recovery.
LONGEST_SECONDS = 12.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@contextmanager
def started(place: Path) -> Iterator[Daemon]:
    config = place / "faults.toml"
    config.write_text(CONFIG)
    with Daemon(place / "var", "--config", str(config)) as daemon:
        daemon.wait_until_ready()
        yield daemon


@pytest.fixture(scope="module")
def daemon(place: Path) -> Iterator[Daemon]:
    with started(place) as one:
        known = credentials(place)
        with closing(psycopg2.connect(known["dsn"])) as connection:
            connection.autocommit = True
            connection.cursor().execute(LEDGER)
        eventually(lambda: knows_the_ledger(known), "the schema cache's reload in every worker")
        yield one


def credentials(place: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((place / "var" / "credentials.json").read_text())
    return found


def knows_the_ledger(known: dict[str, str]) -> bool:
    # A new connection each time, so that both workers are asked.
    asked = [
        requests.get(
            known["base_url"] + ROWS,
            headers={"X-Service-Key": known["service_key"], "Connection": "close"},
            timeout=10,
        )
        for _ in range(20)
    ]
    return all(one.status_code == 200 for one in asked)


def loaded(place: Path) -> Load:
    known = credentials(place)
    return Load(known["base_url"], known["service_key"])


def warmed_up(load: Load) -> None:
    eventually(lambda: load.has_gone_on(dict.fromkeys(PARTS, 0), 10), "a first acknowledgement of each kind")


def gone_on(load: Load) -> None:
    before = load.acknowledged()
    eventually(lambda: load.has_gone_on(before), "acknowledgements of all three parts")


def judge(load: Load, fault: str, since: float) -> None:
    """To be called when the load has ended."""
    lost = load.lost()
    print("\n" + load.report(fault, since, lost))  # noqa: T201  # pytest shows it with -s or -rP
    assert lost == []
    assert load.wrong() == []
    assert all(tally.longest < LONGEST_SECONDS for tally in load.tallies.values())


def pid_of(place: Path, name: str) -> int:
    try:
        return int(json.loads((place / "var" / "run" / f"{name}.pid").read_text())["pid"])
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize(
    ("name", "stops", "goes_on"), [("postgres", PARTS, ()), ("weed", ("storage",), ("tables", "auth"))]
)
def test_a_server_that_is_killed(
    daemon: Daemon, place: Path, name: str, stops: tuple[str, ...], goes_on: tuple[str, ...]
) -> None:
    with loaded(place) as load:
        warmed_up(load)
        victim, refused = pid_of(place, name), {part: load.count(part, "refused") for part in PARTS}
        os.kill(victim, signal.SIGKILL)
        since = monotonic()
        eventually(lambda: all(load.count(part, "refused") > refused[part] for part in stops), "503")
        eventually(lambda: pid_of(place, name) not in {0, victim}, f"a new {name}")
        eventually(lambda: answers(f"{load.base_url}/ready"), "readiness")
        gone_on(load)
    judge(load, f"{name} killed", since)
    for part in PARTS:
        # The service itself has not gone away: nobody's connection may break.
        assert load.count(part, "broken") == 0
    for part in goes_on:
        assert load.count(part, "refused") == refused[part]


def test_a_worker_that_is_killed(daemon: Daemon, place: Path) -> None:
    with loaded(place) as load:
        warmed_up(load)
        before = workers_of(daemon)
        os.kill(min(before), signal.SIGKILL)
        since = monotonic()
        eventually(lambda: len(workers_of(daemon) - before) == 1, "a new worker")
        gone_on(load)
    judge(load, "a worker killed", since)
    # One request of each client at most was with the victim.
    assert all(tally.broken <= 2 for tally in load.tallies.values())


def test_the_parent_that_is_killed(daemon: Daemon, place: Path) -> None:
    """The last of this module: who starts the service again finds everything."""
    with loaded(place) as load:
        warmed_up(load)
        workers = workers_of(daemon)
        since = monotonic()
        daemon.kill()
        with started(place) as again:
            load.base_url = credentials(place)["base_url"]
            gone_on(load)
            load.stop()
            assert not workers & workers_of(again)
            judge(load, "the parent killed", since)
            assert again.stop() == 0, again.text
    assert children_on(place / "var") == []
