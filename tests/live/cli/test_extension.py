"""Extensions of the embedded PostgreSQL, and the search by vectors of docs/tables.rst, executed as it stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg2
import pytest
import pytest_twisted
from psycopg2 import errors as pg

from project_service.cli.extension import available, create_extension, drop_extension
from tests.live.cli.command_here import beside_the_reactor, commands_of, failed
from tests.live.daemon import ROOT, Daemon
from tests.live.programs import program
from tests.live.service.test_readme import commands
from tests.live.services import Services, WithDatabase
from tests.live.sql import connection_to, run_sql
from tests.live.tables.service import blocks


@pytest_twisted.ensureDeferred
async def test_every_extension_there_is_can_be_created_and_dropped(database: str, services: Services) -> None:
    session = await connection_to(services.admin_dsn(database), 0)
    try:
        names = [one.name for one in await available(session)]
        assert {"vector", "pg_trgm", "postgres_fdw", "dblink", "earthdistance"} <= set(names)
        for name in names:
            created = {one.name for one in await available(session) if one.version is not None}
            if name not in created:
                await create_extension(session, name)
        while made := {one.name for one in await available(session) if one.version} - {"plpgsql"}:
            await drop_extension(session, made.pop(), cascade=True)
        left = [(one.name, one.schema) for one in await available(session) if one.version]
        assert left == [("plpgsql", "pg_catalog")]
    finally:
        session.close()


@pytest_twisted.ensureDeferred
async def test_the_owner_can_use_what_the_superuser_created(database: str, services: Services) -> None:
    with pytest.raises(pg.InsufficientPrivilege):
        run_sql(database, "create extension vector")
    session = await connection_to(services.admin_dsn(database), 0)
    try:
        await create_extension(session, "vector")
        await create_extension(session, "postgres_fdw")
        await create_extension(session, "hstore", schema="public")
        run_sql(
            database,
            "create table points (at vector(2), about hstore);"
            "create server there foreign data wrapper postgres_fdw options (dbname 'x')",
        )
        schemas = {one.name: one.schema for one in await available(session) if one.version}
        assert (schemas["vector"], schemas["hstore"]) == ("extensions", "public")
        run_sql(database, "set role anon; select '[1]'::vector")
        with pytest.raises(pg.DependentObjectsStillExist):
            await drop_extension(session, "vector")
        await drop_extension(session, "vector", cascade=True)
        assert run_sql(database, "select * from points") == []
        with pytest.raises(pg.UndefinedColumn):
            run_sql(database, "select at from points")
        for name in ("nonsense", 'vector"; drop table points'):
            with pytest.raises(ValueError, match="there is no extension"):
                await create_extension(session, name)
        with pytest.raises(psycopg2.Error, match="nine"):
            await create_extension(session, "vector", version="nine")
        with pytest.raises(ValueError, match="needs plpgsql"):
            await drop_extension(session, "plpgsql", cascade=True)
    finally:
        session.close()


@beside_the_reactor
def test_a_database_of_ones_own_is_its_administrators(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__DATABASE__DSN", database)
    project = commands_of(monkeypatch, "--data-dir", tmp_path)
    assert "vector" in {one["name"] for one in project("extension", "list", "--json").json}
    why = "only a superuser can do this, and the service knows none of a database that is not embedded"
    assert project("extension", "create", "vector") == failed(why)
    assert project("extension", "drop", "vector") == failed(why)


def test_the_documented_search_by_vectors_works_as_printed(
    with_database: WithDatabase, tmp_path: Path
) -> None:
    program("curl")
    page = (ROOT / "docs" / "tables.rst").read_text("utf-8")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,  # its output says more than a status
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with Daemon(with_database(tmp_path / "var")) as daemon:
        daemon.wait_until_ready()
        out = run(commands(page))
        answer = next(text for _, text in blocks("text") if text.startswith('[{"title":"lake"'))
        assert json.loads(out[out.index("[{") :]) == json.loads(answer)
        assert out.startswith("created vector")
    # Also while no service is running.
    listed = {one["name"]: one for one in json.loads(run(".venv/bin/project-service extension list --json"))}
    assert listed["vector"]["schema"] == "extensions"
    assert run(".venv/bin/project-service extension drop vector --cascade") == "dropped vector\n"
