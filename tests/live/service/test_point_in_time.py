"""Back to a moment by PostgreSQL's archive and the store's kept bytes, by the commands of docs/operating/restore.rst:
every row and object is as it was, although all were overwritten or deleted afterwards and the sweeper ran."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from attrs import evolve

from project_service.settings.model import Store
from tests.live.daemon import eventually
from tests.live.loaded_service import credentials, sections, started
from tests.live.postgres_server import Server
from tests.live.service.documented import named
from tests.live.services import Services
from tests.live.sql import run_sql
from tests.live.storage.cli import config_file, run

PAGE = "operating/restore.rst"
OBJECTS = "/storage/buckets/private/objects"
ROWS = "/dev/db/main/rest/notes"
NUMBERS = range(12)
LARGE = b"in parts" * (6 * 1024 * 1024 // 8)
NEVER, HOUR = 0, 3600


def kept_for(seconds: int) -> str:
    return f"cache_bytes = 0\npart_bytes = 5242880\nkeep_removed_seconds = {seconds}\nsweep_seconds = 1\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    made = Server(tmp_path / "server")
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Asking:
    """A client with the service key."""

    def __init__(self, directory: Path) -> None:
        known = credentials(directory)
        self._base, self._headers = known["base_url"], {"X-Service-Key": known["service_key"]}

    def __call__(self, method: str, path: str, status: int, **more: Any) -> requests.Response:
        got = requests.request(method, self._base + path, headers=self._headers, timeout=60, **more)
        assert got.status_code == status, f"{method} {path}: {got.status_code} {got.text[:300]}"
        return got


def fill(ask: Asking) -> None:
    for number in NUMBERS:
        ask("PUT", f"{OBJECTS}/{number}", 201, data=b"then %d" % number)
        ask("POST", ROWS, 201, json={"id": number, "text": f"then {number}"})
    ask("PUT", f"{OBJECTS}/large", 201, data=LARGE)


def spoil(ask: Asking) -> None:
    """Nothing of what was there stays as it was, and there is something new."""
    for number in NUMBERS:
        if number % 2:
            ask("DELETE", f"{OBJECTS}/{number}", 204)
        else:
            ask("PUT", f"{OBJECTS}/{number}", 200, data=b"afterwards")
    ask("PUT", f"{OBJECTS}/large", 200, data=b"afterwards")
    ask("PUT", f"{OBJECTS}/new", 201, data=b"afterwards")
    ask("DELETE", f"{ROWS}?id=gt.5", 204)
    ask("PATCH", f"{ROWS}?id=lte.5", 204, json={"text": "afterwards"})


def check_all(ask: Asking) -> None:
    for number in NUMBERS:
        assert ask("GET", f"{OBJECTS}/{number}", 200).content == b"then %d" % number
    assert ask("GET", f"{OBJECTS}/large", 200).content == LARGE
    ask("GET", f"{OBJECTS}/new", 404)
    rows = ask("GET", f"{ROWS}?order=id", 200).json()
    assert rows == [{"id": number, "text": f"then {number}"} for number in NUMBERS]


def swept(server: Server) -> None:
    """Waits until the bytes of all that was removed are, too."""
    left = "select count(*) from storage.garbage"
    eventually(lambda: run_sql(server.dsn("project"), left) == [(0,)], "the sweeper")


@pytest.mark.parametrize("kept", [HOUR, NEVER])
def test_the_database_goes_back_and_the_store_has_what_it_refers_to(
    server: Server,
    services: Services,
    store_settings: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: int,
) -> None:
    """And where the store kept nothing, ``storage verify`` says so."""
    monkeypatch.setenv("PROJECT_SERVICE__SERVER__WORKERS", "1")
    store = evolve(store_settings, bucket=services.unique("moment"))
    archive = str(tmp_path / "server" / "archive")
    run_sql(server.dsn("postgres"), "create database project")
    server.shell(named(PAGE, "archive"), ARCHIVE=archive)
    service = {**sections(server.dsn("project"), store), "storage": kept_for(kept)}
    with started(tmp_path, **service):
        ask = Asking(tmp_path)
        run_sql(server.dsn("project"), "create table public.notes (id int primary key, text text)")
        run_sql(server.dsn("project"), "notify pgrst, 'reload schema'")
        eventually(lambda: knows_the_table(ask), "the table")
        server.shell(named(PAGE, "base-backup"), ARCHIVE=archive)
        fill(ask)
        ((when,),) = run_sql(server.dsn("project"), "select clock_timestamp()::text")
        spoil(ask)
        if kept == NEVER:
            swept(server)
    (base,) = (one.name for one in Path(archive).iterdir() if one.name.startswith("base-"))
    server.shell(named(PAGE, "recover"), ARCHIVE=archive, BACKUP=base, WHEN=when)
    config = config_file(server.dsn("project"), store, tmp_path)
    code, report, output = run(config, "storage", "verify")
    if kept == NEVER:
        assert (code, len(report["missing"])) == (1, len(NUMBERS) + 1), output
        return
    assert (code, report["missing"], report["torn"]) == (0, [], []), output
    assert report["objects"] == len(NUMBERS) + 1
    with started(tmp_path, **service):
        check_all(Asking(tmp_path))
    # What came afterwards goes, and nothing else does.
    assert run(config, "storage", "sweep", "--stale-after", "0")[0] == 0
    report = run(config, "storage", "verify")[1]
    assert (report["missing"], report["orphans"]) == ([], [])
    with started(tmp_path, **service):
        ask = Asking(tmp_path)
        check_all(ask)
        # The recovered server goes on, archive included.
        ask("PUT", f"{OBJECTS}/after", 201, data=b"after")
    archived = "select archived_count > 0 and last_archived_wal like '00000002%' from pg_stat_archiver"
    run_sql(server.dsn("postgres"), "select pg_switch_wal()")
    eventually(
        lambda: run_sql(server.dsn("postgres"), archived) == [(True,)], "the new timeline in the archive"
    )


def knows_the_table(ask: Asking) -> bool:
    try:
        ask("GET", ROWS, 200)
    except AssertionError:
        return False
    return True
