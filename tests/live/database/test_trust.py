"""How far a database's SQL is trusted, by what its catalog has: functions, and everything else that calls some."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import psycopg2
import pytest

from project_service.database.trust import _SHIPPED, QUERY, Trust, trust_of
from tests.live.services import Services

# What is made, and whether something may stay on the session then.
SESSIONS = (
    ("select 1", False),
    ("create view {} as select set_config('a.b', 'c', false)", True),
    ("create view {} as select 1 as set_config", False),
    ("create view {} as select pg_try_advisory_lock(1) as taken", True),
    ("create view {} as select pg_try_advisory_xact_lock(1) as taken", False),
    ("create view {} as select query_to_xml('select 1', true, true, '')", True),
    ("create table {} (a text default set_config('a.b', 'c', false))", True),
    ("create table {} (a text check (set_config('a.b', a, false) is null))", True),
    ("create table {0} (a text); create policy p on {0} using (set_config('a.b', a, false) is null)", True),
    (
        "create table {0} (a text); create policy p on {0} with check (set_config('a.b', a, false) is null)",
        True,
    ),
    (
        "create table {0} (a text); create function t() returns trigger language plpgsql as"
        " 'begin return new; end'; create trigger t before insert on {0} for each row"
        " when (set_config('a.b', new.a, false) is null) execute function t()",
        True,
    ),
    ("create domain {} as text check (set_config('a.b', value, false) is null)", True),
    (
        "create function {}(a text default set_config('a.b', 'c', false)) returns int language sql as 'select 1'",
        True,
    ),
    ("create operator === (function = pg_advisory_lock_shared, leftarg = int, rightarg = int)", True),
    ("create table {} (a text default 'set_config')", False),
    ("create table {} (a serial)", False),
    ("create function {}() returns text begin atomic select set_config('a.b', 'c', false); end", True),
    ("create function {}() returns text return set_config('a.b', 'c', false)", True),
    ("create function {}() returns text begin atomic select set_config('a.b', 'c', true); end", False),
    ("create function {}() returns text language sql set search_path = '' as $$ select '' $$", False),
    ("create function {}() returns text language sql set search_path = pg_temp as $$ select '' $$", True),
    (
        "create function {}() returns text language sql set standard_conforming_strings = off as $$ select '' $$",
        True,
    ),
    ("create function {}() returns text language internal as 'current_query'", True),
    ("create procedure {}() language plpgsql as 'begin set a.b = 1; end'", True),
    (
        "create function pg_temp.made() returns text language sql as $$ select set_config('a', 'b', false) $$",
        False,
    ),
    ("create extension pg_trgm", True),  # set_limit is in an exposed schema
    ("create extension pg_trgm schema extensions", False),
    (
        "create extension pg_trgm schema extensions;"
        "create function {}() returns real language sql as $$ select extensions.set_limit(0.1) $$",
        True,
    ),
    ("create extension citext; create extension hstore", False),
    ("create extension tablefunc", True),  # crosstab(text) runs what it is given, and is in an exposed schema
    ("create extension tablefunc schema extensions", False),
    ("create function {}() returns void language sql as 'select 1 into made_here'", True),
    ("create function {}() returns void language sql as 'insert into t values (1)'", False),
)

# The first function is declared immutable: is it taken for one?
CALLER = "create function caller() returns text language sql {} as $$ select current_setting('a.b', true) $$;"
TABLE = "create table secrets (a text);"
CONSTANTS = (
    ("create function f(a text) returns text language sql immutable as $$ select lower(a) || 'x' $$", True),
    (
        "create function f(a text) returns text language plpgsql immutable as 'begin return upper(a); end'",
        True,
    ),
    ("create function f(a text) returns text immutable return lower(a)", True),
    ("create function f(a text) returns text language sql immutable as $$ select concat(a, 'b') $$", True),
    (
        "create function f(a date) returns int language sql immutable as $$ select extract(year from a)::int $$",
        True,
    ),
    (
        "create function f(a text) returns text language sql immutable as $$ select replace(a, '\\s', '') $$",
        True,
    ),
    (
        "create function g() returns int language sql immutable as 'select 1';"
        "create function f() returns int language sql immutable as 'select g() + 1'",
        True,
    ),
    (
        "create function checked(text) returns boolean language sql as $$ select $1 <> '' $$;"
        "create domain word as text check (checked(value));"
        "create function f(a word) returns word language sql immutable as 'select a'",
        True,
    ),
    (
        "create function f(a int) returns int language plpgsql immutable as"
        " 'begin if a < 2 then return 1; end if; return a * f(a - 1); end'",
        True,
    ),
    (
        "create function f() returns text language sql immutable as $$ select current_setting('a.b', true) $$",
        False,
    ),
    (
        "create function f() returns text language sql immutable as $$ select Current_Setting/**/('a.b') $$",
        False,
    ),
    (
        "create function f() returns text language sql immutable as $$ select pg_catalog.current_setting('a') $$",
        False,
    ),
    ("create function f() returns name language sql immutable return session_user", False),
    ("create function f() returns name language sql immutable as 'select current_role'", False),
    (TABLE + "create function f() returns text language sql immutable as 'select a from secrets'", False),
    (TABLE + "create function f() returns text immutable begin atomic select a from secrets; end", False),
    (
        TABLE + "create function f() returns text language plpgsql immutable as"
        " 'declare r record; begin for r in select * from secrets loop return r.a; end loop; end'",
        False,
    ),
    (
        TABLE + "create function f() returns text language plpgsql immutable as"
        " $$ declare r text; begin execute 'select a from secrets' into r; return r; end $$",
        False,
    ),
    (
        TABLE + "create function f() returns text language plpgsql immutable as"
        " $$ declare r text; begin r := a from secrets; return r; end $$",
        False,
    ),
    (
        TABLE + "create function f() returns xml language sql immutable as"
        " $$ select query_to_xml('table secrets', true, true, '') $$",
        False,
    ),
    (
        CALLER.format("stable")
        + "create function f() returns text language sql immutable as 'select caller()'",
        False,
    ),
    (CALLER.format("stable") + "create function f() returns text immutable return public.caller()", False),
    (
        CALLER.format("stable")
        + "create function g() returns text language sql immutable as 'select caller()';"
        "create function f() returns text language sql immutable as 'select g()'",
        False,
    ),
    (
        "create function \"Odd One\"() returns text language sql stable as $$ select current_setting('a.b', true) $$;"
        "create function f() returns text language plpgsql immutable as 'begin return \"Odd One\" (); end'",
        False,
    ),
    ("create function f() returns text language sql immutable as 'select now()::text'", False),
    ("create function f() returns uuid language sql immutable as 'select auth.uid()'", False),
    (
        "create function f() returns boolean language sql immutable as"
        " $$ select has_table_privilege('pg_class', 'select') $$",
        False,
    ),
    ("create function f() returns text language sql immutable as 'select unknown_one()'", False),
    (
        TABLE + "create function owner_of(secrets) returns text language sql stable as"
        " $$ select current_setting('a.b', true) $$; create function f(s secrets) returns text language sql immutable"
        " as 'select s.owner_of'",
        False,
    ),
    (
        "create function is_mine(int, int) returns boolean language sql stable as"
        " $$ select current_setting('a.b', true) is null $$; create operator === (function = is_mine, leftarg = int,"
        " rightarg = int); create function f() returns boolean language sql immutable as 'select 1 === 2'",
        False,
    ),
    (
        CALLER.format("stable") + "create domain mine as text check (value = public.caller());"
        "create function f(a text) returns mine language sql immutable as 'select a::mine'",
        False,
    ),
    (
        "create domain mine as text check (value = current_user);"
        "create function f(a text) returns mine language sql immutable as 'select a::mine'",
        False,
    ),
    (
        "create type pair as (a text); create function pair_of(text) returns pair language sql stable as"
        " $$ select row(current_setting('a.b', true))::pair $$;"
        " create cast (text as pair) with function pair_of(text);"
        "create function f(a text) returns pair language sql immutable as 'select a::pair'",
        False,
    ),
    (
        "create function f(a text) returns text language sql immutable as"
        " $$ select concat(a, 'b') $$; create function tz() returns void language sql as"
        " $$ select set_config('timezone', 'UTC', true) $$",
        False,
    ),
)


@pytest.fixture(scope="module")
def cursor(module_database: str, services: Services) -> Iterator[psycopg2.extensions.cursor]:
    """A superuser's, who may make functions in every language."""
    connection = psycopg2.connect(services.admin_dsn(module_database))
    with connection.cursor() as made:
        yield made
    connection.close()


