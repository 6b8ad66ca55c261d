"""What operators see of a service with two workers, whichever of them is asked."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.live.daemon import Daemon, eventually, workers_of


class Service:
    def __init__(self, daemon: Daemon, data_dir: Path) -> None:
        self.daemon = daemon
        self.url = daemon.wait_until_ready()
        credentials = json.loads((data_dir / "credentials.json").read_text())
        self.headers = {"X-Service-Key": credentials["service_key"]}

    def get(self, path: str, **query: Any) -> Any:
        """Asks on a connection of its own, so that any worker may answer."""
        response = requests.get(self.url + path, params=query, headers=self.headers, timeout=60)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data_dir = tmp_path_factory.mktemp("two") / "var"
    with Daemon(data_dir, "--workers", "2") as daemon:
        yield Service(daemon, data_dir)


def test_the_overview_is_of_both_and_what_a_dead_one_served_stays_counted(service: Service) -> None:
    workers = workers_of(service.daemon)
    for _ in range(40):
        requests.get(f"{service.url}/auth/user", timeout=60)

    shown: dict[str, Any] = {}

    def served() -> bool:
        """All forty are in the samples, both workers have written theirs, and no part was too slow to be asked."""
        nonlocal shown
        shown = service.get("/admin/overview")
        quick = shown["sizes"] is not None and all(part["works"] for part in shown["parts"])
        return shown["last_hour"]["refused"] == 40 and len(shown["processes"]) == 2 and quick

    eventually(served, "the samples of both workers")
    assert {one["pid"] for one in shown["processes"]} == workers
    assert all(one["memory_bytes"] > 10_000_000 for one in shown["processes"])
    assert {"status": 401, "code": "authentication_required", "count": 40} in shown["last_hour"]["codes"]
    assert {"workers", "database", "store"} <= {part["name"] for part in shown["parts"]}
    assert {one["name"] for one in shown["pools"]} == {"system", "policies", "dev/main"}
    assert shown["sizes"]["databases"][0]["bytes"] > 1_000_000
    assert {"public", "private"} <= {one["name"] for one in shown["sizes"]["buckets"]}

    os.kill(min(workers), signal.SIGKILL)
    eventually(lambda: len(workers_of(service.daemon) - workers) == 1, "a new worker")
    (fresh,) = workers_of(service.daemon) - workers

    def replaced() -> bool:
        pids = {one["pid"] for one in service.get("/admin/overview")["processes"]}
        assert min(workers) not in pids
        return pids == {max(workers), fresh}

    eventually(replaced, "the new worker in the overview")
    assert service.get("/admin/overview")["last_hour"]["refused"] == 40


def test_the_log_is_that_of_all_processes(service: Service) -> None:
    for n in range(20):
        headers = {"X-Request-Id": f"asked-{n}"}
        requests.get(f"{service.url}/auth/user", headers=headers, timeout=60)
    wanted = {f"asked-{n}" for n in range(20)}

    def logged() -> bool:
        lines = service.get("/admin/log", limit=1000, text="/auth/user")["lines"]
        return wanted <= {line["request_id"] for line in lines}

    eventually(logged, "the lines of all requests")
    (line,) = service.get("/admin/log", request_id="asked-7")["lines"]
    assert (line["level"], line["part"]) == ("info", "project_service.http.edge.Edge")
    # The supervisor's own.
    said = service.get("/admin/log", part="project_service.daemon")["lines"]
    assert any(" starts (Python " in line["text"] for line in said)

    newest = service.get("/admin/log")["newest"]
    requests.get(f"{service.url}/auth/user", headers={"X-Request-Id": "later"}, timeout=60)
    eventually(
        lambda: (
            [line["text"] for line in service.get("/admin/log", after=newest, request_id="later")["lines"]]
            != []
        ),
        "the line that came after",
    )
    assert service.get("/admin/log", after=newest, request_id="asked-7")["lines"] == []


def test_another_key_signs_in_both_at_once(service: Service) -> None:
    """Whichever of them is asked, the other one verifies what the new key signs."""
    (before,) = service.get("/admin/keys/signing")["keys"]
    url = f"{service.url}/admin/keys/signing/rotate"
    response = requests.post(url, json={}, headers=service.headers, timeout=60)
    assert response.status_code == 200, response.text
    new, old = response.json()["keys"]
    assert (old["kid"], new["state"]) == (before["kid"], "signs")

    def known() -> bool:
        """To both: of so many connections one worker alone does not answer all."""
        return all(service.get("/admin/keys/signing")["keys"] == [new, old] for _ in range(8))

    eventually(known, "the new key in both workers")


def test_the_settings_are_those_of_both_together(service: Service) -> None:
    for _ in range(4):
        listed = {one["name"]: one for one in service.get("/admin/settings")["settings"]}
        assert (listed["database.pool_size"]["value"], listed["database.pool_size"]["source"]) == (
            10,
            "default",
        )
        assert (listed["server.workers"]["value"], listed["server.workers"]["source"]) == (2, "command line")
        for name in ("database.dsn", "store.secret_access_key"):
            assert (listed[name]["value"], listed[name]["set"], listed[name]["source"]) == (
                None,
                True,
                "embedded",
            )
    service.daemon.reload("the configuration was reloaded")
    for _ in range(4):
        listed = {one["name"]: one for one in service.get("/admin/settings")["settings"]}
        assert listed["database.dsn"]["source"] == listed["smtp.mail_dir"]["source"] == "embedded"
