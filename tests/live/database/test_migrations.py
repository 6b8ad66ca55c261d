"""What the migrations create for SQL of applications, and migrating a database while others use it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from psycopg2 import errors as pg
from psycopg2.extensions import parse_dsn
from twisted.internet import reactor as _reactor

from project_service.database import migrate as migrating
from project_service.database.locks import MIGRATIONS
from project_service.database.migrate import Migration, migrate, shipped, state
from project_service.lifecycle import start
from tests.live.services import Services
from tests.live.sql import connection_to, run_each
from tests.live.waiting import until

WHO = "select auth.uid()::text, auth.role(), auth.email(), auth.jwt()"
KEY = "insert into auth.project_keys (kind, sha256) values ('anon', sha256('{}'))"
RELOAD = ("pgrst", "reload schema")

# One statement for each kind of change that the schema cache may show; each finds what it changes.
CHANGES = """
create schema s
alter schema s rename to api
create table api.t (a int)
create table api.t2 as select 1 as a
select 1 as a into api.t3
alter table api.t add b text
comment on table api.t is 'x'
create view api.v as select * from api.t
alter view api.v rename to w
create materialized view api.m as select * from api.t
alter materialized view api.m rename to n
create rule r as on insert to api.w do instead insert into api.t values (new.a)
create function api.f() returns trigger language plpgsql as 'begin return new; end'
create trigger g before insert on api.t for each row execute function api.f()
alter function api.f() stable
alter routine api.f() volatile
create procedure api.p() language sql as 'select 1'
alter procedure api.p() security definer
create aggregate api.total(int) (sfunc = int4pl, stype = int)
alter aggregate api.total(int) rename to total2
create type api.pair as (a int, b int)
alter type api.pair add attribute c int
create domain api.d as text
alter domain api.d set default 'x'
create function api.from_d(api.d) returns json language sql return '{}'::json
create cast (api.d as json) with function api.from_d(api.d)
create foreign table api.far (a int) server here
alter foreign table api.far add b int
import foreign schema api limit to (t2) from server here into public
"""
SILENT: tuple[str, ...] = ()


@pytest.fixture
def admin(database: str, services: Services) -> str:
    """The superuser's DSN of ``database``."""
    return services.admin_dsn(database)


Notifications = Callable[[str, str], list[tuple[str, str]]]


@pytest.fixture
def notifications(database: str) -> Iterator[Notifications]:
    """Executes a statement and returns the notifications that it has caused."""
    with closing(psycopg2.connect(database)) as listening:
        listening.autocommit = True
        listening.cursor().execute("listen pgrst; listen project_service_keys")

        def after(dsn: str, statement: str) -> list[tuple[str, str]]:
            run_each(dsn, statement)
            # Notifications sent before this statement have arrived when its result has.
            listening.cursor().execute("select")
            found = [(one.channel, one.payload) for one in listening.notifies]
            listening.notifies.clear()
            return found

        yield after


def who(dsn: str, claims: str) -> tuple[Any, ...]:
    return run_each(dsn, f"set request.jwt.claims = '{claims}'", "set role anon", WHO)[0]


def test_without_claims_there_is_no_user(database: str) -> None:
    assert run_each(database, WHO) == [(None, "none", None, {})]
    for role in ("authenticated", "service_role"):
        assert run_each(database, f"set role {role}", WHO) == [(None, role, None, {})]
    assert who(database, "") == (None, "anon", None, {})


def test_a_subject_is_a_user_only_if_it_is_a_uuid(database: str) -> None:
    somebody = "0000000a-0000-0000-0000-00000000000b"
    for subject, user in {
        somebody: somebody,
        somebody.upper(): somebody,
        f"x{somebody}": None,
        f"{somebody}0": None,
        f"{{{somebody}}}": None,
        somebody.replace("-", ""): None,
        somebody.replace("-0000", "", 1): None,
        "": None,
    }.items():
        assert who(database, f'{{"sub": "{subject}"}}')[:2] == (user, "anon"), subject
    claims = {"role": "authenticated", "email": "a@b.test"}
    assert who(database, json.dumps(claims)) == (None, *claims.values(), claims)


def test_the_identity_functions_are_stable_and_parallel_safe(database: str) -> None:
    """Otherwise policies would call them for each row: volatile functions prevent the use of an index, unsafe ones
    parallel plans."""
    asked = "select proname, provolatile, proparallel from pg_proc where pronamespace = 'auth'::regnamespace"
    names = "('jwt', 'uid', 'role', 'email')"
    assert set(run_each(database, f"{asked} and proname in {names}")) == {
        (name, "s", "s") for name in ("jwt", "uid", "role", "email")
    }


