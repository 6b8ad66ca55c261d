"""What the text of a function shows: what it may leave on its session, whether it changes the role, what it reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.database.sql_facts import facts_of, settings_leave

# Language, body, and whether something may stay on the session.
SESSIONS = (
    ("sql", "select set_config('a.b', 'c', true)", False),
    ("sql", "select set_config('a.b', 'c', TRUE)", False),
    ("sql", "select set_config('a.b', 'c', false)", True),
    ("sql", "select set_config('a.b', 'c', 'true')", True),
    ("sql", "select set_config('a.b', 'c', \"true\")", True),
    ("sql", "select set_config('a.b', 'c', is_local)", True),
    ("sql", "select set_config('a.b', 'c', not true)", True),
    ("sql", "select set_config(/* x, true) */ 'a.b', 'c', false)", True),
    ("sql", "select set_config('a.b', 'c' /* , true) */, false)", True),
    ("sql", "select set_config('a.b', 'c', -- , true)\n false)", True),
    ("sql", "select set_config('a.b', 'c, true)', false)", True),
    ("sql", "select set_config('a.b', $$, true)$$, false)", True),
    ("sql", "select set_config(E'a.b\\', true)', 'c', false)", True),
    ("sql", "select SET_CONFIG('a.b', 'c', false)", True),
    ("sql", "select \"set_config\"('a.b', 'c', false)", True),
    ("sql", "select pg_catalog . set_config ('a.b', 'c', false)", True),
    ("sql", "select set_config(name => 'a.b', value => 'c', is_local => true)", True),
    ("sql", "select set_config(variadic array['a', 'b'], true)", True),
    ("sql", "select set_config('a.b', 'c', false), coalesce('x', 'y'), set_config('d.e', 'f', true)", True),
    ("sql", "select set_config('a.b', coalesce(current_setting('x.y', true), lower('d')), true)", False),
    ("sql", "select set_config('a.b', f(a, b, array[1, 2]), true)", False),
    ("sql", "select set_config('a.b', 'c', true), set_config('d.e', 'f', true)", False),
    ("sql", "select set_config('Standard_Conforming_Strings', 'off', true)", True),
    ("sql", "select set_config(a, 'b', true)", True),
    ("sql", "select set_config('search_path', 'public', true)", False),
    ("sql", "select set_config('search_path', a, true)", True),
    ("sql", "select set_config('search_path', 'pg_temp', true)", True),
    ("sql", "select 1 as set_config", False),
    ("sql", "set a.b = 1; select ''", True),
    ("sql", "SET LOCAL a.b = 1; select ''", False),
    ("sql", "set local standard_conforming_strings = off; select ''", True),
    ("sql", "set local search_path = pg_temp; select ''", True),
    ("sql", "update t set x = 1 returning x", False),
    ("sql", 'update only a."B" * as c set x = 1', False),
    ("sql", "update a.b c set x = 1", False),
    ("sql", "insert into t values (1) on conflict (x) do update set x = 1", False),
    ("sql", "insert into t values (1) on conflict do nothing", False),
    ("sql", "select t.set, t.reset, t.execute from t", False),
    ("sql", "select reset from t", False),
    ("sql", "select reset, discard, hold, temp, listen from t where listen = 'a'", False),
    ("sql", "reset all", True),
    ("sql", "RESET role", True),
    ("sql", "discard all", True),
    ("sql", "listen a", True),
    ("sql", 'listen "A"', True),
    ("sql", "deallocate all", False),
    ("sql", "prepare p as select 1", True),
    ("sql", "load 'x'", True),
    ("sql", "do $$ begin set a.b = 1; end $$", True),
    ("sql", "do language plpgsql $$ begin set a.b = 1; end $$", True),
    ("sql", "execute p", True),
    ("sql", "grant execute on function f to anon", False),
    ("sql", "create temp table t (a int)", True),
    ("sql", "create local temporary table t (a int)", True),
    ("sql", "create temporary view v as select 1", True),
    ("sql", "select 1 into temp t", True),
    ("sql", "create table pg_temp.t (a int)", True),
    ("sql", 'create table "pg_temp".t (a int)', True),
    ("sql", "create table if not exists t (a int)", False),
    (
        "sql",
        "create function f() returns text language sql as 'select set_config(''a'', ''b'', false)'",
        True,
    ),
    ("sql", "create or replace view v as select 1", True),
    ("sql", "declare c cursor with hold for select 1", True),
    ("sql", "select pg_advisory_lock(1)", True),
    ("sql", "select pg_try_advisory_lock_shared(1)", True),
    ("sql", "select pg_advisory_xact_lock(1)", False),
    ("sql", "select lastval()", True),
    ("sql", "select currval('s')", True),
    ("sql", "select nextval('s')", False),
    ("sql", "select query_to_xml('select 1', true, true, '')", True),
    ("sql", "set session characteristics as transaction isolation level serializable", True),
    ("sql", "set default_transaction_isolation = 'serializable'", True),
    ("sql", "select U&\"set_config\"('a', 'b', false)", True),
    ("sql", "select 'not closed", True),
    ("plpgsql", "begin\n  set local a.b = 1; return ''; end", False),
    ("plpgsql", "begin\n  set a.b = 1; return ''; end", True),
    ("plpgsql", "begin if true then set a.b = 1; end if; return ''; end", True),
    ("plpgsql", "begin if updated then set a.b = 1; end if; return ''; end", True),
    ("plpgsql", "begin for i in 1..2 loop set a.b = 1; end loop; return ''; end", True),
    ("plpgsql", "begin for r in select * from t for update loop set a.b = 1; end loop; end", True),
    ("plpgsql", "begin for r in select * from t for update nowait loop set a.b = 1; end loop; end", True),
    ("plpgsql", "begin for r in select * from t for no key update loop set a.b = 1; end loop; end", True),
    ("plpgsql", "begin <<l>> set a.b = 1; end", True),
    ("plpgsql", "begin update t\n set x = 1; return ''; end", False),
    ("plpgsql", "begin insert into t values (1) on conflict (x) do update set x = 1; return ''; end", False),
    ("plpgsql", "begin merge into t using u on true when matched then update set x = 1; end", False),
    ("plpgsql", "begin execute 'set a.b to 1'; return ''; end", True),
    ("plpgsql", "begin execute 'select 1; set a.b to 1'; return ''; end", True),
    ("plpgsql", "begin execute 'select /* ' || x || ' */ 1'; return ''; end", True),
    ("plpgsql", "begin execute said; return ''; end", True),
    ("plpgsql", "begin execute 'select ' || said; return ''; end", True),
    ("plpgsql", "begin execute E'\\x73et a.b to 1'; return ''; end", True),
    ("plpgsql", "begin execute format(said, 1); return ''; end", True),
    ("plpgsql", "begin execute format('select %s', said); return ''; end", True),
    ("plpgsql", "begin execute format('select 1') || said; return ''; end", True),
    ("plpgsql", "begin execute format('set a.b = %L', said); return ''; end", True),
    ("plpgsql", "begin execute format('select %I(1)', said); return ''; end", True),
    ("plpgsql", "begin execute format('%I a.b = 1', said); return ''; end", True),
    ("plpgsql", "begin execute format('create %I table t (a int)', said); return ''; end", True),
    ("plpgsql", "begin execute format('select 1 into %I t', said); return ''; end", True),
    ("plpgsql", "begin execute format('select %1$I.%2$I(1)', a, b); return ''; end", True),
    (
        "plpgsql",
        "begin execute format('select count(*) from %I where a = %L', x, y) into z; return z; end",
        False,
    ),
    (
        "plpgsql",
        "begin execute format('select count(*) from %1$I.%2$I where a = %%', x, y) into z; end",
        False,
    ),
    ("plpgsql", "begin execute format('insert into %I.%I (a, b) values ($1, $2)', x, y) using z; end", False),
    ("plpgsql", "begin execute format('create table if not exists %I (a int)', x); end", False),
    ("plpgsql", "begin execute format('update %I set %I = $1 where id = %L', x, y, z) using z; end", False),
    ("plpgsql", "begin execute format('delete from %I where id = %L', x, z); end", False),
    ("plpgsql", "begin execute 'select 1' into z using x; return z; end", False),
    ("plpgsql", "begin return query execute 'select 1'; end", False),
    ("plpgsql", "begin for r in execute 'select 1' loop return r.a; end loop; end", False),
    ("plpgsql", "begin -- hm\n -- x\n SET SESSION a.b = 1; return ''; end", True),
    ("plpgsql", "begin /* x */ set a.b = 1; return ''; end", True),
    ("plpgsql", "begin /* /* set */ set a.b = 1; */ return ''; end", False),
    ("plpgsql", "begin perform 1; reset all; return ''; end", True),
    ("plpgsql", "begin perform 1; discard all; return ''; end", True),
    ("plpgsql", "begin execute format('select set_config(%L, %L, %L)', 'a', 'b', 'c'); return ''; end", True),
    ("plpgsql", "begin perform set_config('response.status', '418', true); return ''; end", False),
    ("plpgsql", "begin perform set_config('response.status', '418',\n  true ); return ''; end", False),
    ("plpgsql", "begin set constraints all deferred; return ''; end", False),
    ("plpgsql", "begin set transaction read only; return ''; end", False),
    ("plpgsql", "begin set role anon; return ''; end", True),
    ("plpgsql", "begin -- set a.b = 1;\n raise notice 'set a.b = 1;'; end", False),
    ("plpython3u", "return 1", True),
    ("c", "set_config_by_name", True),
    ("internal", "set_config_by_name", True),
)

ROLES = (
    ("begin Set Role anon; end", True),
    ("begin set local  role anon; end", True),
    ("begin set /* x */ local role anon; end", True),
    ("begin set session role anon; end", True),
    ("begin set local session authorization anon; end", True),
    ("begin perform set_config ('role', 'anon', true); end", True),
    ("begin perform set_config ('ROLE', 'anon', true); end", True),
    ("begin perform set_config (a, 'anon', true); end", True),
    ("begin execute x; end", True),
    ("begin perform set_config('app.role', 'anon', true); end", False),
    ("begin update users set roles = 1; end", False),
    ("begin update users set role = 1; end", False),
)

# Language, body, and whether it depends on its arguments and on what it calls alone.
PURE = (
    ("sql", "select lower($1)", True),
    ("sql", "select $1 + 1", True),
    ("sql", "select a || b from (select 1 as a, 2 as b) x", True),
    ("sql", "select array_agg(x order by x) from unnest($1) x", True),
    ("sql", "select array_agg(x) from unnest($1) as t(x), generate_series(1, 2) y", True),
    ("sql", "select extract(year from $1)", True),
    (
        "sql",
        "select substring($1 from 2 for 3), trim(both ' ' from $1), overlay($1 placing 'a' from 2)",
        True,
    ),
    ("sql", "select $1 is distinct from $2, $1 is not distinct from $2", True),
    ("sql", "select (values (1))", True),
    ("sql", "with recursive x as (select 1) select (select 1)", True),
    ("sql", "select 'from secrets', $$ from secrets $$ -- from secrets\n /* from secrets */", True),
    ("sql", "select row(a, b), b.owner from (values (1, 2)) b(a, c)", True),
    ("sql", "select a from secrets", False),
    ("sql", 'select a from "Secrets"', False),
    ("sql", "select a from/**/secrets", False),
    ("sql", "select a from only secrets", False),
    ("sql", "select a from only (secrets)", False),
    ("sql", "select a from f(), secrets", False),
    ("sql", "select a from f() loop, secrets", False),
    ("sql", "select a from f() x join secrets on true", False),
    ("sql", "select a from f() x cross join lateral secrets", False),
    ("sql", "select a from (secrets cross join f() x)", False),
    ("sql", "select a from ((select 1) x cross join secrets)", False),
    ("sql", "select a from (select 1) x, other.secrets", False),
    ("sql", "select distinct from secrets", False),
    ("sql", "select substring((select a from secrets) from 2)", False),
    ("sql", "select extract(year from (select a from secrets))", False),
    ("sql", "select trim(a) from secrets", False),
    ("sql", "table secrets", False),
    ("sql", "select (table secrets)", False),
    ("sql", "with x as (table secrets) select 1", False),
    ("sql", "insert into t values (1)", False),
    ("sql", "select 1 from f() where exists (select from secrets)", False),
    ("sql", "select current_user", False),
    ("sql", "select User", False),
    ("sql", 'select "user" from (select 1) x("user")', True),
    ("sql", "select 'secrets'::regclass::int", False),
    ("sql", "select 'secrets'::\"regclass\"::int", False),
    ("sql", "select current_date", False),
    ("plpgsql", "begin return lower($1); end", True),
    ("plpgsql", "declare x text := 'a'; begin if x = $1 then return x; end if; return null; end", True),
    ("plpgsql", "begin for i in 1..3 loop x := x || i; end loop; return x; end", True),
    ("plpgsql", "begin for r in select * from secrets loop return r.a; end loop; end", False),
    ("plpgsql", "begin x := a from secrets; return x; end", False),
    ("plpgsql", "begin execute 'select a from secrets' into x; return x; end", False),
    ("plpgsql", "begin open c for select 1; fetch c into x; return x; end", False),
    ("plpgsql", "begin fetch c into x; return x; end", False),
    ("plpgsql", "begin perform from secrets; return 1; end", False),
    ("c", "anything", False),
)

LEAVING = (
    ("set", "a", ".", "b", "=", "1"),
    ("select", "set_config", "(", "'a'", ",", "'b'", ",", "false", ")"),
    ("select", "pg_advisory_lock", "(", "1", ")"),
    ("select", "st_findextent", "(", "'a'", ",", "'b'", ")"),
    ("listen", "a"),
    ("reset", "all"),
    ("create", "temp", "table", "t", "(", "a", "int", ")"),
)
SPACES = (
    *(
        " ",
        "\n",
        "\t",
        " -- , true)\n",
        "/* , true) */",
        " /* /* local */ */ ",
        "--/*\n",
        " /* ' */ ",
        " /* $$ */ ",
    ),
    " /*--*/ ",
)


class Bodies(TestCase):
    def test_what_may_stay_on_the_session(self) -> None:
        for language, body, leaves in SESSIONS:
            self.assertIs(facts_of(language, body).leaves, leaves, body)

    def test_what_changes_the_role(self) -> None:
        for body, changes in ROLES:
            self.assertIs(facts_of("plpgsql", body).sets_role, changes, body)

    def test_what_reads_more_than_its_arguments(self) -> None:
        for language, body, pure in PURE:
            self.assertIs(facts_of(language, body).pure, pure, body)

    def test_what_is_called_and_named(self) -> None:
        facts = facts_of("plpgsql", "begin return A.\"By Name\" (b.secret), 'c(' /* d( */; end")
        self.assertEqual(facts.calls, {"By Name"})
        self.assertLessEqual({"a", "By Name", "b", "secret"}, facts.names)

    def test_settings_of_a_function_that_change_what_its_text_means(self) -> None:
        for setting, leaves in (
            ("standard_conforming_strings=off", True),
            ("search_path=pg_temp, public", True),
            ("search_path=public, pg_temp", False),
            ('search_path=""', False),
            ("timezone=UTC", False),
        ):
            self.assertIs(settings_leave([setting]), leaves, setting)

    @given(st.text(max_size=60), st.sampled_from(("sql", "plpgsql")))
    def test_any_text_is_judged(self, text: str, language: str) -> None:
        facts_of(language, text)

    @given(st.data(), st.sampled_from(LEAVING), st.sampled_from(("sql", "plpgsql")))
    def test_neither_comments_nor_case_hide_a_statement(
        self, data: st.DataObject, statement: tuple[str, ...], language: str
    ) -> None:
        text = ""
        for token in ("select", "1", ";", *statement, ";"):
            written = "".join(data.draw(st.sampled_from((c, c.upper()))) for c in token)
            text += data.draw(st.sampled_from(SPACES)) + (token if token.startswith("'") else written)
        self.assertTrue(facts_of(language, text).leaves, text)
