"""With PgBouncer before PostgreSQL: ``pool_mode=session`` for everything, ``transaction`` for the table API."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet.defer import DeferredSemaphore, gatherResults

from project_service.database.connection import DatabaseGone
from project_service.embedded.postgres import USER
from project_service.lifecycle import start
from project_service.settings.model import Secret, Settings, Stage, StageDatabase, Store
from tests.live.application import serving, settings_for
from tests.live.daemon import eventually
from tests.live.programs import program
from tests.live.sql import connection_to, run_sql
from tests.live.waiting import until
from tests.temporary import free_port

CONFIG = """
[databases]
pooled = host={host} port={port} dbname={dbname} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
logfile = {folder}/log
pidfile = {folder}/pid
"""
TABLES = """
create table notes (id int generated always as identity primary key, owner uuid default auth.uid(), words text);
alter table notes enable row level security;
create policy own on notes to authenticated using (owner = auth.uid()) with check (owner = auth.uid());
grant select, insert on notes to authenticated;
grant select on notes to anon;
"""
NOTES = "/dev/db/main/rest/notes"


@contextmanager
def pgbouncer(database: str, mode: str, size: int) -> Iterator[str]:
    """The DSN of the test's database through PgBouncer."""
    executable = program("pgbouncer")
    # PgBouncer does not run as root, and pytest's directories are closed to other users.
    folder, listen = Path(mkdtemp(prefix="project-service-test-")), free_port()
    folder.chmod(0o755)
    config = folder / "pgbouncer.ini"
    own = {"folder": folder, "listen": listen, "mode": mode, "size": size}
    config.write_text(CONFIG.format(**{"port": 5432, **parse_dsn(database)}, **own))
    as_user = ("setpriv", f"--reuid={USER}", "--clear-groups") if os.geteuid() == 0 else ()
    if as_user:
        shutil.chown(folder, USER)
    process = subprocess.Popen([*as_user, executable, "-q", str(config)], stderr=subprocess.DEVNULL)
    dsn = str(make_dsn(host="127.0.0.1", port=listen, dbname="pooled", user="anybody"))
    try:
        eventually(lambda: connects(dsn), "PgBouncer")
        yield dsn
        assert process.poll() is None, (folder / "log").read_text()
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder)


def connects(dsn: str) -> bool:
    try:
        psycopg2.connect(dsn).close()
    except psycopg2.OperationalError:
        return False
    return True


async def sixty_times(work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Sends sixty requests on all connections; with more at a time some would get ``overloaded`` on a busy
    machine."""
    places = DeferredSemaphore(StageDatabase().pool_size)
    await gatherResults(
        [places.run(lambda n: start(work(n)), number) for number in range(60)], consumeErrors=True
    )


@pytest_twisted.ensureDeferred
async def test_all_three_parts_with_session_pooling(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    run_sql(database, TABLES)
    with pgbouncer(database, "session", 50) as pooled:
        await _all_three_parts(settings_for(pooled, store_settings, tmp_path))


async def _all_three_parts(settings: Settings) -> None:
    async with serving(settings) as api:
        tokens = [(await api.sign_up(f"{name}@example.test"))["access_token"] for name in ("ada", "bob")]

        async def write_and_read(number: int) -> None:
            token = tokens[number % 2]
            status, _, _ = await api.request("POST", NOTES, token=token, json={"words": str(number)})
            assert status == 201
            status, _, rows = await api.request("GET", f"{NOTES}?words=eq.{number}", token=token)
            assert (status, len(rows)) == (200, 1)

        await sixty_times(write_and_read)
        # Users see only their own rows, whichever connection serves them.
        for token in tokens:
            assert len((await api.request("GET", NOTES, token=token))[2]) == 30
        assert (await api.request("GET", NOTES))[2] == []
        path = "/storage/buckets/private/objects/a"
        assert (await api.request("PUT", path, token=tokens[0], data=b"bytes"))[0] == 201
        assert (await api.request("GET", path, token=tokens[0]))[2] == b"bytes"
        # /ready needs LISTEN, which goes through PgBouncer too.
        assert (await api.request("GET", "/ready", key=None))[0] == 200


@pytest_twisted.ensureDeferred
async def test_the_table_api_with_transaction_pooling(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    """The service's ten connections share two of the server's, so no message may rely on the one before it."""
    run_sql(database, TABLES)
    with pgbouncer(database, "transaction", 2) as pooled:
        main = StageDatabase(dsn=Secret(pooled), prepare=False, stream_threshold_bytes=1000)
        settings = evolve(
            settings_for(database, store_settings, tmp_path), stages={"dev": Stage(databases={"main": main})}
        )
        async with serving(settings) as api:
            tokens = [(await api.sign_up(f"{name}@example.test"))["access_token"] for name in ("ada", "bob")]

            async def write_and_read(number: int) -> None:
                token = tokens[number % 2]
                words = str(number) * 100
                status, _, _ = await api.request("POST", NOTES, token=token, json={"words": words})
                assert status == 201
                # A result above the threshold is read by a cursor, over several messages.
                status, _, rows = await api.request("GET", NOTES, token=token)
                assert status == 200
                assert words in {row["words"] for row in rows}
                assert {row["owner"] for row in rows} == {rows[0]["owner"]}
                assert (await api.request("GET", NOTES))[2] == []

            await sixty_times(write_and_read)
            for token in tokens:
                assert len((await api.request("GET", NOTES, token=token))[2]) == 30
            run_sql(database, "create table later (id int primary key); grant select on later to anon")
            assert (await api.request("GET", "/dev/db/main/rest/later"))[0] == 200
            # This change is not notified.
            run_sql(database, "alter table notes rename words to said")

            async def written() -> bool:
                return (await api.request("POST", NOTES, token=tokens[0], json={"said": "a"}))[0] == 201

            api.application.reload(settings)
            await until(written)


@pytest_twisted.ensureDeferred
async def test_the_error_names_the_setting_under_which_strings_are_unsafe(database: str) -> None:
    name = run_sql(database, "select current_database()")[0][0]
    run_sql(database, f'alter database "{name}" set standard_conforming_strings = off')
    expected = "standard_conforming_strings is off, and the pooler refuses"
    with pgbouncer(database, "session", 5) as pooled, pytest.raises(DatabaseGone, match=expected):
        await connection_to(pooled)
