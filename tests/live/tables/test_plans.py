"""Plans that PostgreSQL caches with a connection are not used for another caller.

They may hold the value of a function that is declared to be constant, and is not: it reads whom a request is for. And
they hold what the role that they were made for was allowed to call.
"""

from __future__ import annotations

import pytest
import pytest_twisted

from tests.live.tables.service import BASE, BEFORE_EACH, Tables, tables, until_answered
from tests.live.waiting import until

__all__ = ["tables"]

DATABASES = ("careful", "narrow", "led")

CAREFUL = BASE.replace("main", "careful")
LED = BASE.replace("main", "led")
NARROW = BASE.replace("main", "narrow")
SCHEMA = """
create function caller() returns uuid language sql immutable as 'select AUTH.UID()';
create function is_caller(owner uuid) returns boolean language plpgsql stable as
  $$ begin return owner = caller(); end $$;
create function whose(word text) returns setof uuid language plpgsql stable as
  $$ begin return query select caller() where word <> ''; end $$;
create table diary (owner uuid default auth.uid(), word text);
alter table diary enable row level security;
create policy entries on diary to authenticated using (owner = caller());
create table letters (owner uuid default auth.uid(), word text);
alter table letters enable row level security;
create policy entries on letters to authenticated using (is_caller(owner));
grant all on diary, letters to authenticated;
insert into diary select id, email from auth.users;
insert into letters table diary;
"""


@pytest.mark.parametrize("path", ("/diary?select=word", "/letters?select=word", "/rpc/whose?word=x"))
@pytest_twisted.ensureDeferred
async def test_each_caller_sees_his_own_identity(tables: Tables, path: str) -> None:
    """Also after so many executions that PostgreSQL no longer makes a new plan for each."""
    emails = [f"{number}-{path[1:4]}@example.test" for number in range(2)]
    tokens = [str((await tables.api.sign_up(email))["access_token"]) for email in emails]
    tables.sql(
        "drop table if exists diary, letters; drop function if exists caller, is_caller, whose" + ";" + SCHEMA
    )

    async def known() -> bool:
        return bool((await tables.request("GET", path, base=NARROW, token=tokens[0]))[0] == 200)

    await until(known)
    answers = []
    for _ in range(8):
        for token in tokens:
            status, _, body = await tables.request("GET", path, base=NARROW, token=token)
            assert status == 200, body
            answers.append(str(body))
    assert len(set(answers[::2])) == 1, answers
    assert len(set(answers[1::2])) == 1, answers
    assert answers[0] != answers[1]


@pytest_twisted.ensureDeferred
async def test_rights_are_those_of_the_role_set_by_the_pre_request_function(tables: Tables) -> None:
    """The right to call an inlined function is checked when the statement is planned."""
    tables.sql(
        "create function secret() returns text language sql immutable as $$ select 'x'::text $$;"
        "revoke execute on function secret from public; grant execute on function secret to authenticated;"
        "create view secrets with (security_invoker) as select id from authors where secret() = 'x';"
        "grant select on secrets to anon, authenticated;"
        "create or replace function before_each() returns void language plpgsql as $$ begin "
        "perform set_config('role', current_setting('request.headers')::json->>'x-role', true); end $$"
    )
    await until_answered(
        tables, "GET", "/secrets?limit=1", 200, base=LED, headers={"X-Role": "authenticated"}
    )
    seen = [
        (await tables.request("GET", "/secrets?limit=1", base=LED, headers={"X-Role": role}))[0]
        for role in ("authenticated", "anon") * 8
    ]
    tables.sql(
        BEFORE_EACH.replace("create", "create or replace") + "; drop view secrets; drop function secret"
    )
    assert seen == [200, 401] * 8


@pytest.mark.parametrize("function", ("asks", "computes", "counts", "fills"))
@pytest.mark.parametrize("base", (NARROW, CAREFUL))
@pytest_twisted.ensureDeferred
async def test_no_function_calls_for_one_role_what_only_another_may(
    tables: Tables, function: str, base: str
) -> None:
    """PL/pgSQL keeps the plans of a function's queries for all callers, with the functions that were inlined."""
    tables.sql(
        "drop function if exists hidden, hidden_rows, asks, computes, counts, fills;"
        "create function hidden() returns text language sql stable as $$ select 'x'::text $$;"
        "create function hidden_rows() returns setof authors language sql stable as 'table authors';"
        "revoke execute on function hidden, hidden_rows from public;"
        "grant execute on function hidden, hidden_rows to authenticated;"
        "create function asks() returns text language plpgsql stable as "
        "$$ declare found text; begin select hidden() into found; return found; end $$;"
        "create function computes() returns text language plpgsql stable as "
        "$$ begin return hidden() || ''; end $$;"
        "create function counts() returns bigint language plpgsql stable as "
        "$$ begin return (select count(*) from hidden_rows()); end $$;"
        # More than one piece, so it is streamed.
        "create function fills() returns setof text language plpgsql stable as "
        "$$ begin return query select repeat(hidden(), 100) from generate_series(1, 2000); end $$;"
    )
    path = f"/rpc/{function}"
    await until_answered(tables, "GET", path, 200, base=base, token=tables.token)
    seen = [
        (await tables.request("GET", path, base=base, token=token))[0]
        for token in (tables.token, None, None, tables.token, tables.token, None)
    ]
    assert seen == [200, 401, 401, 200, 200, 401]