def trust(cursor: psycopg2.extensions.cursor, sql: str) -> Trust:
    """The trust in a database that has only this. Nothing of it stays."""
    cursor.connection.rollback()
    cursor.execute("set check_function_bodies = off")
    cursor.execute(sql)
    cursor.execute("select set_config('search_path', '', true)")
    cursor.execute(QUERY, {"schemas": ["public"]})
    rows = cursor.fetchall()
    cursor.connection.rollback()
    return trust_of(orjson.loads(rows[0][0]), 1)


def test_the_services_own_schema_is_trusted(cursor: psycopg2.extensions.cursor) -> None:
    assert trust(cursor, "select 1") == Trust(1)


def test_the_services_own_functions_are_known_by_name(cursor: psycopg2.extensions.cursor) -> None:
    """So those of a project in the same schemas are judged like all others."""
    cursor.execute(
        "select distinct concat(n.nspname, '.', p.proname) from pg_proc p"
        " join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname in ('auth', 'storage', '_project_service')"
    )
    assert {name for (name,) in cursor.fetchall()} == _SHIPPED
    added = "create function auth.caller() returns text language sql immutable as 'select current_user::text'"
    assert trust(cursor, added).false_constants == ("auth.caller()",)


def test_rights_that_mix_within_a_request(cursor: psycopg2.extensions.cursor) -> None:
    """A function asks for what is closed to its caller, and is called by one that may."""
    closed = (
        "create function closed() returns int language sql stable as 'select 1';"
        "revoke execute on function closed from public;"
        "create function asks() returns int language plpgsql stable as 'begin return closed(); end';"
        "create function middle() returns int language sql stable as 'select asks()';"
    )
    for lets, mixes in (
        ("create function lets() returns int language sql as 'select middle()'", False),
        ("create function lets() returns int language sql security definer as 'select middle()'", True),
        ("create function lets() returns int language sql set role = anon as 'select asks()'", True),
        ("create function lets() returns int language sql security definer as 'select 1'", False),
    ):
        result = trust(cursor, closed + lets)
        assert (result.guarded, result.leaves) == (True, mixes), lets


