"""Which SQL of an application may leave a setting on its session, so that requests begin with RESET ALL."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg2
import pytest

from project_service.tables.schema_cache.queries import SETS_FOR_SESSION

FUNCTIONS = (
    ("sql", "select set_config('a.b', 'c', true)", False),
    ("sql", "select set_config('a.b', 'c', false)", True),
    ("sql", "select set_config('a.b', 'c', is_local)", True),
    ("sql", "select set_config('a.b', 'c', false), coalesce('x', 'y'), set_config('d.e', 'f', true)", True),
    ("sql", "select set_config('a.b', coalesce(current_setting('x.y', true), lower('d')), true)", False),
    ("sql", "select set_config('a.b', 'c', true), set_config('d.e', 'f', true)", False),
    ("sql", "set a.b = 1; select ''", True),
    ("sql", "update t set x = 1 returning x", False),
    ("plpgsql", "begin\n  set local a.b = 1; return ''; end", False),
    ("plpgsql", "begin\n  set a.b = 1; return ''; end", True),
    ("plpgsql", "begin if true then set a.b = 1; end if; return ''; end", True),
    ("plpgsql", "begin for i in 1..2 loop set a.b = 1; end loop; return ''; end", True),
    ("plpgsql", "begin update t\n set x = 1; return ''; end", False),
    ("plpgsql", "begin insert into t values (1) on conflict (x) do update set x = 1; return ''; end", False),
    ("plpgsql", "begin execute 'set a.b to 1'; return ''; end", True),
    ("plpgsql", "begin execute 'select 1; set a.b to 1'; return ''; end", True),
    ("plpgsql", "begin execute said; return ''; end", True),
    ("plpgsql", "begin execute 'select ' || said; return ''; end", True),
    ("plpgsql", "begin execute format(said, 1); return ''; end", True),
    ("plpgsql", "begin execute format('select %s', said); return ''; end", True),
    ("plpgsql", "begin execute format('set a.b = %L', said); return ''; end", True),
    (
        "plpgsql",
        "begin execute format('select count(*) from %I where a = %L', x, y) into z; return z; end",
        False,
    ),
    ("plpgsql", "begin execute 'select 1' into z using x; return z; end", False),
    ("plpgsql", "begin return query execute 'select 1'; end", False),
    ("plpgsql", "begin for r in execute 'select 1' loop return r.a; end loop; end", False),
    ("plpgsql", "begin -- hm\n -- x\n SET SESSION a.b = 1; return ''; end", True),
    ("plpgsql", "begin /* x */ set a.b = 1; return ''; end", True),
    ("plpgsql", "begin perform 1; reset all; return ''; end", True),
    ("plpgsql", "begin perform 1; discard all; return ''; end", True),
    ("plpgsql", "begin execute format('select set_config(%L, %L, %L)', 'a', 'b', 'c'); return ''; end", True),
    ("plpgsql", "begin perform set_config('response.status', '418', true); return ''; end", False),
    ("plpgsql", "begin perform set_config('response.status', '418',\n  true ); return ''; end", False),
    ("plpgsql", "begin set constraints all deferred; return ''; end", False),
    ("plpgsql", "begin set transaction read only; return ''; end", False),
    ("plpgsql", "begin set role anon; return ''; end", True),
)
OBJECTS = (
    ("create view {} as select set_config('a.b', 'c', false)", True),
    ("create view {} as select 1 as set_config", False),
    ("create table {} (a text default set_config('a.b', 'c', false))", True),
    ("create table {} (a text check (set_config('a.b', a, false) is null))", True),
    ("create table {0} (a text); create policy p on {0} using (set_config('a.b', a, false) is null)", True),
    (
        "create table {0} (a text); create policy p on {0} with check (set_config('a.b', a, false) is null)",
        True,
    ),
    ("create table {} (a text default 'set_config')", False),
    ("create function {}() returns text begin atomic select set_config('a.b', 'c', false); end", True),
    ("create function {}() returns text return set_config('a.b', 'c', false)", True),
    # PostgreSQL prints it with the function's name for the column, which counts.
    ("create function {}() returns text begin atomic select set_config('a.b', 'c', true); end", True),
    ("create function {}() returns text begin atomic select set_config('a.b', 'c', true) as b; end", False),
    ("create function {}() returns text language sql set search_path = '' as $$ select '' $$", False),
    ("create function public.set_config(text) returns int language sql as 'select 1'", True),
)


@pytest.fixture(scope="module")
def cursor(module_database: str) -> Iterator[psycopg2.extensions.cursor]:
    connection = psycopg2.connect(module_database)
    with connection.cursor() as made:
        yield made
    connection.close()


def counts(cursor: psycopg2.extensions.cursor, sql: str) -> bool:
    """Whether a database that has only this counts as one that may leave settings. Nothing of it stays."""
    cursor.connection.rollback()
    cursor.execute("set check_function_bodies = off")
    cursor.execute(sql)
    cursor.execute(f"select {SETS_FOR_SESSION}", {"schemas": ["public"]})
    ((result,),) = cursor.fetchall()
    cursor.connection.rollback()
    return bool(result)


def test_the_services_own_schema_leaves_none(cursor: psycopg2.extensions.cursor) -> None:
    assert not counts(cursor, "select 1")


@pytest.mark.parametrize(("language", "body", "leaves"), FUNCTIONS)
def test_functions(cursor: psycopg2.extensions.cursor, language: str, body: str, leaves: bool) -> None:
    made = f"create function public.made(said text) returns text language {language} as $made${body}$made$"
    assert counts(cursor, made) is leaves


@pytest.mark.parametrize(("sql", "leaves"), OBJECTS)
def test_other_objects(cursor: psycopg2.extensions.cursor, sql: str, leaves: bool) -> None:
    assert counts(cursor, sql.format("public.made")) is leaves