def test_the_api_roles_may_use_two_schemas_and_create_nothing(database: str) -> None:
    may = "select n.nspname, p from pg_namespace n, unnest(array['usage', 'create']) p"
    ours = "n.nspname in ('auth', 'storage', '_project_service', 'public')"
    for role in ("anon", "authenticated", "service_role"):
        found = run_each(
            database, f"{may} where {ours} and has_schema_privilege('{role}', n.oid, p) order by 1"
        )
        # Policies on storage.objects are judged in the callers' roles.
        storage = [] if role == "service_role" else [("storage", "usage")]
        assert found == [("auth", "usage"), ("public", "usage"), *storage], role
        reads = f"select has_table_privilege('{role}', 'auth.project_keys', 'select')"
        assert run_each(database, reads) == [(False,)]


def test_columns_and_constraints_of_project_keys(database: str) -> None:
    run_each(database, KEY.format("a"), KEY.format("b"))
    columns = "label, revoked_at, created_at between now() - interval '1 minute' and now()"
    found = run_each(database, f"select {columns}, id from auth.project_keys order by id")
    assert [row[:3] for row in found] == [("", None, True)] * 2
    assert found[0][3] != found[1][3]
    for refused, why in {
        KEY.format("a"): pg.UniqueViolation,
        KEY.format("c").replace("anon", "admin"): pg.CheckViolation,
        KEY.format("c").replace("sha256('c')", "'short'"): pg.CheckViolation,
        "update auth.project_keys set kind = null": pg.NotNullViolation,
        "update auth.project_keys set sha256 = null": pg.NotNullViolation,
        "update auth.project_keys set label = null": pg.NotNullViolation,
        "update auth.project_keys set created_at = null": pg.NotNullViolation,
    }.items():
        with pytest.raises(why):
            run_each(database, refused)


def test_every_change_of_a_project_key_is_notified_once(database: str, notifications: Notifications) -> None:
    run_each(database, KEY.format("a"), KEY.format("b"))
    notifications(database, "select")
    for change in (
        KEY.format("c"),
        "update auth.project_keys set revoked_at = now()",
        "delete from auth.project_keys where kind = 'anon'",
        "truncate auth.project_keys cascade",
    ):
        assert notifications(database, change) == [("project_service_keys", "")], change


def test_every_kind_of_schema_change_is_notified(
    database: str, admin: str, notifications: Notifications
) -> None:
    (watching,) = run_each(admin, "select _project_service.watch_ddl()")
    assert watching == (True,)
    there = parse_dsn(admin)
    run_each(
        admin,
        "create extension postgres_fdw",
        f"create server here foreign data wrapper postgres_fdw options (host '{there['host']}',"
        f" port '{there['port']}', dbname '{there['dbname']}')",
        f"create user mapping for postgres server here options (user 'postgres', password '{there['password']}')",
    )
    notifications(admin, "select")
    for change in CHANGES.strip().splitlines():
        expected = [] if change.startswith(SILENT) else [RELOAD]
        assert notifications(admin, change) == expected, change
    assert notifications(admin, "drop schema api cascade") == [RELOAD]
    assert (
        notifications(admin, "create temporary table passing (a int); create temporary view a as select 1")
        == []
    )


