"""Functions at random, and two callers in turn on one connection: each sees what a fresh connection would show it.

That holds whatever a function is declared to be and whatever it leaves behind, however it is written. What the check
of functions (``database.trust``) takes for harmless is used as it is, so a mistake of the check shows here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from random import Random

import orjson
import psycopg2
import pytest
import pytest_twisted
from attrs import define, field

from project_service.database.acting import Actor, Preamble, Session
from project_service.database.pipeline import Step
from project_service.database.trust import QUERY, Trust, trust_of
from tests.live.services import Services, pool_on
from tests.live.sql import run_sql

SEED = 20261128
PROGRAMS = 160
TURNS = ("ann", "bob", "ann", "bob")
ROLES = {"ann": "authenticated", "bob": "anon"}

TABLES = """
create table secrets (owner text, word text);
alter table secrets enable row level security;
create policy own on secrets using (owner = current_setting('request.jwt.claims', true)::json ->> 'sub');
insert into secrets values ('ann', 'the word of ann'), ('bob', 'the word of bob');
grant select on secrets to anon, authenticated;
"""
# What others may have left, which the caller sees before its own function is called.
LEFT = """concat_ws(' | ', nullif(current_setting('app.left', true), ''), current_setting('search_path'),
  current_user,
  (select string_agg(relname, ' ') from pg_class where relnamespace = pg_my_temp_schema()),
  (select string_agg(name, ' ') from pg_cursors where is_holdable),
  (select string_agg(channel, ' ') from pg_listening_channels() as channel),
  (select string_agg(name, ' ') from pg_prepared_statements where from_sql),
  (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()))"""
ASKED = f"select {LEFT}, f0()"

SUB = "current_setting('request.jwt.claims', true)::json ->> 'sub'"
# Values of type text. ``{call}`` is a call of another function, ``{value}`` any other value.
VALUES = (
    "'plain'",
    "'set_config(''app.left'', ''x'', false)'",
    "'/* '",
    "'-- '",
    "$a$ ' $a$",
    "e'\\''",
    f"({SUB})",
    f"({SUB})",
    "nullif(current_setting('app.left', true), '')",
    "(select word from secrets limit 1)",
    "(select word from public.secrets as s limit 1)",
    "(select s.word from generate_series(1, 1) as n, secrets as s)",
    "(select s.word from (select 1) as n cross join secrets as s)",
    "(select max(x) from unnest(array[{value}, {value}]) as x)",
    "{call}",
    "{call}",
    "{call}",
    "lower({value})",
    "concat({value}, {value})",
    "coalesce({value}, {value})",
    "case when {value} is distinct from {value} then {value} else 'same' end",
    "set_config('app.left', {value}, true)",
    "set_config('app.left', {value}, false)",
    "set_config('app.left', {value}, not true)",
    "pg_catalog.set_config('app.left', {value}, (false))",
    "pg_advisory_lock_shared(7)::text",
    "pg_advisory_xact_lock_shared(7)::text",
    "current_user::text",
    "session_user::text",
    "current_setting('search_path')",
    "(select word from seen)",
    "('request.jwt.claims'::text).current_setting",
    "(with w as (select word from secrets) select word from w)",
    "(with secrets as (select 'mine' as word) select word from secrets)",
)
# Statements of PL/pgSQL, where ``r`` is a variable.
STATEMENTS = (
    "r := {value};",
    "r := {value};",
    "select word into r from secrets;",
    "for r in select word from secrets loop exit; end loop;",
    "if {value} is null then r := {value}; end if;",
    "execute 'select word from secrets' into r;",
    "execute format('select %L', {value}) into r;",
    "execute 'select set_config(''app.left'', $1, false)' using {value};",
    "perform {value};",
    "begin r := {value}; exception when others then r := 'failed'; end;",
    "raise notice 'set app.left = %', r;",
    "select word into r from generate_series(1, 1) as loop, secrets;",
    "select word from generate_series(1, 1) into r cross join secrets;",
)
COMMENTS = ("", "", "", " ", "\n", "/**/", "/* , true) */", "/* /* */ ' */", "-- '\n", "/* immutable */")
KEYWORDS = (
    "select",
    "set_config",
    "current_setting",
    "from",
    "perform",
    "execute",
    "set",
    "secrets",
    "lower",
)
# And those that PostgreSQL refuses in a function that is not volatile, or may. A text may hide what it does.
OF_VOLATILE = (
    "execute 'set app.left = ' || quote_literal(coalesce({value}, ''));",
    "set local app.left = 'local';",
    "set app.left = 'session';",
    "set search_path = pg_catalog;",
    "listen left_channel;",
    "create temp table if not exists left_table (a text);",
    "set local role anon;",
    "execute 'select 1'\n';'\n'set app.left = 4';",
    "execute format('select 1 -- %L', e'\\n; set app.left = 5; --');",
    "execute format('select e''\\%L ; set app.left = 6; --''', 'v');",
    "listen nothing;",
    "perform set_config('search_path', 'PG_TEMP, public', true); create table if not exists left_too (a text);",
)


@define
class Writer:
    """Writes functions, each of which may call those after it."""

    random: Random
    count: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.count = self.random.randint(1, 4)

    def program(self) -> str:
        functions = [self.function(number) for number in reversed(range(self.count))]
        last = self.count - 1
        functions.insert(1, f"create view seen as select f{last}() as word; grant select on seen to public")
        if self.random.random() < 0.2:
            functions.append(f"revoke execute on function f{last}() from public")
            functions.append(f"grant execute on function f{last}() to authenticated")
        return ";\n".join(functions)

    def function(self, number: int) -> str:
        choice = self.random.choice
        volatility = choice(("immutable", "immutable", "stable", "volatile"))
        made = f"create function f{number}() returns text {volatility}"
        if self.random.random() < 0.5:
            value = self.value(number)
            body = choice(
                ("select {}", "with w as (select {} as x) select x from w", "select {} from lower('') as x")
            )
            return f"{made} language sql as {self.quoted(body.format(value))}"
        statements = (self.statement(number, volatility) for _ in range(self.random.randint(1, 3)))
        text = f"declare r text; begin {' '.join(statements)} return coalesce(r, {self.value(number)}); end"
        return f"{made} language plpgsql as {self.quoted(text)}"

    def statement(self, number: int, volatility: str) -> str:
        forms = STATEMENTS + OF_VOLATILE if volatility == "volatile" else STATEMENTS
        return self.filled(self.random.choice(forms), number, 2)

    def value(self, number: int, depth: int = 2) -> str:
        if depth == 0:
            return self.random.choice(VALUES[:10])
        return self.filled(self.random.choice(VALUES), number, depth)

    def filled(self, form: str, number: int, depth: int) -> str:
        if "seen" in form and number == self.count - 1:
            form = "'unseen'"  # the view shows this function
        while "{value}" in form:
            form = form.replace("{value}", self.value(number, depth - 1), 1)
        while "{call}" in form:
            form = form.replace("{call}", self.call(number), 1)
        for word in KEYWORDS:
            if self.random.random() < 0.1:
                form = form.replace(f"{word} ", f"{word.upper()}{self.random.choice(COMMENTS)} ")
                form = form.replace(f"{word}(", f"{word}{self.random.choice(COMMENTS)}(")
        return form

    def call(self, number: int) -> str:
        if number + 1 >= self.count:
            return "'nobody'"
        name = f"f{self.random.randrange(number + 1, self.count)}"
        form = self.random.choice(("{}()", 'public."{}"()', "{} ( )", "{}/* */()", "public . {}\n()"))
        return form.format(name)

    def quoted(self, text: str) -> str:
        return f"$body$ {text} $body$"


def claims(name: str) -> str:
    return json.dumps({"sub": name, "role": ROLES[name]})


def settings(name: str) -> tuple[tuple[str, str], ...]:
    return (
        ("search_path", "public"),
        ("request.jwt.claims", claims(name)),
        ("role", ROLES[name]),
    )


def on_a_fresh_connection(dsn: str, name: str) -> object:
    """What ``name`` sees there, or the SQLSTATE of an error."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        for setting in settings(name):
            cursor.execute("select set_config(%s, %s, true)", setting)
        try:
            cursor.execute(ASKED)
            return list(cursor.fetchall()[0])
        except psycopg2.Error as error:
            return error.pgcode


