"""Connections, pool, migrations, listener, grants and project keys against a real PostgreSQL."""

from __future__ import annotations

import secrets
import uuid
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import formatEvent

from project_service import application, keys
from project_service.database.connecting import GUARD_MARGIN_SECONDS
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.listener import Listener
from project_service.database.migrate import (
    Migration,
    definitions,
    grant_service_role,
    migrate,
    shipped,
    state,
    watch_ddl,
)
from project_service.database.pool import Pool
from project_service.http.caller import KeyKind
from project_service.lifecycle import start
from project_service.settings.model import Store
from tests.captured_log import captured_logs
from tests.live.application import serving, settings_for
from tests.live.logged import LoggedErrors
from tests.live.services import Services
from tests.live.sql import connection_to, connector
from tests.live.waiting import until

reactor: Any = _reactor


@pytest_twisted.ensureDeferred
async def test_processes_that_migrate_at_once_apply_each_file_once(empty_database: str) -> None:
    sessions = [await connection_to(empty_database) for _ in range(3)]
    done = await gatherResults([start(migrate(connection, shipped())) for connection in sessions])
    assert sorted(len(applied) for applied in done) == [0, 0, len(shipped()) + len(definitions().files)]
    assert [number for number, _, _ in await state(sessions[0])] == [one.number for one in shipped()]
    for connection in sessions:
        connection.close()


@pytest_twisted.ensureDeferred
async def test_a_migration_that_fails_leaves_nothing(database: str) -> None:
    connection = await connection_to(database)
    broken = Migration(9000, "9000_x.sql", "create table public.half (a int); select 1/0")
    with pytest.raises(psycopg2.errors.DivisionByZero):
        await migrate(connection, [*shipped(), broken])
    assert await connection.query("select to_regclass('public.half')") == [(None,)]
    assert connection.usable
    connection.close()


@pytest_twisted.ensureDeferred
async def test_a_killed_connection_is_noticed_and_replaced(database: str) -> None:
    pool = Pool(connector(database), 2, 60.0, reactor)
    first = (await pool.query("select pg_backend_pid()"))[0][0]
    killer = await connection_to(database)
    await killer.query("select pg_terminate_backend(%s)", (first,))
    await until(lambda: not pool._idle)
    second = (await pool.query("select pg_backend_pid()"))[0][0]
    assert first != second

    async def dies(connection: Connection) -> None:
        pid = connection.raw.info.backend_pid
        await killer.query("select pg_terminate_backend(%s)", (pid,))
        await connection.query("select 1")

    with pytest.raises(DatabaseGone):
        await pool.use(dies)
    assert await pool.query("select 1") == [(1,)]
    assert not pool._busy
    killer.close()
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_answer_is_given_up(database: str) -> None:
    connection = await evolve(connector(database), statement_timeout_seconds=0.0)()
    connection.answer_seconds = 60.0  # what was allowed before does not count
    await connection.query("select 1")
    connection.answer_seconds = 0.05
    with pytest.raises(DatabaseGone):
        await connection.query("select pg_sleep(2)")
    assert not connection.usable


@pytest_twisted.ensureDeferred
async def test_a_session_without_a_timeout_may_take_its_time(database: str) -> None:
    """Migrating needs that: connecting has a time limit, but the statements have none."""
    connection = await evolve(connector(database), statement_timeout_seconds=0.0)()
    assert connection.answer_seconds is None
    # Enough for a busy machine.
    connection.answer_seconds = 4.0
    await connection.query("select 1")
    connection.extra_seconds = 30.0
    await connection.query("select pg_sleep(4.2)")
    connection.answer_seconds = None
    await connection.query("select pg_sleep(0.2)")
    assert connection.usable
    connection.close()


