"""What a text or the catalog may hide from the check of functions (``database.trust``): each of these gave a later
caller what an earlier one had left, or had been shown."""

from __future__ import annotations

import psycopg2
import pytest

from project_service.database.acting import _RECYCLE
from tests.live.database.test_trust import cursor, trust

__all__ = ["cursor"]

TABLES = (
    'create table secrets (a text, "is" text); create table abs (a text); create schema shop;'
    "create function shop.order(int) returns int language sql immutable as 'select 1';"
)
IMMUTABLE = TABLES + "create function f() returns text language {} immutable as $body$ {} $body$"
IMPURE = {
    "attribute notation": ("sql", "select ('app.x'::text).current_setting"),
    "attribute notation of a variable": (
        "plpgsql",
        "declare name text := 'app.x'; begin return (name).\"current_setting\"; end",
    ),
    "an alias that is a word of PL/pgSQL": (
        "plpgsql",
        "declare r text; begin select a into r from generate_series(1, 1) as loop, secrets; return r; end",
    ),
    "a target in the middle of FROM": (
        "plpgsql",
        "declare r text; begin select a from generate_series(1, 1) into r cross join secrets; return r; end",
    ),
    "a query of the table's name elsewhere": (
        "sql",
        "select a from secrets where exists (with secrets as (select 1) select from secrets)",
    ),
    "a column that is called is": ("sql", "select s.is distinct from secrets s"),
    "a function that is called order": ("sql", "select s.a from shop.order(1) o, secrets s"),
    "the type of arrays of roles": ("sql", "select '{postgres}'::_regrole::text"),
    "an alias that is a parenthesis": ("sql", 'select a from abs "("'),
}
IS_MINE = """
create function is_mine(int, int) returns boolean language sql immutable as
  $$ select current_setting('app.x', true) = 'a' $$;
create operator === (function = is_mine, leftarg = int, rightarg = int);
"""
# Values that PostgreSQL keeps with the session, where an operator leads to the function.
KEPT = (
    IS_MINE + "create domain d as text check (1 operator(public.===) 2)",
    IS_MINE + "create table t (a int); create index on t ((1 operator(public.===) 2))",
    IS_MINE + "create table t (a int); create index on t (a) where 1 operator(public.===) 2",
)
BODIES = {
    "a literal that goes on": "execute 'select 1'\n';'\n'set app.x = 1';",
    "a semicolon in a list": "set local search_path = ';', 'pg_temp'; create table t (a int);",
    "a schema in capital letters": "perform set_config('search_path', 'PG_TEMP', true); create table t (a int);",
    "a channel that is a word": "listen nothing;",
    "a statement that is a word": "prepare at as select 1;",
    "a given literal after a backslash": "execute format('select E''\\%L ; set app.x = 1; --''', 'v');",
    "a given literal in dollar quotes": "execute format('select $q$%L$q$', '$q$; set app.x = 1; --');",
    "a given name in a quoted name": "execute format('select 1 as \"b%I\"', '; set app.x = 1; --');",
    "a given literal in a comment": "execute format('select 1 -- %L', e'\\n; set app.x = 1; --');",
    "the seed of random numbers": "set local seed = 0.5;",
    "the seed, by set_config": "perform set_config('seed', '0.5', true);",
    "a search path that goes on": "set local search_path = 'pg_'\n'temp'; create table t (a int);",
    "how null is compared": "set local transform_null_equals = on;",
    "a given schema of temporary tables": "execute format('create table %I.%I (a int)', 'pg_temp', 't');",
}
FORMAT = "create function format(text, text) returns text language sql as $$ select 'set app.x = 1' $$;"
FUNCTION = "create function f() returns int language plpgsql {} as $body$ begin {} return 1; end $body$"
LEAVING = {name: FUNCTION.format("", body) for name, body in BODIES.items()} | {
    "a search path that ends there": FUNCTION.format(
        "set search_path = nowhere, pg_temp", "create table t (a int);"
    ),
    "a format of the application": FORMAT + FUNCTION.format("", "execute format('select %L', 'x');"),
    "the condition of a rule": "create table t (a text); create rule r as on update to t"
    " where set_config('app.x', 'a', false) is null do instead nothing",
    "a function of PostgreSQL's schema": "create function pg_catalog.f() returns text language sql as"
    " $$ select set_config('app.x', 'a', false) $$",
}
INNER = """
create function inner_one({0}) returns int language sql stable as 'select 1';
revoke execute on function inner_one({0}) from public;
"""
GUARDED = {
    "a view": INNER.format("") + "create view v as select inner_one() as x;"
    "create function f() returns int language plpgsql stable as 'begin return (select x from v); end'",
    "an operator": INNER.format("int, int")
    + "create operator === (function = inner_one, leftarg = int, rightarg = int);"
    "create function f() returns int language plpgsql stable as 'begin return 1 === 2; end'",
    "a default": INNER.format("") + "create table t (a int default inner_one());"
    "create function f() returns void language plpgsql as 'begin insert into t default values; end'",
    "a schema that is closed to some": "create schema inner_schema;"
    "create function inner_schema.inner_one() returns int language plpgsql stable as 'begin return 1; end';"
    "create function f() returns int language plpgsql stable as 'begin return inner_schema.inner_one(); end'",
}
SETTING = "current_setting('app.x', true)"
CALLER = f"$$ select {SETTING} $$"
FALSE = {
    "the default of an argument": f"create function g(a text default {SETTING}) returns text language sql"
    " immutable as 'select a'; create function f() returns text language sql immutable as 'select g()'",
    "a function of PostgreSQL's schema": "create function pg_catalog.f() returns text language sql immutable as"
    f" {CALLER}",
    "a class of operators": "create type letter as enum ('a', 'b'); create function compared(letter, letter)"
    " returns int language sql stable as $$ select length(current_setting('app.x', true)) $$;"
    "create operator class letters default for type letter using btree as function 1 compared(letter, letter);"
    "create function f(letter[]) returns letter language sql immutable as 'select min(x) from unnest($1) as x'",
}
FORMS = {
    "time zone": "set local time zone 'Asia/Tokyo';",
    "within EXECUTE": "execute 'set local timezone = ''Asia/Tokyo''';",
}
TO_CHAR = (
    "create function day(t timestamptz) returns text language sql immutable as $$ select to_char(t, 'D') $$;"
)
# What is not to be taken for worse than it is, since each request would be slower.
HARMLESS = (
    """
create extension unaccent;
create function slugify("value" text) returns text language sql strict immutable as $$
  with "unaccented" as (select unaccent("value") as "value"),
    "lowercase" as (select lower("value") as "value" from "unaccented"),
    "trimmed" as (select regexp_replace("value", '\\-+$', '') as "value" from "lowercase")
  select "value" from "trimmed" $$
""",
    """
create function url_decode(data text) returns bytea language sql immutable as $$
  with t as (select translate(data, '-_', '+/') as trans), rem as (select length(t.trans) % 4 as remainder from t)
  select decode(t.trans || case when rem.remainder > 0 then repeat('=', (4 - rem.remainder)) else '' end, 'base64')
  from t, rem $$
""",
    """
create function merged(a jsonb, b jsonb) returns jsonb language sql immutable as $$
  select jsonb_object_agg(coalesce(ka, kb), coalesce(vb, va))
  from jsonb_each(a) as e1(ka, va) full join jsonb_each(b) as e2(kb, vb) on ka = kb $$
""",
    "create type timerange as range (subtype = time)",
)


