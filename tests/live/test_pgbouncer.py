"""With PgBouncer before PostgreSQL, in ``pool_mode=session``: one server connection for each of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import psycopg2
import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet.defer import Deferred, gatherResults

from project_service.deferreds import start
from project_service.embedded.account import NAME
from project_service.settings import Store
from tests.live.application import serving, settings_for
from tests.live.daemon import eventually
from tests.live.tables_service import run_sql
from tests.places import free_port

CONFIG = """
[databases]
pooled = host={host} port={port} dbname={dbname} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = session
default_pool_size = 50
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


@pytest.fixture
def pooled(database: str) -> Iterator[str]:
    """The DSN of the test's database by way of PgBouncer."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed (.ci/run installs it)")
    # It does not run as root, and below pytest's folder only root may look.
    folder, listen = Path(mkdtemp(prefix="project-service-test-")), free_port()
    folder.chmod(0o755)
    config = folder / "pgbouncer.ini"
    config.write_text(CONFIG.format(**{"port": 5432, **parse_dsn(database)}, folder=folder, listen=listen))
    as_user = ("setpriv", f"--reuid={NAME}", "--clear-groups") if os.geteuid() == 0 else ()
    if as_user:
        shutil.chown(folder, NAME)
    process = subprocess.Popen([*as_user, program, "-q", str(config)], stderr=subprocess.DEVNULL)
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


@pytest_twisted.ensureDeferred
async def test_all_three_parts(pooled: str, database: str, store_settings: Store, tmp_path: Path) -> None:
    run_sql(database, TABLES)
    async with serving(settings_for(pooled, store_settings, tmp_path)) as api:
        tokens = [(await api.sign_up(f"{name}@example.test"))["access_token"] for name in ("ada", "bob")]

        async def write_and_read(number: int) -> None:
            token = tokens[number % 2]
            status, _, _ = await api.request("POST", NOTES, token=token, json={"words": str(number)})
            assert status == 201
            status, _, rows = await api.request("GET", f"{NOTES}?words=eq.{number}", token=token)
            assert (status, len(rows)) == (200, 1)

        work: list[Deferred[None]] = [start(write_and_read(number)) for number in range(60)]
        await gatherResults(work)
        # Everybody has his own, on whichever connection.
        for token in tokens:
            assert len((await api.request("GET", NOTES, token=token))[2]) == 30
        assert (await api.request("GET", NOTES))[2] == []
        path = "/storage/buckets/private/objects/a"
        assert (await api.request("PUT", path, token=tokens[0], data=b"bytes"))[0] == 201
        assert (await api.request("GET", path, token=tokens[0]))[2] == b"bytes"
        # LISTEN goes through it too.
        assert (await api.request("GET", "/ready", key=None))[0] == 200
