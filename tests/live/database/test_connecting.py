"""Which of several servers is connected to, and the error if none can be, with a real PostgreSQL."""

from __future__ import annotations

import os
from typing import Any

import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet import reactor as _reactor

from project_service.database import connecting
from project_service.database.connection import Connection, DatabaseGone
from tests.live.proxy import rude_proxy
from tests.live.sql import connection_to, run_sql
from tests.live.waiting import until

reactor: Any = _reactor


@pytest_twisted.ensureDeferred
async def test_target_session_attrs_read_write_is_respected(database: str) -> None:
    read_only = make_dsn(database, options="-c default_transaction_read_only=on")
    with pytest.raises(DatabaseGone, match="the server is read-only"):
        await connection_to(make_dsn(read_only, target_session_attrs="read-write"))
    connection = await connection_to(read_only)
    connection.close()
    connection = await connection_to(make_dsn(database, target_session_attrs="read-write"))

    async def alone() -> bool:
        rows = await connection.query(
            "select count(*) from pg_stat_activity where datname = current_database()"
        )
        return bool(rows == [(1,)])

    await until(alone)
    connection.close()


@pytest_twisted.ensureDeferred
async def test_a_standby_is_not_taken_for_a_server_that_can_write(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "_SETUP", connecting._SETUP.replace("pg_is_in_recovery()", "true"))
    with pytest.raises(DatabaseGone, match="the server is read-only"):
        await connection_to(make_dsn(database, target_session_attrs="read-write"))


@pytest_twisted.ensureDeferred
async def test_every_address_of_a_host_is_tried(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may have an IPv6 address at which nobody listens, or still lead to a server that is gone."""

    async def two_addresses(*_: Any) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr(connecting, "addresses_of", two_addresses)
    known = parse_dsn(database)
    async with rude_proxy(f"unix:{known['host']}/.s.PGSQL.{known['port']}") as (_, port):
        connection = await connection_to(make_dsn(database, host="db.example.test", port=port))
        assert await connection.query("select 1") == [(1,)]
        connection.close()


@pytest_twisted.ensureDeferred
async def test_a_server_that_falls_silent_after_the_login_is_given_up(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "_SETUP", f"select pg_sleep(20); {connecting._SETUP}")
    with pytest.raises(DatabaseGone, match="did not answer"):
        await connection_to(database)


@pytest_twisted.ensureDeferred
async def test_a_connection_to_a_standby_is_used_for_a_limited_time(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address may lead to the primary by now, which a pool would not notice."""
    asked: list[float] = []
    connection = await connection_to(database)
    monkeypatch.setattr(Connection, "expire_after", lambda self, seconds: asked.append(seconds))
    (await connection_to(database)).close()
    assert asked == []
    monkeypatch.setattr(connecting, "_SETUP", connecting._SETUP.replace("pg_is_in_recovery()", "true"))
    (await connection_to(database)).close()
    assert asked == [connecting.STANDBY_SECONDS]
    monkeypatch.undo()
    # Its user may go on with it; the pool, which asks whether it is usable, does not lend it again.
    usable = []
    for seconds in (60.0, 0.0):
        connection.expire_after(seconds)
        usable.append(connection.usable)
    assert usable == [True, False]
    assert await connection.query("select 1") == [(1,)]
    connection.close()


@pytest_twisted.ensureDeferred
async def test_a_failure_to_connect_names_the_server_and_never_shows_the_password(database: str) -> None:
    there = parse_dsn(database)
    server = f"{there['user']}@{there['host']}:{there['port']}"
    for bad, why in (
        ("postgresql://u:hunter2@127.0.0.1:1/db", "u@127.0.0.1:1/db: no server listens there"),
        ("postgresql://u:hunter2@name.invalid/db", "u@name.invalid:5432/db: unknown host"),
        (make_dsn(database, password="hunter2"), f"{server}/{there['dbname']}: the password was refused"),
        (make_dsn(database, dbname="gone"), f"{server}/gone: there is no such database or role"),
    ):
        with pytest.raises(DatabaseGone) as caught:
            await connection_to(bad, 0)
        assert str(caught.value) == why


@pytest_twisted.ensureDeferred
async def test_notifications_nobody_listens_for_are_ignored(database: str) -> None:
    """SQL of an application may LISTEN; the next user of the connection must not suffer."""
    connection = await connection_to(database)
    await connection.query("listen news")
    await connection.query("notify news, 'one'")
    assert await connection.query("select 1") == [(1,)]
    assert connection.usable
    connection.close()


@pytest_twisted.ensureDeferred
async def test_a_closed_connection_leaves_no_descriptor(database: str) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # each is a name that may be gone by now
    for _ in range(20):
        connection = await connection_to(database)
        connection.close()
    assert len(os.listdir("/proc/self/fd")) < before + 10  # noqa: PTH208


@pytest_twisted.ensureDeferred
async def test_values_stay_in_their_string_whatever_standard_conforming_strings_is(database: str) -> None:
    off = "-c standard_conforming_strings=off"
    by_database = run_sql(database, "select current_database()")[0][0]
    run_sql(database, f'alter database "{by_database}" set standard_conforming_strings = off')
    # Options of the DSN are set before the service's own, which win.
    for dsn in (database, make_dsn(database, options=off), make_dsn(database, options="-c work_mem=1MB")):
        connection = await connection_to(dsn)
        for text in ("\\' or true; --", "a\\", "\\\\'", "it's"):
            assert await connection.query("reset all; select %s", [text]) == [(text,)]
            assert await connection.query("select %s", [text]) == [(text,)]
        connection.close()
