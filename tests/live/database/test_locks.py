"""Work of one process at a time, while the one that does it stands still (SIGSTOP)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import psycopg2
import pytest
import pytest_twisted

from project_service.cli.project_migrations import apply
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.locks import DIGESTS, MIGRATIONS, SWEEPER, AdvisoryLock
from project_service.database.migrate import migrate, shipped
from project_service.lifecycle import start
from tests.live.database.holding import SILENCE_SECONDS
from tests.live.service.documented import blocks
from tests.live.sql import connection_to, run_sql
from tests.live.waiting import until

Holder = subprocess.Popen[str]
# In which a holder that had no word to say would have lost its lock.
LONG = f"{1.5 * SILENCE_SECONDS} s"


@contextmanager
def holder(*arguments: object) -> Iterator[Holder]:
    """A process that holds a lock by now (see ``holding``)."""
    command = [sys.executable, "-m", "tests.live.database.holding", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert said(process) == "holds"
            yield process
        finally:
            process.kill()


def said(process: Holder) -> str:
    """The next line that it prints; waits for it."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def stop(process: Holder) -> None:
    os.kill(process.pid, signal.SIGSTOP)


def go_on(process: Holder) -> None:
    os.kill(process.pid, signal.SIGCONT)


async def nothing() -> None:
    return


@pytest_twisted.ensureDeferred
async def test_a_process_that_stands_still_loses_its_lock_and_its_work_is_cancelled(database: str) -> None:
    lock = AdvisoryLock(lambda: connection_to(database), SWEEPER)

    async def taken() -> bool:
        return await lock(nothing)

    with holder("lock", database) as process:
        assert not await taken()
        stop(process)
        await until(taken)
        go_on(process)
        assert [said(process), said(process)] == ["cancelled", "lost"]


@pytest_twisted.ensureDeferred
async def test_a_process_that_works_for_long_keeps_its_lock(database: str) -> None:
    lock = AdvisoryLock(lambda: connection_to(database), SWEEPER)
    held = (
        f"select now() - backend_start > '{LONG}' from pg_locks join pg_stat_activity using (pid)"
        " where locktype = 'advisory' and datname = current_database()"
    )
    with holder("lock", database):

        async def long_held() -> bool:
            rows = run_sql(database, held)
            assert rows, "the lock was lost"
            return bool(rows[0][0])

        await until(long_held)
        assert not await lock(nothing)


@pytest_twisted.ensureDeferred
async def test_a_lock_that_another_connection_ends_is_lost_at_once(database: str) -> None:
    lock = AdvisoryLock(lambda: connection_to(database), SWEEPER)
    with holder("lock", database) as process:
        run_sql(database, "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'")
        assert [said(process), said(process)] == ["cancelled", "lost"]
    await until(lambda: lock(nothing))


@pytest_twisted.ensureDeferred
async def test_a_host_that_stands_still_while_it_migrates_keeps_no_other_from_it(database: str) -> None:
    messages: list[str] = []
    with holder("migrations", database) as process, closing(await connection_to(database, 0)) as connection:
        stop(process)
        assert await migrate(connection, shipped(), messages.append) == ()
        assert messages == ["Another process migrates the database; waiting until it has ended"]
        go_on(process)
        assert said(process) == "lost"


WAITED = ["another host applies files to the database; waiting until it has ended"]


class Turns:
    """Applies ``file`` to ``database``, which waits for lock 7 of this class's own connection."""

    def __init__(self, database: str, folder: Path, file: str) -> None:
        self.database, self.folder, self.lines = database, folder, list[str]()
        (folder / "0001_a.sql").write_text(file)
        self.gate = psycopg2.connect(database)
        self.gate.autocommit = True
        self.gate.cursor().execute("select pg_advisory_lock(7)")

    def open(self) -> None:
        self.gate.close()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        with closing(await connection_to(self.database, 0)) as connection:
            yield connection

    async def apply(self) -> list[str]:
        return await apply(self.connect, self.folder, self.lines.append)

    async def is_waited_for(self) -> bool:
        waiting = "select 1 from pg_locks where locktype = 'advisory' and not granted"
        return run_sql(self.database, waiting) == [(1,)]


@pytest_twisted.ensureDeferred
async def test_a_file_is_applied_once_though_the_first_host_stood_still(
    database: str, tmp_path: Path
) -> None:
    turns = Turns(database, tmp_path, "create table a (id int);\nselect pg_advisory_xact_lock(7)")
    with holder("folder", database, tmp_path) as process:
        await until(turns.is_waited_for)
        stop(process)
        second = start(turns.apply())
        # The second has the turn, and waits for the row in which the first recorded the file.
        behind = "select 1 from pg_stat_activity where wait_event = 'transactionid'"
        await until(lambda: run_sql(database, behind) == [(1,)])
        turns.open()
        assert await second == ["0001_a.sql"]
        assert turns.lines == WAITED
        go_on(process)
        assert said(process) == "lost"
    assert run_sql(database, "select name from _project_service.project_migrations") == [("0001_a.sql",)]


@pytest_twisted.ensureDeferred
async def test_a_file_without_a_transaction_keeps_its_turn(database: str, tmp_path: Path) -> None:
    """What it has committed would be done again by the next host."""
    file = "-- no transaction\ncreate table a as select 1 as one;\nselect pg_advisory_lock(7)"
    turns = Turns(database, tmp_path, file)
    with holder("folder", database, tmp_path) as process:
        await until(turns.is_waited_for)
        stop(process)
        second = start(turns.apply())
        await until(lambda: turns.lines == WAITED)
        stood = f"select now() - query_start > '{LONG}' from pg_stat_activity where wait_event = 'advisory'"
        await until(lambda: run_sql(database, stood) == [(True,)])
        assert not second.called
        turns.open()
        go_on(process)
        assert said(process) == "applied 0001_a.sql"
        assert await second == []


@pytest_twisted.ensureDeferred
async def test_a_lock_on_a_connection_that_is_lost_is_not_taken(database: str) -> None:
    connection = await connection_to(database)
    connection.close()

    async def closed() -> Connection:
        return connection

    with pytest.raises(DatabaseGone):
        await AdvisoryLock(closed, SWEEPER)(nothing)


@pytest_twisted.ensureDeferred
async def test_the_documented_query_shows_who_holds_a_lock(database: str) -> None:
    (sql,) = [block.text for block in blocks("operating/one-host-work.rst")]
    for lock, name in ((SWEEPER, "sweeper"), (DIGESTS, "digests"), (MIGRATIONS, "migrations")):

        async def look(name: str = name) -> None:
            # The session of the lock before may not have ended yet.
            await until(lambda: [work for work, *_ in run_sql(database, sql)] == [name])

        assert await AdvisoryLock(lambda: connection_to(database), lock)(look)