def test_service_role_may_use_everything_in_an_exposed_schema(database: str) -> None:
    """This holds for what exists and for what comes; the other roles may only look names up."""
    made = (
        "create table api.t{0} (id serial)",
        "create function api.f{0}() returns int language sql return 1",
        "revoke execute on function api.f{0}() from public",
    )
    run_each(
        database, "create schema api", "alter default privileges revoke execute on functions from public"
    )
    run_each(database, *(one.format(1) for one in made), "select _project_service.expose_schema('api')")
    run_each(database, *(one.format(2) for one in made[:2]))
    rights = {
        "table": ("t{0}", "select, insert, update, delete, truncate, references, trigger, maintain"),
        "sequence": ("t{0}_id_seq", "usage, select, update"),
        "function": ("f{0}()", "execute"),
    }
    for kind, (name, privileges) in rights.items():
        for number in (1, 2):
            for privilege in privileges.split(", "):
                what = f"'api.{name.format(number)}', '{privilege}'"
                asked = "select r from unnest(array['anon', 'authenticated', 'service_role']) r"
                may = run_each(database, f"{asked} where has_{kind}_privilege(r, {what})")
                assert may == [("service_role",)], what
    elsewhere = "create schema inside; create table inside.t (a int)"
    run_each(database, elsewhere)
    assert run_each(database, "select has_table_privilege('service_role', 'inside.t', 'select')") == [
        (False,)
    ]
    schema = (
        "select r from unnest(array['anon', 'authenticated', 'service_role']) r where has_schema_privilege"
    )
    for right, roles in (("usage", ["anon", "authenticated", "service_role"]), ("create", [])):
        assert run_each(database, f"{schema}(r, 'api', '{right}')") == [(role,) for role in roles], right


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
    messages: list[str] = []
    with psycopg2.connect(database) as dump:
        # A dump holds a lock on every table for as long as it takes.
        dump.cursor().execute("lock table auth.users in access share mode")
        done = start(migrate(connection, [*shipped(), later], messages.append))

        async def waits() -> bool:
            return (
                "Migration 9000_x.sql waits for other transactions on the tables that it changes" in messages
            )

        await until(waits)
        await beside.query(f"set lock_timeout = '{PATIENCE}'")
        for _ in range(5):
            await beside.query("select pg_sleep(0.2); update auth.users set metadata = '{}'; select 1")
        assert not done.called
    dump.close()
    assert await done == (later,)
    assert (await state(beside))[-1][0] == 9000
    assert len(messages) == 2
    for one in (connection, beside):
        one.close()


@pytest_twisted.ensureDeferred
async def test_a_migration_gives_way_to_a_request_that_waits_for_it_as_it_waits_for_the_request(
    database: str, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends whichever has waited for a second, and this one has waited for longer than the migration.

    Here both times are eight times as long: a machine that stands still for some seconds does not mix them up.
    """
    monkeypatch.setattr(migrating, "LOCK_SECONDS", 8 * migrating.LOCK_SECONDS)
    services.admin(f"""alter database "{parse_dsn(database)["dbname"]}" set deadlock_timeout = '8s'""")
    monkeypatch.setattr(migrating, "PAUSE_SECONDS", 0.2)
    later = Migration(
        9000,
        "9000_x.sql",
        "alter table auth.users add column nickname text; select pg_sleep(0.3);"
        " alter table auth.sessions add column nickname text",
    )
    connection, beside, looking = [await connection_to(database, 0) for _ in range(3)]
    await migrate(connection, shipped())
    await beside.query("begin; lock table auth.sessions in access share mode")
    done = start(migrate(connection, [*shipped(), later]))

    async def holds() -> bool:
        locked = "select count(*) from pg_locks where granted and relation = 'auth.users'::regclass"
        return bool((await looking.query(f"{locked} and mode = 'AccessExclusiveLock'"))[0][0])

    await until(holds)
    await beside.query("update auth.users set metadata = '{}'; commit")
    assert await done == (later,)
    for one in (connection, beside, looking):
        one.close()


@pytest_twisted.ensureDeferred
async def test_waiting_for_another_process_that_migrates_is_reported(database: str) -> None:
    """That process may stand still, or its host may be switched off; the start must not wait silently."""
    first, second = [await connection_to(database, 0) for _ in range(2)]
    messages: list[str] = []
    await first.query("select pg_advisory_lock(%s)", (MIGRATIONS,))
    done = start(migrate(second, shipped(), messages.append))

    async def waits() -> bool:
        return messages == ["Another process migrates the database; waiting until it has ended"]

    await until(waits)
    assert not done.called
    first.close()
    assert await done == ()
    assert len(messages) == 1
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


@pytest_twisted.ensureDeferred
async def test_a_server_that_is_too_old_is_refused_before_anything_is_changed(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(await connection_to(empty_database, 0)) as connection:
        is_ = connection.raw.server_version // 10000
        monkeypatch.setattr(migrating, "OLDEST_POSTGRESQL", is_ + 1)
        for work in (migrate(connection, shipped()), migrating.outstanding(connection)):
            with pytest.raises(migrating.MigrationRefused, match=f"PostgreSQL {is_} is too old .* {is_ + 1}"):
                await work
        assert await connection.query("select to_regnamespace('_project_service')") == [(None,)]
        monkeypatch.setattr(migrating, "OLDEST_POSTGRESQL", is_)
        assert len(await migrating.outstanding(connection)) > len(shipped())