async def in_turn(dsn: str, trust: Trust, as_text: bool) -> list[object]:
    """What the callers of ``TURNS`` see, one after the other on one connection as far as it is kept."""
    pool = pool_on(dsn, 1)
    actor = Actor(pool, lambda: trust)

    async def ask(session: Session) -> object:
        try:
            if as_text:
                return list((await session.text(ASKED))[0])
            run = await session.run(Step(ASKED, (), session.preamble.role))
            return [None if value is None else bytes(value).decode() for value in run.rows[0]]
        except psycopg2.Error as error:
            return error.pgcode

    answers = []
    for name in TURNS:
        preamble = Preamble(settings(name), ROLES[name], trust=trust, has_no_path=True)
        answers.append(await actor.use(preamble, "", ask))
    await pool.close()
    return answers


@pytest.fixture(scope="module")
def cursor(module_database: str, services: Services) -> Iterator[psycopg2.extensions.cursor]:
    run_sql(module_database, TABLES)
    with closing(psycopg2.connect(module_database)) as connection:
        connection.autocommit = True
        with connection.cursor() as made:
            yield made


def written(cursor: psycopg2.extensions.cursor, number: int) -> tuple[str, Trust]:
    """Make the functions of this number. Returns their SQL, and the trust in them."""
    program = Writer(Random(SEED + number)).program()
    cursor.execute(
        "begin; drop view if exists seen;"
        + "".join(f"drop function if exists f{one}();" for one in range(4))
        + f"set local check_function_bodies = off; {program}; commit"
    )
    cursor.execute("begin; select set_config('search_path', '', true)")
    cursor.execute(QUERY, {"schemas": ["public"]})
    trust = trust_of(orjson.loads(cursor.fetchall()[0][0]), number + 1)
    cursor.execute("commit")
    return program, trust


