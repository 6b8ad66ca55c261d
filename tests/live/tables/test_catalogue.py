"""Reading the catalogue: as of one moment, in one notation, and what it notices in the SQL of functions and views."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn
from twisted.internet import reactor as _reactor
from twisted.logger import formatEvent

from project_service.database.connection import Connection, Params, Row
from project_service.database.pool import Pool
from project_service.embedded.postgres import OWNER
from project_service.tables.assemble import raw
from project_service.tables.schema_cache.holder import CacheHolder, Echo, Freshness, loader
from project_service.tables.values import TablesConfig
from tests.captured_log import captured_logs
from tests.live.services import Services
from tests.live.sql import connector, run_sql

reactor: Any = _reactor


@pytest_twisted.async_yield_fixture
async def holder(database: str) -> AsyncIterator[CacheHolder]:
    """The schema cache of the test's database, which has not been read yet."""
    pool = Pool(raw(connector(database)), 1, 5.0, reactor)
    yield CacheHolder(loader(reactor, pool, TablesConfig()), reactor)
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_table_made_while_the_catalogue_is_read_is_found_next_time(database: str) -> None:
    """Without event triggers only the fingerprint tells that something is new."""
    change = ["create table made_meanwhile (id int)"]

    async def connect() -> Connection:
        connection = await raw(connector(database))()
        query = connection.query

        async def interrupted(sql: str | bytes, params: Params = None) -> list[Row]:
            if "fingerprint" in str(sql) and change:
                run_sql(database, change.pop())
            return await query(sql, params)

        connection.query = interrupted  # type: ignore[method-assign]  # only here something comes in between
        return connection

    pool = Pool(connect, 1, 5.0, reactor)
    holder = CacheHolder(loader(reactor, pool, TablesConfig()), reactor)
    await holder.reload()
    first = holder.current
    newer = await Freshness(holder, pool, Echo(pool, reactor)).newer(first)
    assert newer is not None
    assert (("public", "made_meanwhile") in first.relations, change) == (False, [])
    assert ("public", "made_meanwhile") in newer.relations
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_settings_left_by_a_request_do_not_affect_it(database: str) -> None:
    pool = Pool(raw(connector(database)), 1, 5.0, reactor)
    await pool.query("set quote_all_identifiers = on")
    await pool.query("set role anon")
    holder = CacheHolder(loader(reactor, pool, TablesConfig(schemas=("auth",))), reactor)
    await holder.reload()
    key = holder.current.relations["auth", "project_keys"]
    assert key.columns["created_at"].type == "timestamp with time zone"
    assert key.columns["id"].default == "gen_random_uuid()"
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_types_and_defaults_have_one_notation(database: str) -> None:
    run_sql(database, "create table days (day date default '2020-01-13', words tsvector, said json)")
    other = make_dsn(database, options="-c quote_all_identifiers=on -c datestyle=German")
    pool = Pool(raw(connector(other)), 1, 5.0, reactor)
    holder = CacheHolder(loader(reactor, pool, TablesConfig()), reactor)
    await holder.reload()
    columns = holder.current.relations["public", "days"].columns
    assert [column.type for column in columns.values()] == ["date", "tsvector", "json"]
    assert columns["day"].default == "'2020-01-13'::date"
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_functions_naming_things_that_outlive_a_transaction_are_noticed(
    database: str, holder: CacheHolder
) -> None:
    for text, leaves in (
        ("pg_advisory_lock(1)", True),
        ("TEMP", True),
        ("pg_temp.t", True),
        ("temporary", True),
        ("with  hold", True),
        ("listen", True),
        ("default_transaction_isolation", True),
        ("temperature, contemporary, listened, withhold, pg_locks", False),
    ):
        run_sql(
            database,
            f"create or replace function speaks() returns text language sql as $$ select '{text}' $$",
        )
        await holder.reload()
        assert not holder.current.changes_role
        assert holder.current.leaves_state is leaves, text
        assert holder.current.reads_leave_state is (leaves and "temp" not in text.lower()), text


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("Set Role anon", True),
        ("set local  role anon", True),
        ("perform set_config ('role', 'anon', true)", True),
        ("perform set_config('app.role', 'anon', true)", False),
        ("update users set roles = 1", False),
    ],
)
@pytest_twisted.ensureDeferred
async def test_functions_that_set_a_role_are_noticed(
    database: str, holder: CacheHolder, text: str, changes: bool
) -> None:
    run_sql(database, f"create function sets() returns void language plpgsql as $$ begin {text}; end $$")
    await holder.reload()
    assert holder.current.changes_role is changes


@pytest.mark.parametrize(
    ("kind", "executes", "calls", "within"),
    [
        ("sql stable", "revoke", "inner_one()", True),
        ("sql stable", "revoke", 'public."An (odd) one" ()', True),
        ("plpgsql immutable", "revoke", '"inner_one" (  )', True),
        ("plpgsql stable", "revoke", "inner_one()", False),
        ("sql stable", "grant", "inner_one()", False),
        ("sql stable", "revoke", "inner_one_more()", False),
    ],
)
@pytest_twisted.ensureDeferred
async def test_functions_that_call_functions_closed_to_some_roles_are_noticed(
    database: str, holder: CacheHolder, kind: str, executes: str, calls: str, within: bool
) -> None:
    odd = calls.removeprefix("public.").rstrip(" ()") if "odd" in calls else "inner_one"
    text = "select 1" if kind.startswith("sql") else "begin return 1; end"
    run_sql(
        database,
        f"create function {odd}() returns int language {kind} as $$ {text} $$;"
        f"{executes} execute on function {odd} {'from' if executes == 'revoke' else 'to'} public;"
        f"create function outer_one() returns int language plpgsql as $$ begin return {calls}; end $$",
    )
    await holder.reload()
    assert holder.current.guarded_within is within