@pytest_twisted.ensureDeferred
async def test_statement_timeout_leaves_the_connection_usable(database: str) -> None:
    connection = await connector(database, 0.05)()
    assert connection.answer_seconds == 0.05 + GUARD_MARGIN_SECONDS
    with pytest.raises(psycopg2.errors.QueryCanceled):
        await connection.query("select pg_sleep(60)")
    assert connection.usable
    connection.close()


@pytest_twisted.ensureDeferred
async def test_a_message_larger_than_the_sockets_buffer_is_sent_completely(database: str) -> None:
    connection = await connection_to(database)
    assert await connection.query("select length(%s)", ("x" * 8_000_000,)) == [(8_000_000,)]
    assert connection not in reactor.getWriters()
    connection.close()


@pytest_twisted.ensureDeferred
async def test_a_value_that_cannot_be_sent_leaves_the_connection_usable(database: str) -> None:
    connection = await connection_to(database)
    for value, fault in (("a\0b", ValueError), (object(), psycopg2.ProgrammingError)):
        with pytest.raises(fault):
            await connection.query("select %s", (value,))
        assert await connection.query("select 1") == [(1,)]
    connection.discard()
    assert not connection.usable
    with pytest.raises(DatabaseGone):
        await connection.query("select 1")
    connection.close()


@pytest_twisted.ensureDeferred
async def test_a_connection_that_read_a_very_large_value_is_not_lent_again(database: str) -> None:
    """libpq keeps a buffer of that size."""
    connection = await connection_to(database)
    for size, usable in (2**20, True), (2**23, False):
        await connection.query("select repeat('x', %s)", (size,))
        assert connection.usable is usable
    connection.close()


@pytest_twisted.ensureDeferred
async def test_several_statements_are_one_transaction_and_leave_no_state(database: str) -> None:
    connection = await connection_to(database)
    rows = await connection.query(
        "select set_config('role', 'anon', true), set_config('request.path', %s, true); "
        "select current_user, current_setting('request.path'), 'a%%'",
        ("/x'; drop schema auth; --",),
    )
    assert rows == [("anon", "/x'; drop schema auth; --", "a%")]
    assert await connection.query("select current_user = session_user") == [(True,)]
    connection.close()


@pytest_twisted.ensureDeferred
async def test_the_listener_hears_and_reads_again_what_it_missed(
    database: str, logged_errors: LoggedErrors
) -> None:
    listener = Listener(connector(database), reactor)
    heard: list[str] = []
    gaps: list[int] = []

    async def gap() -> None:
        gaps.append(1)

    def breaks(payload: str) -> None:
        raise KeyError(payload)

    async def nothing() -> None:
        return

    with pytest.raises(ValueError, match="not a channel name"):
        listener.subscribe('news"; drop table x; --', heard.append, gap)
    listener.subscribe("news", breaks, nothing)
    listener.subscribe("news", heard.append, gap)
    listener.startService()
    await listener.ready()
    other = await connection_to(database)
    await other.query("select pg_notify('news', 'one')")
    await until(lambda: heard == ["one"])
    await other.query(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where pid <> pg_backend_pid() and datname = current_database()"
    )
    await until(lambda: not listener.current)
    await listener.ready()
    assert len(gaps) == 2
    await other.query("select pg_notify('news', 'two')")
    await until(lambda: heard == ["one", "two"])
    assert len(logged_errors.flush("a subscriber of news failed")) == 2
    stopping: Deferred[None] | None = listener.stopService()
    assert stopping is not None
    await stopping
    other.close()


@pytest_twisted.ensureDeferred
async def test_schemas_are_exposed_once_if_they_are_there(database: str) -> None:
    connection = await connection_to(database)
    await connection.query("create schema api; create table api.old (a int)")
    await grant_service_role(connection, ["public", "api", "not there"])
    may = "select has_table_privilege('service_role', 'api.old', 'select')"
    assert await connection.query(may) == [(True,)]

    # Granting again changes nothing, so that a start does not change the schema.
    written = "select xmin::text from pg_namespace where nspname in ('public', 'api')"
    before = await connection.query(written)
    await grant_service_role(connection, ["public", "api"])
    assert await connection.query(written) == before
    connection.close()