@pytest.mark.parametrize("name", IMPURE)
def test_what_a_function_reads_is_seen(cursor: psycopg2.extensions.cursor, name: str) -> None:
    assert trust(cursor, IMMUTABLE.format(*IMPURE[name])).false_constants == ("public.f()",)


@pytest.mark.parametrize("name", FALSE)
def test_what_a_function_reads_by_others_is_seen(cursor: psycopg2.extensions.cursor, name: str) -> None:
    assert trust(cursor, FALSE[name]).false_constants


@pytest.mark.parametrize("sql", KEPT)
def test_what_the_session_keeps_is_seen_behind_operators(
    cursor: psycopg2.extensions.cursor, sql: str
) -> None:
    assert trust(cursor, sql).closes


@pytest.mark.parametrize("name", LEAVING)
def test_what_stays_on_the_session_is_seen(cursor: psycopg2.extensions.cursor, name: str) -> None:
    assert trust(cursor, LEAVING[name]).leaves


@pytest.mark.parametrize("name", GUARDED)
def test_what_a_plan_may_call_for_one_role_alone_is_seen(
    cursor: psycopg2.extensions.cursor, name: str
) -> None:
    assert trust(cursor, GUARDED[name]).guarded


@pytest.mark.parametrize("sql", HARMLESS)
def test_what_is_harmless_is_trusted(cursor: psycopg2.extensions.cursor, sql: str) -> None:
    assert trust(cursor, sql).clean


@pytest.mark.parametrize("name", FORMS)
def test_what_changes_how_values_are_written_is_seen(cursor: psycopg2.extensions.cursor, name: str) -> None:
    assert trust(cursor, TO_CHAR + FUNCTION.format("", FORMS[name])).false_constants


def test_a_functions_own_time_zone_is_seen(cursor: psycopg2.extensions.cursor) -> None:
    assert trust(cursor, TO_CHAR + FUNCTION.format("set timezone = 'Asia/Tokyo'", "")).false_constants


def test_a_role_that_execute_sets_is_seen(cursor: psycopg2.extensions.cursor) -> None:
    assert trust(cursor, FUNCTION.format("", "execute 'set local role anon';")).sets_role


ISN = 'create schema "more types"; create extension isn schema "more types"; '


def test_an_extension_with_a_state_that_can_be_cleared_is_cleared(cursor: psycopg2.extensions.cursor) -> None:
    found = trust(cursor, ISN)
    assert not (found.closes or found.leaves)
    read = 'select $$0-00-000000-1$$::"more types".isbn::text'
    cursor.execute(f'{ISN} select "more types".isn_weak(true); {read}')
    assert cursor.fetchall() == [("0-00-000000-0!",)]
    cursor.execute(_RECYCLE.format(own="true", clears=found.clears))
    with pytest.raises(psycopg2.DataError, match="check digit"):
        cursor.execute(read)


def test_an_extension_with_a_state_that_no_role_may_clear_closes(cursor: psycopg2.extensions.cursor) -> None:
    assert trust(cursor, ISN + "create role plain; set session authorization plain").closes
    opened = 'create role plain; grant usage on schema "more types" to plain; set session authorization plain'
    assert not trust(cursor, ISN + opened).closes


def test_an_extension_with_a_state_that_is_not_known_closes(cursor: psycopg2.extensions.cursor) -> None:
    assert trust(cursor, "create extension dblink").closes
