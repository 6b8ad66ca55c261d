"""Migrating a database while others use it."""

from __future__ import annotations

import time
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from twisted.internet import reactor as _reactor

from project_service.database import migrate as migrating
from project_service.database.listener import MIGRATIONS
from project_service.database.migrate import Migration, migrate, shipped, state
from project_service.lifecycle import start
from tests.live.sql import connection_to
from tests.live.waiting import until

reactor: Any = _reactor
# Long enough for the test; a statement that had to wait for the other transaction would fail after it.
PATIENCE = "10s"


@pytest_twisted.ensureDeferred
async def test_a_long_transaction_delays_a_migration_but_nothing_behind_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(migrating, "PAUSE_SECONDS", 0.2)
    later = Migration(9000, "9000_x.sql", "alter table auth.users add column nickname text")
    connection, beside = [await connection_to(database, 0) for _ in range(2)]
    said: list[str] = []
    with psycopg2.connect(database) as dump:
        # A dump holds a lock on every table for as long as it takes.
        dump.cursor().execute("lock table auth.users in access share mode")
        done = start(migrate(connection, [*shipped(), later], said.append))

        async def waits() -> bool:
            return "Migration 9000_x.sql waits for other transactions on the tables that it changes" in said

        await until(waits)
        await beside.query(f"set lock_timeout = '{PATIENCE}'")
        for _ in range(5):
            await beside.query("select pg_sleep(0.2); update auth.users set metadata = '{}'; select 1")
        assert not done.called
    dump.close()
    assert await done == (later,)
    assert (await state(beside))[-1][0] == 9000
    assert len(said) == 2
    for one in (connection, beside):
        one.close()


@pytest_twisted.ensureDeferred
async def test_waiting_for_another_process_that_migrates_is_reported(database: str) -> None:
    """That process may stand still, or its host may be switched off; the start must not wait silently."""
    first, second = [await connection_to(database, 0) for _ in range(2)]
    said: list[str] = []
    await first.query("select pg_advisory_lock(%s)", (MIGRATIONS,))
    done = start(migrate(second, shipped(), said.append))

    async def waits() -> bool:
        return said == ["Another process migrates the database; waiting until it has ended"]

    await until(waits)
    assert not done.called
    first.close()
    assert await done == ()
    assert len(said) == 1
    second.close()


@pytest_twisted.ensureDeferred
async def test_a_migration_that_ran_into_a_deadlock_is_tried_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "PAUSE_SECONDS", 0.5)
    connection = await connection_to(database)
    # What nextval did is not rolled back.
    await connection.query("create sequence public.tries")
    once = "do $$ begin if nextval('public.tries') = 1 then raise sqlstate '40P01'; end if; end $$"
    later = Migration(9000, "9000_x.sql", once)
    began = time.monotonic()
    assert await migrate(connection, [*shipped(), later]) == (later,)
    assert time.monotonic() - began >= 0.5, "the others had no time to end"
    assert await connection.query("select last_value from public.tries") == [(2,)]
    connection.close()


@pytest_twisted.ensureDeferred
async def test_a_database_that_is_up_to_date_is_not_written_to(database: str) -> None:
    """A service may be started while the database is a standby."""
    connection = await connection_to(database)
    await connection.query("set default_transaction_read_only = on")
    assert await migrate(connection, shipped()) == ()
    connection.close()