@pytest_twisted.ensureDeferred
async def test_each_caller_sees_what_a_fresh_connection_shows(
    module_database: str, cursor: psycopg2.extensions.cursor
) -> None:
    clean = constant = told_apart = 0
    for number in range(PROGRAMS):
        program, trust = written(cursor, number)
        fresh = {name: on_a_fresh_connection(module_database, name) for name in ROLES}
        seen = await in_turn(module_database, trust, as_text=number % 2 == 0)
        assert seen == [fresh[name] for name in TURNS], f"{number}: {program}\n{trust}"
        clean += trust.clean
        constant += trust.has_constants and not trust.false_constants
        told_apart += fresh["ann"] != fresh["bob"]
    # Neither is everything harmless, nor taken for harmful.
    assert 5 < clean < PROGRAMS / 2
    assert constant > 2
    assert told_apart > PROGRAMS / 2


@pytest_twisted.ensureDeferred
async def test_without_the_check_callers_would_see_what_is_not_theirs(
    module_database: str, cursor: psycopg2.extensions.cursor
) -> None:
    """So the functions are such that a mistake of the check shows."""
    mixed = 0
    for number in range(PROGRAMS // 2):
        written(cursor, number)
        fresh = {name: on_a_fresh_connection(module_database, name) for name in ROLES}
        mixed += await in_turn(module_database, Trust(number + 1), as_text=False) != [
            fresh[name] for name in TURNS
        ]
    assert mixed > 5