@pytest_twisted.ensureDeferred
async def test_only_a_superuser_can_begin_to_watch_schema_changes(database: str, services: Services) -> None:
    owner = await connection_to(database)
    assert not await watch_ddl(owner)
    admin = await connection_to(services.admin_dsn(database))
    assert await watch_ddl(admin)
    assert await watch_ddl(owner)
    owner.close()
    admin.close()


@pytest_twisted.ensureDeferred
async def test_keys_are_listed_by_age_and_a_revoked_one_is_refused(database: str) -> None:
    pool = Pool(connector(database), 1, 60.0, reactor)
    kinds: list[KeyKind] = ["anon", "service", "anon", "service", "anon"]
    made = [keys.make(kind, secrets.token_bytes) for kind in kinds]
    ids = [(await keys.store(pool, kind, key, key[-3:])).id for kind, key in zip(kinds, made, strict=True)]
    # The younger key gets the lower id, so that ordering by id would be wrong.
    for age, row in enumerate(sorted(ids)):
        older = "update auth.project_keys set created_at = now() - %s * interval '1 h' where id = %s"
        await pool.query(older, (age, row))
    assert [one.id for one in await keys.listed(pool)] == sorted(ids, reverse=True)

    assert not await keys.revoke(pool, str(uuid.uuid4()))
    assert [await keys.revoke(pool, ids[0]) for _ in range(2)] == [True, False]
    assert [one.id for one in await keys.listed(pool) if one.revoked_at is not None] == [ids[0]]
    ring = keys.KeyRing(pool)
    await ring.reload()
    assert [ring.kind_of(key) for key in made] == [None, *kinds[1:]]
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_the_last_use_of_a_key_is_stored_by_the_minute_and_at_the_end(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(connector(database), 1, 60.0, reactor)
    unused = await keys.store(pool, "anon", keys.make("anon", secrets.token_bytes))

    async def used() -> dict[str, list[str | None]]:
        found: dict[str, list[str | None]] = {"anon": [], "service": []}
        for one in await keys.listed(pool):
            found[one.kind].append(one.used_at)
            assert one.id != unused.id or one.used_at is None
        return found

    async def anon_used() -> bool:
        return any((await used())["anon"])

    monkeypatch.setattr(application, "USES_SECONDS", 0.05)
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        assert not await anon_used()
        assert (await api.request("GET", "/dev/db/main/rest/"))[0] == 200
        await until(anon_used)
        assert set((await used())["service"]) == {None}
    (when,) = {one for one in (await used())["anon"] if one is not None}
    assert when.endswith(":00.000Z")
    monkeypatch.setattr(application, "USES_SECONDS", 3600.0)
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        assert (await api.request("GET", "/dev/db/main/rest/", key=api.service_key))[0] == 200
        assert set((await used())["service"]) == {None}
    assert any((await used())["service"])
    # Two that write in one minute: the second changes nothing, and a later time is never replaced by an earlier one.
    await pool.query("update auth.project_key_uses set used_at = '2999-01-01'")
    ring = keys.KeyRing(pool)
    ring.use_of(api.service_key).used = True
    await ring.store_uses(pool)
    assert any(one == "2999-01-01T00:00:00.000Z" for one in (await used())["service"])
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_keys_are_read_when_a_change_is_announced_and_the_others_work_on(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    pool = Pool(connector(database), 1, 60.0, reactor)
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        with captured_logs() as events:
            for _ in range(3):
                record = await keys.store(pool, "anon", keys.make("anon", secrets.token_bytes))
                assert await keys.revoke(pool, record.id)
                assert {(await api.request("GET", "/dev/db/main/rest/"))[0] for _ in range(30)} == {200}
    messages = [str(formatEvent(event)) for event in events]
    assert [line for line in messages if "cannot be read" in line] == []
    await pool.close()
