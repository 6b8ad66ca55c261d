"""With PgBouncer before PostgreSQL: ``pool_mode = session``, and ``transaction`` with and without ``direct_dsn``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet import reactor as _reactor
from twisted.internet.defer import DeferredSemaphore, gatherResults

from project_service.database.connecting import Connector
from project_service.database.connection import DatabaseGone
from project_service.database.pool import Pool, Transaction
from project_service.database.readers import NotAReader, directly, is_pooled, measured
from project_service.dsn import read_dsn
from project_service.embedded.postgres import USER
from project_service.lifecycle import start
from project_service.settings.model import Secret, Settings, Stage, StageDatabase, Store
from tests.live.application import serving, settings_for
from tests.live.daemon import eventually
from tests.live.programs import program
from tests.live.sql import connection_to, run_sql
from tests.live.waiting import until
from tests.temporary import free_port

reactor: Any = _reactor

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
{more}
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
def pgbouncer(database: str, mode: str, size: int, more: str = "") -> Iterator[str]:
    """The DSN of the test's database through PgBouncer, with ``more`` lines in its configuration."""
    executable = program("pgbouncer")
    # PgBouncer does not run as root, and pytest's directories are closed to other users.
    folder, listen = Path(mkdtemp(prefix="project-service-test-")), free_port()
    folder.chmod(0o755)
    config = folder / "pgbouncer.ini"
    own = {"folder": folder, "listen": listen, "mode": mode, "size": size, "more": more}
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
        process.kill()  # from 1.23 on SIGTERM waits for all clients
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


@pytest.mark.parametrize("mode", ["session", "transaction"])
@pytest_twisted.ensureDeferred
async def test_a_pooler_before_a_standby_is_told_from_the_server(database: str, mode: str) -> None:
    """Reads on standbys rely on sessions of their own."""
    with closing(await connection_to(database)) as connection:
        assert not await is_pooled(connection)
        with pgbouncer(database, mode, 1) as pooled:
            with pytest.raises(DatabaseGone, match="pooler"):
                await directly(lambda: connection_to(pooled))
            with closing(await connection_to(pooled)) as standby, pytest.raises(NotAReader, match="pooler"):
                await measured(connection, standby, 1.0, no_pause)


async def no_pause() -> None:
    """Asks again at once."""


def is_newer(version: tuple[int, int]) -> bool:
    """Whether PgBouncer is of this version or a newer one."""
    shown = subprocess.run(
        [program("pgbouncer"), "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", shown)
    assert found is not None
    return (int(found[1]), int(found[2])) >= version


def needs_prepared() -> None:
    """Skips the test with a PgBouncer that knows no prepared statements."""
    if not is_newer((1, 21)):
        pytest.skip("PgBouncer is older than 1.21, the first that knows prepared statements")


def behind_transactions(settings: Settings, pooled: str, prepare: bool) -> Settings:
    """With the system database, and with it ``dev/main``, behind a pooler of transactions."""
    direct = settings.database.dsn
    return evolve(
        settings,
        database=evolve(settings.database, dsn=Secret(pooled), direct_dsn=direct, prepare=prepare),
    )


@pytest.mark.parametrize("prepare", [False, True])
@pytest_twisted.ensureDeferred
async def test_all_three_parts_with_transaction_pooling(
    database: str, store_settings: Store, tmp_path: Path, prepare: bool
) -> None:
    """All pools of the service share three of the server's sessions."""
    if prepare:
        needs_prepared()
    run_sql(database, TABLES)
    more = "max_prepared_statements = 200" if prepare else ""
    with pgbouncer(database, "transaction", 3, more) as pooled:
        settings = behind_transactions(settings_for(database, store_settings, tmp_path), pooled, prepare)
        await _all_three_parts(settings)
        # Through PgBouncer, to see what is on the service's sessions.
        count = run_sql(pooled, "select count(*) from pg_prepared_statements")[0][0]
        assert (count > 10) is prepare


OTHERS = """
select set_config('search_path', 'public', false), set_config('statement_timeout', '1ms', false),
  set_config('timezone', 'Asia/Tokyo', false), set_config('role', 'anon', false)
"""


@pytest.mark.parametrize("prepare", [False, True])
@pytest_twisted.ensureDeferred
async def test_what_others_left_on_a_session_has_no_effect(database: str, prepare: bool) -> None:
    if prepare:
        needs_prepared()
    more = "max_prepared_statements = 200" if prepare else ""
    with pgbouncer(database, "transaction", 1, more) as pooled, closing(psycopg2.connect(pooled)) as other:
        other.autocommit = True
        connect = Connector(reactor, read_dsn(pooled), 10.0, "UTC", pooled=True, prepares=prepare)
        pool = Pool(connect, 3, 5.0, reactor, pooled=True)
        state = (
            "select current_user = session_user, current_schemas(true)::text,"
            " current_setting('statement_timeout'), current_setting('timezone'),"
            " current_setting('idle_in_transaction_session_timeout'),"
            " current_setting('transaction_isolation'), %s"
        )
        ours = [(True, "{pg_catalog}", "10s", "UTC", "1min", "read committed", "1")]

        async def within(transaction: Transaction) -> list[Any]:
            await transaction.query("set transaction isolation level repeatable read")
            return await transaction.query(state, ["1"])

        for _ in range(2):
            other.cursor().execute(OTHERS)
            assert await pool.query(state, ["1"]) == ours
            other.cursor().execute(OTHERS)
            assert await pool.prepared(state, ["1"]) == ours
            other.cursor().execute(OTHERS)
            assert await pool.read(state, ["1"]) == ours
            other.cursor().execute(OTHERS)
            assert await pool.transaction(within) == [(*ours[0][:5], "repeatable read", "1")]
        # And nothing of ours stays there for them.
        other.cursor().execute("reset all; reset role")
        await pool.query("select 1")
        cursor = other.cursor()
        cursor.execute("select current_setting('search_path'), current_setting('statement_timeout')")
        assert cursor.fetchall() == [('"$user", public', "0")]
        await pool.close()


@pytest_twisted.ensureDeferred
async def test_statements_are_prepared_anew_after_a_change_of_a_type(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    """PgBouncer takes statements of one text for one, whose parameter would still be a whole number."""
    needs_prepared()
    run_sql(
        database, "create table sizes (v int); insert into sizes values (2); grant select on sizes to anon"
    )
    with pgbouncer(database, "transaction", 2, "max_prepared_statements = 200") as pooled:
        settings = behind_transactions(settings_for(database, store_settings, tmp_path), pooled, True)
        async with serving(settings) as api:

            async def found(number: str) -> Any:
                return (await api.request("GET", f"/dev/db/main/rest/sizes?v=eq.{number}"))[2]

            for _ in range(5):
                assert await found("2") == [{"v": 2}]
            run_sql(database, "alter table sizes alter v type numeric; insert into sizes values (1.5)")

            async def changed() -> bool:
                return bool(await found("1.5") == [{"v": 1.5}])

            await until(changed)


@pytest_twisted.ensureDeferred
async def test_the_error_names_the_setting_under_which_strings_are_unsafe(database: str) -> None:
    if is_newer((1, 20)):
        pytest.skip("PgBouncer is 1.20 or newer, and takes the option with which they are safe")
    name = run_sql(database, "select current_database()")[0][0]
    run_sql(database, f'alter database "{name}" set standard_conforming_strings = off')
    expected = "standard_conforming_strings is off, and the pooler refuses"
    with pgbouncer(database, "session", 5) as pooled, pytest.raises(DatabaseGone, match=expected):
        await connection_to(pooled)
