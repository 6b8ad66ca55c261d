"""Functions that are declared to be constant and are not: they read whom a request is for, and plans are kept.

PostgreSQL writes the value of such a function into the plan that it keeps, for whoever comes next.
"""

from __future__ import annotations

import pytest
import pytest_twisted

from tests.live.tables_service import BASE, BEFORE_EACH, Tables, tables, until_answered
from tests.live.waiting import until

__all__ = ["tables"]

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
async def test_each_caller_is_told_of_himself(tables: Tables, path: str) -> None:
    """Also after more runs than PostgreSQL makes a plan for each of."""
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
async def test_rights_are_those_of_the_role_that_the_pre_request_function_sets(tables: Tables) -> None:
    """The right to a function is asked for when a statement is planned that the function is written into."""
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