@pytest.mark.parametrize(("sql", "leaves"), SESSIONS)
def test_what_may_stay_on_a_session(cursor: psycopg2.extensions.cursor, sql: str, leaves: bool) -> None:
    assert trust(cursor, sql.format("public.made")).leaves is leaves


@pytest.mark.parametrize(("sql", "constant"), CONSTANTS)
def test_which_functions_are_taken_for_constants(
    cursor: psycopg2.extensions.cursor, sql: str, constant: bool
) -> None:
    result = trust(cursor, sql)
    assert bool(result.false_constants) is not constant, result
    assert result.has_constants


def test_all_that_are_not_constant_are_named(cursor: psycopg2.extensions.cursor) -> None:
    made = (
        CALLER.format("immutable"),
        "create function deep(int) returns text language sql immutable as 'select caller()';",
        "create function stable_one() returns text language sql stable as 'select caller()';",
        "create function fine(text) returns text language sql immutable as 'select lower($1)';",
    )
    assert trust(cursor, "".join(made)).false_constants == ("public.caller()", "public.deep(integer)")


def test_what_keeps_values_for_longer_than_plans(cursor: psycopg2.extensions.cursor) -> None:
    """The constraints of a domain and the expressions of an index are planned once for the session."""
    for sql, closes in (
        (CALLER.format("immutable"), False),
        (CALLER.format("immutable") + "create domain d as text check (value = caller())", True),
        (
            CALLER.format("immutable") + "create table t (a text); create index on t (lower(a), caller())",
            True,
        ),
        (CALLER.format("stable") + "create domain d as text check (value = caller())", False),
        ("create extension dblink schema extensions", True),
    ):
        assert trust(cursor, sql).closes is closes, sql


@pytest.mark.parametrize(
    ("kind", "executes", "calls", "guarded"),
    [
        ("sql stable", "revoke", "inner_one()", True),
        ("sql stable", "revoke", "inner_one/* x */ ()", True),
        ("sql stable", "revoke", 'public."An (odd) one" ()', True),
        ("plpgsql immutable", "revoke", '"inner_one" (  )', True),
        ("plpgsql stable", "revoke", "inner_one()", False),
        ("sql stable", "grant", "inner_one()", False),
        ("sql stable", "revoke", "inner_one_more()", False),
        ("sql stable", "revoke", "'inner_one()'", False),
    ],
)
def test_functions_that_call_functions_closed_to_some_roles(
    cursor: psycopg2.extensions.cursor, kind: str, executes: str, calls: str, guarded: bool
) -> None:
    odd = calls.removeprefix("public.").rstrip(" ()") if "odd" in calls else "inner_one"
    text = "select 1" if kind.startswith("sql") else "begin return 1; end"
    sql = (
        f"create function {odd}() returns int language {kind} as $$ {text} $$;"
        f"{executes} execute on function {odd} {'from' if executes == 'revoke' else 'to'} public;"
        f"create function outer_one() returns int language plpgsql as $$ begin return {calls}; end $$"
    )
    assert trust(cursor, sql).guarded is guarded


def test_a_sql_standard_body_does_not_count_as_calling_itself(cursor: psycopg2.extensions.cursor) -> None:
    made = "create function inner_one() returns int stable begin atomic select 1; end;"
    closed = "revoke execute on function inner_one() from public;"
    assert not trust(cursor, made + closed).guarded
    assert trust(cursor, f"{made}{closed}create function outer_one() returns int return inner_one()").guarded


def test_triggers_of_the_project_on_the_services_tables(cursor: psycopg2.extensions.cursor) -> None:
    function = "create function fired() returns trigger language plpgsql as 'begin return new; end';"
    for sql, changes in (
        (
            "create trigger f after insert or update on auth.users execute function fired()",
            {"auth.users insert", "auth.users update"},
        ),
        (
            "create trigger f before delete on storage.objects for each statement execute function fired()",
            {"storage.objects delete"},
        ),
        (
            "create table profiles (id uuid references auth.users on delete cascade)",
            {"auth.users delete", "auth.users update"},
        ),
        (
            "create table t (a int); create trigger f after insert on t for each row execute function fired()",
            set(),
        ),
    ):
        assert trust(cursor, function + sql).triggers == changes, sql
