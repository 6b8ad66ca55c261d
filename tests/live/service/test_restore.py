"""Restoring a dump on a new machine, as a superuser and without one, as docs/operating/restore.rst says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from attrs import evolve

from project_service.settings.model import Store
from tests.live.database.catalog import catalog
from tests.live.loaded_service import credentials, sections, started
from tests.live.postgres_server import Server
from tests.live.service.documented import named
from tests.live.services import Services
from tests.live.sql import run_each, run_sql
from tests.live.storage.cli import config_file, run

PAGE = "operating/restore.rst"
OWNER_PASSWORD = "choose one"
ACCOUNT = {"email": "kept@example.test", "password": "a long enough one"}
OBJECT = "/storage/buckets/private/objects/kept"
NOTES = "/dev/db/main/rest/notes"
# What a project makes for itself, with what a dump has to carry: an owner, rights, a policy, a default, a trigger.
PROJECT = """
create table public.notes (
  id int generated always as identity primary key, owner uuid default auth.uid(), text text not null);
alter table public.notes enable row level security;
create policy own on public.notes to authenticated using (owner = auth.uid()) with check (owner = auth.uid());
grant select, insert on public.notes to authenticated;
"""


def make_roles(server: Server) -> None:
    """And the database, as an administrator does first."""
    run_each(server.dsn("postgres"), *re.findall(r"(?m)^[^-\s][^;]*;", named("operations.rst", "roles")))


def owner_dsn(server: Server) -> str:
    return server.dsn("project", "project_service", OWNER_PASSWORD)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """The old machine's and the new one's."""
    made = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        made.append(Server(tmp_path / name))
    try:
        for server in made:
            server.start()
        yield made[0], made[1]
    finally:
        for server in made:
            server.stop()


def filled(directory: Path, server: Server, store: Store) -> dict[str, str]:
    """Fills a project on the server, as one whose administrator has done all that docs/operations.rst says."""
    make_roles(server)
    directory.mkdir()
    with started(directory, **sections(owner_dsn(server), store)):
        run_sql(server.dsn("project"), "select _project_service.watch_ddl()")
        run_sql(owner_dsn(server), PROJECT + "notify pgrst, 'reload schema'")
        run_sql(server.dsn("project"), "alter database project set statement_timeout = '1h'")
        known = credentials(directory)
        base, headers = known["base_url"], {"X-Service-Key": known["service_key"]}
        assert requests.put(base + OBJECT, data=b"kept", headers=headers, timeout=30).status_code == 201
        assert requests.post(f"{base}/auth/signup", json=ACCOUNT, timeout=30).status_code == 201
        assert write(base, known["anon_key"], 201) == 1
    return known


def write(base: str, anon_key: str, status: int) -> int:
    """Signs in, writes a note and returns how many the user has."""
    login = requests.post(f"{base}/auth/login", json=ACCOUNT, timeout=30).json()
    headers = {"apikey": anon_key, "Authorization": f"Bearer {login['data']['access_token']}"}
    done = requests.post(base + NOTES, json={"text": "a note"}, headers=headers, timeout=30)
    assert done.status_code == status, done.text
    return len(requests.get(base + NOTES, headers=headers, timeout=30).json())


def serves(directory: Path, server: Server, store: Store, known: dict[str, str]) -> None:
    """Asserts that nothing is missing, and that everything works with the old keys and passwords."""
    directory.mkdir()
    config = config_file(owner_dsn(server), store, directory)
    keys = (directory.parent / "before" / "var" / "jwt-keys.json").read_bytes()
    (directory / "jwt-keys.json").write_bytes(keys)
    (directory / "jwt-keys.json").chmod(0o600)
    code, report, output = run(config, "storage", "verify")
    assert (code, report["missing"], report["torn"], report["objects"]) == (0, [], [], 1), output
    code, report, output = run(config, "check")
    assert code == 0, report
    with started(directory, **sections(owner_dsn(server), store)):
        base = credentials(directory)["base_url"]
        headers = {"X-Service-Key": known["service_key"]}
        assert requests.get(base + OBJECT, headers=headers, timeout=30).content == b"kept"
        assert write(base, known["anon_key"], 201) == 2


def everything(server: Server) -> set[str]:
    """The catalog without the numbers of columns: those that were dropped leave none behind in a restored table."""
    numbered = re.compile(r"(?<=^column: \()([^,]+),\d+,")
    return {numbered.sub(r"\1,", line) for line in catalog(server.dsn("project"))}


@pytest.fixture
def store(services: Services, store_settings: Store) -> Store:
    return evolve(store_settings, bucket=services.unique("restored"))


def test_a_dump_is_restored_as_a_superuser(
    servers: tuple[Server, Server], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__SERVER__WORKERS", "1")
    old, new = servers
    known = filled(tmp_path / "before", old, store)
    old.shell(named(PAGE, "dump"))
    for name in ("roles.sql", "project.dump"):
        (old.folder / name).rename(new.folder / name)
    output = new.shell(named(PAGE, "restore-as-superuser"))
    assert re.findall(r"ERROR:.*", output) == ['ERROR:  role "postgres" already exists']
    assert everything(new) == everything(old)
    assert run_sql(new.dsn("project"), "show statement_timeout") == [("1h",)]
    serves(tmp_path / "after", new, store, known)


def test_a_dump_is_restored_without_a_superuser(
    servers: tuple[Server, Server], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__SERVER__WORKERS", "1")
    old, new = servers
    known = filled(tmp_path / "before", old, store)
    _, dump = named(PAGE, "dump").strip().splitlines()
    owner = {"PGUSER": "project_service", "PGPASSWORD": OWNER_PASSWORD}
    old.shell(dump, **owner)
    make_roles(new)
    (old.folder / "project.dump").rename(new.folder / "project.dump")
    new.shell(named(PAGE, "restore-as-owner"), OWNER=owner_dsn(new))
    assert everything(new) == {line for line in everything(old) if not line.startswith("event trigger")}
    serves(tmp_path / "after", new, store, known)
