"""The previous release beside this program on one database and one store, as docs/operating/upgrades.rst says:
traffic moves from one to the other and back under load, behind HAProxy, and no request fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
import requests
from attrs import define

from project_service.database.migrate import definitions, shipped
from project_service.settings.model import Store
from tests.live.daemon import ROOT, Daemon
from tests.live.loaded_service import (
    credentials,
    gone_on,
    judge,
    load_on,
    make_ledger,
    sections,
    started,
    wait_for_ledger,
    warmed_up,
)
from tests.live.mixed_load import PARTS, PASSWORD, ROWS
from tests.live.releases import previous_release
from tests.live.service.haproxy import haproxy
from tests.live.services import Services
from tests.live.sql import run_sql
from tests.temporary import free_port

OBJECTS = "/storage/buckets/private/objects"
ACCOUNT = {"email": "kept@example.test", "password": PASSWORD}
# More than one part, with the least that a part may have.
LARGE = b"large" * (6 * 1024 * 1024 // 5)
STORAGE = "cache_bytes = 0\npart_bytes = 5242880\n"


@define
class Used:
    """What one user does at whichever release answers. Each round goes on from the one before."""

    base_url: str
    service_key: str
    refresh_token: str
    round: int = 0

    def goes_on(self) -> None:
        """Asserts that what earlier rounds made is there, whole, and can be changed."""
        self.round += 1
        refreshed = self._ask("POST", "/auth/refresh", 200, json={"refresh_token": self.refresh_token})
        session = refreshed.json()["data"]
        self.refresh_token = session["refresh_token"]
        as_user = {"Authorization": f"Bearer {session['access_token']}"}
        user = self._ask("GET", "/auth/user", 200, headers=as_user).json()["data"]["user"]
        assert user["email"] == ACCOUNT["email"]
        self._ask("POST", "/auth/login", 200, json=ACCOUNT)
        assert self._ask("GET", f"{OBJECTS}/large", 200).content == LARGE
        for number in range(1, self.round):
            assert self._ask("GET", f"{OBJECTS}/moved-{number}", 200).content == b"%d" % number
        assert self._ask("GET", f"{OBJECTS}/again", 200).content == b"%d" % (self.round - 1)
        self._ask("PUT", f"{OBJECTS}/again", 200, data=b"%d" % self.round)
        self._ask("PUT", f"{OBJECTS}/new-{self.round}", 201, data=b"%d" % self.round)
        names = {"from": f"new-{self.round}", "to": f"moved-{self.round}"}
        self._ask("POST", "/storage/buckets/private/move", 200, json=names)
        made = self._ask("POST", "/storage/buckets/private/presign", 200, json={"key": "large"}).json()
        assert requests.get(made["url"], timeout=60).content == LARGE
        self._ask("PUT", f"{OBJECTS}/gone", 201, data=b"gone")
        self._ask("DELETE", f"{OBJECTS}/gone", 204)
        self._ask("POST", ROWS, 201, json={"id": str(uuid4()), "n": -self.round})
        rows = self._ask("GET", f"{ROWS}?select=n&n=lt.0&order=n.desc", 200).json()
        assert rows == [{"n": -number} for number in range(1, self.round + 1)]

    def _ask(self, method: str, path: str, status: int, **more: Any) -> requests.Response:
        headers: Mapping[str, str] = {"X-Service-Key": self.service_key, **more.pop("headers", {})}
        got = requests.request(method, self.base_url + path, headers=headers, timeout=60, **more)
        assert got.status_code == status, f"{method} {path}: {got.status_code} {got.text[:300]}"
        return got


def first_writes(directory: Path, url: str) -> Used:
    known = credentials(directory)
    headers = {"X-Service-Key": known["service_key"]}
    assert requests.post(f"{url}/auth/signup", json=ACCOUNT, timeout=30).status_code == 201
    session = requests.post(f"{url}/auth/login", json=ACCOUNT, timeout=30).json()["data"]
    for key, payload in (("large", LARGE), ("again", b"0")):
        assert requests.put(f"{url}{OBJECTS}/{key}", data=payload, headers=headers, timeout=60).ok
    return Used(url, known["service_key"], session["refresh_token"])


def edition_of(tree: Path) -> int:
    """Of the SQL that the program in ``tree`` ships; 0 for one that knows no editions."""
    asked = "from project_service.database import migrate; print(getattr(migrate, 'EDITION', 0))"
    done = subprocess.run(
        [sys.executable, "-c", asked], env={"PYTHONPATH": str(tree)}, cwd="/", capture_output=True, check=True
    )
    return int(done.stdout)


def share_credentials(one: Path, two: Path) -> None:
    (two / "var").mkdir(mode=0o700)
    for name in ("jwt-keys.json", "credentials.json"):
        (two / "var" / name).write_bytes((one / "var" / name).read_bytes())


def test_traffic_moves_from_the_previous_release_to_this_one_and_back(
    services: Services,
    empty_database: str,
    store_settings: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__SERVER__WORKERS", "1")
    previous = previous_release()
    tree = previous.unpack(tmp_path / "previous")
    both = sections(empty_database, store_settings)
    ports = {name: (free_port(), free_port()) for name in ("old", "new")}
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        directory.mkdir()

    def hosted(name: str, directory: Path, pythonpath: Path) -> Any:
        serving, checked = (f"tcp:{port}:interface=127.0.0.1" for port in ports[name])
        options = ("--listen", serving, "--admin-listen", checked)
        return started(directory, **both, storage=STORAGE, pythonpath=str(pythonpath), options=options)

    with haproxy(tmp_path, ports) as proxy, hosted("old", one, tree) as old:
        make_ledger(one)
        proxy.only("old", "new")
        used = first_writes(one, proxy.url)
        used.goes_on()
        with load_on(one) as load:
            load.base_url = proxy.url
            warmed_up(load)
            since = monotonic()
            # It migrates the database while the old one serves.
            share_credentials(one, two)
            with hosted("new", two, ROOT):
                wait_for_ledger(two)
                assert applied(empty_database) == len(shipped())
                gone_on(load)
                used.goes_on()
                for there, away in (("new", "old"), ("old", "new"), ("new", "old")):
                    proxy.only(there, away)
                    gone_on(load)
                    used.goes_on()
                assert old.stop() == 0, old.text
                gone_on(load)
                repeated = proxy.repeated()
                if edition_of(tree) >= definitions().oldest:
                    with hosted("old", one, tree):
                        proxy.only("old", "new")
                        gone_on(load)
                        used.goes_on()
                        proxy.only("new", "old")
                else:
                    refused(one, tree)
                gone_on(load)
                load.stop()
                judge(load, f"from {previous.version} to this program and back, {repeated} repeated", since)
                for part in PARTS:
                    failed = (load.count(part, "refused"), load.count(part, "broken"))
                    assert failed == (0, 0), load.tallies[part].refusals


def refused(directory: Path, tree: Path) -> None:
    """Asserts that the program in ``tree`` does not start again, and says why."""
    with Daemon(directory / "var", "--config", str(directory / "faults.toml"), pythonpath=str(tree)) as again:
        assert again.wait_until_ended() != 0
    assert "the database is newer than this program" in again.text


def applied(dsn: str) -> int:
    return int(run_sql(dsn, "select count(*) from _project_service.migrations")[0][0])


def test_this_program_starts_on_a_newer_database_that_admits_it(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__SERVER__WORKERS", "1")
    both, edition = sections(database, store_settings), definitions().edition
    newer = f"update _project_service.definitions set sha256 = 'newer', edition = {edition + 1}, oldest = "
    run_sql(
        database,
        "insert into _project_service.migrations (number, name, sha256) values (9999, '9999_later.sql', 'x')",
    )
    run_sql(database, newer + str(edition))
    with started(tmp_path, **both) as admitted:
        assert (
            f"The database is newer than this program (edition {edition + 1}) and lets it start"
            in "\n".join(admitted.output)
        )
    assert run_sql(database, "select distinct sha256 from _project_service.definitions") == [("newer",)]
    run_sql(database, newer + str(edition + 1))
    refused(tmp_path, ROOT)