@pytest_twisted.ensureDeferred
async def test_a_sql_standard_body_does_not_count_as_calling_itself(
    database: str, holder: CacheHolder
) -> None:
    for text, within in (
        ("inner_one() returns int stable begin atomic select 1; end", False),
        ("outer_one() returns int return inner_one()", True),
    ):
        run_sql(database, f"create function {text}; revoke execute on function inner_one() from public")
        await holder.reload()
        assert holder.current.guarded_within is within


@pytest_twisted.ensureDeferred
async def test_immutable_functions_that_read_settings_are_noticed(database: str, holder: CacheHolder) -> None:
    run_sql(
        database,
        "create schema odd;"
        "create function shown() returns text language sql immutable as $$ select Current_Setting('a.b', true) $$;"
        'create function odd."By Name"() returns text language plpgsql stable as $$ begin return SHOWN(); end $$;'
        "create function written() returns name language sql immutable return session_user;"
        "create function deep(a int) returns text language plpgsql immutable as "
        """$$ begin return odd."By Name" (); end $$;"""
        "create function stable_one() returns text language sql stable as $$ select shown() $$;"
        "create function fine(current_users text) returns text language sql immutable as "
        "$$ select lower(current_users) $$",
    )
    await holder.reload()
    assert set(holder.current.false_constants) == {
        "public.shown()",
        "public.written()",
        "public.deep(integer)",
    }


@pytest_twisted.ensureDeferred
async def test_unreadable_foreign_tables_do_not_prevent_reading_the_catalogue(
    database: str, services: Services
) -> None:
    pool = Pool(raw(connector(database)), 1, 5.0, reactor)
    run_sql(
        services.admin_dsn(database),
        f"create foreign data wrapper mute; grant usage on foreign data wrapper mute to {OWNER}",
    )
    run_sql(
        database,
        "create server nobody foreign data wrapper mute; create foreign table silent (id int) server nobody;"
        " create view of_silent as select * from silent; create table beside (id int)",
    )
    holder = CacheHolder(loader(reactor, pool, TablesConfig()), reactor)
    await holder.reload()
    updatable = {name: found.updatable for (_, name), found in holder.current.relations.items()}
    assert updatable == {"silent": False, "of_silent": False, "beside": True}
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_the_log_says_why_postgresql_refused_to_read_it(database: str) -> None:
    async def connect() -> Connection:
        connection = await raw(connector(database))()
        query = connection.query

        async def failing(sql: str | bytes, params: Params = None) -> list[Row]:
            return await query("select 1 / 0" if "fingerprint" in str(sql) else sql, params)

        connection.query = failing  # type: ignore[method-assign]  # the catalogue has nothing that fails
        return connection

    pool = Pool(connect, 1, 5.0, reactor)
    holder = CacheHolder(loader(reactor, pool, TablesConfig()), reactor)
    with captured_logs() as events:
        await holder.reload()
    said = "the schema cache could not be read (DivisionByZero: division by zero); there is none yet"
    assert said in [formatEvent(event) for event in events]
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_it_is_known_which_tables_are_read_through_views_and_functions(database: str) -> None:
    pool = Pool(raw(connector(database)), 1, 5.0, reactor)
    run_sql(
        database,
        "create table plain (id int); create table parted (id int) partition by list (id);"
        " create table above (id int); create table heir () inherits (above);"
        " create function rows_of() returns setof plain language sql stable as 'select * from plain';"
        " create function one_of() returns int language sql stable as 'select 1';"
        " create schema inside; create view inside.part as select * from parted;"
        " create view of_plain as select id, one_of() from plain; create view of_part as select * from inside.part;"
        " create view of_above as select count(*) from above; create view of_rows as select * from rows_of();"
        " create materialized view stored as select * from parted",
    )
    holder = CacheHolder(loader(reactor, pool, TablesConfig()), reactor)
    await holder.reload()
    expanding = {name for (_, name), found in holder.current.relations.items() if found.expands}
    assert expanding == {"parted", "above", "of_part", "of_above", "of_rows"}
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_sql_bodies_and_views_that_take_advisory_locks_are_noticed(
    database: str, holder: CacheHolder
) -> None:
    for made, dropped in (
        ("function takes() returns void begin atomic select pg_advisory_lock(1); end", "function takes()"),
        ("view takes as select pg_try_advisory_lock(1) as taken", "view takes"),
        ("view takes as select pg_try_advisory_xact_lock(1) as taken", ""),
    ):
        run_sql(database, f"create {made}")
        await holder.reload()
        assert holder.current.reads_leave_state is bool(dropped), made
        run_sql(database, f"drop {dropped or 'view takes'}")


@pytest_twisted.ensureDeferred
async def test_foreign_keys_over_periods_are_no_relationships(database: str, holder: CacheHolder) -> None:
    """The ranges of both sides are seldom equal, so embedded rows would be missing."""
    run_sql(
        database,
        """
        create table rooms (id int4range, valid daterange, primary key (id, valid without overlaps));
        create table houses (id int primary key);
        create table stays (room int4range, during daterange, house int references houses,
          foreign key (room, period during) references rooms (id, period valid))
        """,
    )
    await holder.reload()
    found = holder.current.relationships
    assert [way.target[1] for way in found["public", "stays"]] == ["houses"]
    assert ("public", "rooms") not in found
