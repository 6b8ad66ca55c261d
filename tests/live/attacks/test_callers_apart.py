"""Two users in turn on connections that serve one caller after another: what the project's own SQL remembers, or
promises wrongly, must not show one of them what is the other's.

With one connection for each purpose, so that each request finds what the last one left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve, frozen

from project_service.settings.model import Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.sql import run_sql

ROUNDS = 20
ONE = {"pool_size": 1, "policy_pool_size": 1}
OBJECTS = "/storage/buckets/judged/objects"
RESUMABLE = "/storage/buckets/judged/resumable"
TUS = {"Tus-Resumable": "1.0.0"}

# Whose the request is, as a careless project finds it out: ``mine()``. A fresh connection answers rightly each time.
REMEMBERED = """
create function mine() returns text language plpgsql as $$
begin
  if coalesce(current_setting('app.me', true), '') = '' then
    {};
  end if;
  return current_setting('app.me', true);
end $$
"""
MINE = {
    "immutable": "create function mine() returns text language sql immutable as $$ select auth.uid()::text $$",
    "immutable, with a comment": """
create function mine() returns text language plpgsql immutable as $$
begin
  return current_setting /* 'stable' */ ( 'request.jwt.claims', true)::json ->> 'sub';
end $$
""",
    "immutable, of a table under row-level security": """
create table people (id text primary key default auth.uid()::text);
alter table people enable row level security;
create policy own on people to authenticated using (id = auth.uid()::text);
grant select, insert on people to authenticated;
create function remember() returns trigger language plpgsql security definer set search_path = '' as $$
begin
  insert into public.people values (new.id::text);
  return new;
end $$;
create trigger remember after insert on auth.users for each row execute function remember();
create function mine() returns text language sql immutable as $$ select id from public.people $$
""",
    "immutable, by another function": """
create function asked() returns text language sql stable as $$ select auth.uid()::text $$;
create function mine() returns text language sql immutable as $$ select public.asked() $$
""",
    "set for the session": REMEMBERED.format("perform set_config('app.me', auth.uid()::text, false)"),
    "set for the session, with a comment": REMEMBERED.format(
        "perform set_config('app.me', auth.uid()::text, /* true) or */ false)"
    ),
    "set for the session, as SQL that is put together": REMEMBERED.format(
        "execute 'set ' || 'app.me = ' || quote_literal(auth.uid())"
    ),
    "set for the session, by a literal that goes on": REMEMBERED.format(
        "execute 'select 1'\n';'\n'select set_config(''app.me'', auth.uid()::text, false)'"
    ),
    "immutable, in attribute notation": "create function mine() returns text language sql immutable as"
    " $$ select ('request.jwt.claims'::text).current_setting::json ->> 'sub' $$",
    "immutable, by an argument's default": """
create function given(me text default auth.uid()::text) returns text language sql immutable as $$ select me $$;
create function mine() returns text language sql immutable as $$ select public.given() $$
""",
}
POLICY = """
create policy own on storage.objects to authenticated using (owner::text = mine()) with check (owner::text = mine())
"""


@frozen
class User:
    api: Api
    name: str
    id: str
    token: str

    @property
    def key(self) -> str:
        return f"{self.name}.txt"

    async def request(self, method: str, path: str, **more: Any) -> tuple[int, Any, Any]:
        return await self.api.request(method, path, token=self.token, **more)

    async def status(self, method: str, path: str, **more: Any) -> int:
        return (await self.request(method, path, **more))[0]


async def sign_up(api: Api, name: str) -> User:
    session = await api.sign_up(f"{name}@example.test")
    return User(api, name, session["user"]["id"], session["access_token"])


@asynccontextmanager
async def two_users(
    database: str, store: Store, tmp_path: Path, sql: str = "select 1"
) -> AsyncIterator[tuple[Api, User, User]]:
    """A service on a database with this SQL, and two users of it."""
    run_sql(database, f"set check_function_bodies = off; {sql}")
    settings = settings_for(database, store, tmp_path, database=ONE)
    of_tables = StageDatabase(pool_size=1)
    async with serving(evolve(settings, stages={"dev": Stage({"main": of_tables})})) as api:
        made = {"name": "judged", "visibility": "private", "policies": True}
        assert (await api.request("POST", "/admin/buckets", key="service", json=made))[0] == 201
        yield api, await sign_up(api, "ann"), await sign_up(api, "bob")


@pytest.mark.parametrize("mine", MINE)
@pytest_twisted.ensureDeferred
async def test_policies_on_objects_are_judged_for_the_caller(
    database: str, store_settings: Store, tmp_path: Path, mine: str
) -> None:
    sql = f"{MINE[mine]}; {POLICY}"
    async with two_users(database, store_settings, tmp_path, sql) as (_, ann, bob):
        for user in (ann, bob):
            assert await user.status("PUT", f"{OBJECTS}/{user.key}", data=user.name.encode()) == 201
        for turn in range(ROUNDS):
            me, other = (ann, bob) if turn % 2 else (bob, ann)
            own, others = f"{OBJECTS}/{me.key}", f"{OBJECTS}/{other.key}"
            assert (await me.request("GET", own))[::2] == (200, me.name.encode())
            assert await me.status("GET", others) == 404
            listed = (await me.request("GET", OBJECTS))[2]["objects"]
            assert [one["key"] for one in listed] == [me.key]
            assert await me.status("PATCH", own, json={"metadata": {"turn": str(turn)}}) == 200
            assert await me.status("PATCH", others, json={"metadata": {"by": me.name}}) == 404
            assert await me.status("DELETE", others) == 404
            assert await me.status("PUT", others, data=b"taken") == 403
            assert await me.status("PUT", own, data=me.name.encode()) == 200
            moved = {"from": other.key, "to": f"stolen-{turn}"}
            assert await me.status("POST", "/storage/buckets/judged/move", json=moved) == 404
        assert run_sql(database, "select key, owner::text from storage.objects order by key") == [
            (ann.key, ann.id),
            (bob.key, bob.id),
        ]


@pytest.mark.parametrize("mine", MINE)
@pytest_twisted.ensureDeferred
async def test_links_and_uploads_in_parts_are_judged_for_whoever_made_them(
    database: str, store_settings: Store, tmp_path: Path, mine: str
) -> None:
    sql = f"{MINE[mine]}; {POLICY}"
    async with two_users(database, store_settings, tmp_path, sql) as (api, ann, bob):
        for user in (ann, bob):
            assert await user.status("PUT", f"{OBJECTS}/{user.key}", data=user.name.encode()) == 201
        for turn in range(ROUNDS):
            me, other = (ann, bob) if turn % 2 else (bob, ann)
            presign = "/storage/buckets/judged/presign"
            assert await me.status("POST", presign, json={"key": other.key}) == 404
            status, _, link = await other.request("POST", presign, json={"key": other.key})
            assert status == 200
            shown = await api.request("GET", link["url"].removeprefix(api.base_url), key=None)
            assert shown[::2] == (200, other.name.encode())
            assert await begun(me, other.key) == 403
            path = await begun(me, f"{me.name}-{turn}.txt")
            # In between somebody else asks.
            assert await other.status("GET", f"{OBJECTS}/{me.key}") == 404
            sent = {**TUS, "Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
            assert await me.status("PATCH", str(path), headers=sent, data=b"hello") == 204
        owners = run_sql(
            database, "select split_part(key, '-', 1), owner::text from storage.objects where key like '%-%'"
        )
        assert len(owners) == ROUNDS
        assert {*owners} == {("ann", ann.id), ("bob", bob.id)}


async def begun(user: User, key: str) -> str | int:
    """The path of an upload in parts; the status if it is refused."""
    from base64 import b64encode

    named = f"key {b64encode(key.encode()).decode()},filename {b64encode(key.encode()).decode()}"
    sent = {**TUS, "Upload-Length": "5", "Upload-Metadata": named}
    status, headers, _ = await user.request("POST", RESUMABLE, headers=sent)
    if status != 201:
        return status
    return str(headers.getRawHeaders("location")[0]).removeprefix(user.api.base_url)


# What a trigger of the project may leave behind.
LEFT = {
    "role": "set session role anon",
    "role, by set_config": "perform set_config('role', 'anon', /* , true) */ false)",
    "search_path": "set search_path = 'hidden'",
    "read only": "set session characteristics as transaction read only",
    "time": "set statement_timeout = '1ms'",
    "idle time": "set idle_session_timeout = '1ms'",
    "settings": "reset all",
    "statements": "deallocate all",
    "encoding": "set client_encoding = 'LATIN1'",
    "time zone": "set timezone = 'Asia/Tokyo'; set datestyle = 'German'",
    "nothing but a lost connection": "perform pg_terminate_backend(pg_backend_pid())",
}
TRIGGERS = """
create function left_behind() returns trigger language plpgsql as $$
begin
  if new.{column} like '%leave%' then
    {sql};
  end if;
  return new;
end $$;
create constraint trigger left_behind after insert on {table} deferrable initially deferred
  for each row execute function left_behind()
"""


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("table", ["auth.users", "storage.objects"])
@pytest_twisted.ensureDeferred
async def test_what_triggers_leave_behind_harms_nobody_else(
    database: str, store_settings: Store, tmp_path: Path, table: str, left: str
) -> None:
    column = {"auth.users": "email", "storage.objects": "key"}[table]
    sql = TRIGGERS.format(column=column, sql=LEFT[left], table=table)
    async with two_users(database, store_settings, tmp_path, sql) as (api, ann, bob):
        stored = "/storage/buckets/private/objects"
        assert await ann.status("PUT", f"{stored}/a.txt", data=b"kept") == 201
        for turn in range(ROUNDS):
            # What it leaves may be in the way of the very request that leaves it, but of no other.
            if table == "auth.users":
                made = {"email": f"leave-{turn}@example.test", "password": "a long enough one"}
                await api.request("POST", "/auth/signup", key=None, json=made)
            else:
                await ann.status("PUT", f"{stored}/leave-{turn}", data=b"x")
            entered = {"email": "bob@example.test", "password": "a long enough one"}
            status, _, session = await api.request("POST", "/auth/login", key=None, json=entered)
            assert status == 200, session
            assert (await bob.request("GET", "/auth/user"))[0] == 200
            assert (await ann.request("GET", f"{stored}/a.txt"))[::2] == (200, b"kept")
            assert await bob.status("PUT", f"{stored}/b-{turn}.txt", data=b"x") == 201


ROWS = """
create table papers (id text, owner text);
grant select, insert on papers to authenticated;
alter table papers enable row level security;
create policy own on papers to authenticated using (owner = mine()) with check (owner = mine());
create function whose() returns text language plpgsql stable as $$ begin return mine(); end $$
"""


@pytest.mark.parametrize("mine", MINE)
@pytest_twisted.ensureDeferred
async def test_rows_and_functions_of_the_table_api_are_the_callers(
    database: str, store_settings: Store, tmp_path: Path, mine: str
) -> None:
    base = "/dev/db/main/rest"
    async with two_users(database, store_settings, tmp_path, f"{MINE[mine]}; {ROWS}") as (_, ann, bob):
        for user in (ann, bob):
            paper = {"id": user.name, "owner": user.id}
            assert await user.status("POST", f"{base}/papers", json=paper) == 201
        for turn in range(ROUNDS):
            me, other = (ann, bob) if turn % 2 else (bob, ann)
            rows = (await me.request("GET", f"{base}/papers?select=id"))[2]
            assert rows == [{"id": me.name}]
            # PostgreSQL refuses SET and the like in it, which is not about callers.
            status, _, whose = await me.request("POST", f"{base}/rpc/whose")
            assert status >= 400 or whose == me.id
            assert await me.status("POST", f"{base}/papers", json={"id": "x", "owner": other.id}) == 403


CHECKED = """
create function mine() returns text language sql immutable as $$ select auth.uid()::text $$;
create function is_mine(text, text) returns boolean language sql immutable as $$ select public.mine() = $1 $$;
create operator === (function = is_mine, leftarg = text, rightarg = text);
create domain checked as text check ({check});
create function passes(id text) returns boolean language plpgsql as $$
begin
  perform id::checked;
  return true;
exception when check_violation then
  return false;
end $$
"""


@pytest.mark.parametrize("check", ["is_mine('{id}', 'x')", "'{id}' operator(public.===) 'x'"])
@pytest_twisted.ensureDeferred
async def test_what_a_domain_checks_is_of_the_caller(
    database: str, store_settings: Store, tmp_path: Path, check: str
) -> None:
    """PostgreSQL plans the checks of a domain once for the session."""
    async with two_users(database, store_settings, tmp_path) as (_, ann, bob):
        run_sql(database, CHECKED.format(check=check.format(id=ann.id)))
        for turn in range(ROUNDS):
            me = ann if turn % 2 == 0 else bob
            status, _, passes = await me.request("POST", "/dev/db/main/rest/rpc/passes", json={"id": "x"})
            assert (status, passes) == (200, me is ann), turn


MIDNIGHT = """
create function midnight() returns text language plpgsql stable as $$
begin
  return extract(epoch from timestamptz '2024-01-01 00:00')::int::text;
end $$
"""


@pytest_twisted.ensureDeferred
async def test_a_literal_of_a_time_is_read_in_the_callers_time_zone(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    """PL/pgSQL reads it when it first needs the statement, and keeps the value with the session."""
    async with two_users(database, store_settings, tmp_path, MIDNIGHT) as (_, ann, _bob):
        for turn in range(ROUNDS):
            zone, hours = (("UTC", 0), ("Asia/Tokyo", 9))[turn % 2]
            status, _, midnight = await ann.request(
                "POST", "/dev/db/main/rest/rpc/midnight", headers={"Prefer": f"timezone={zone}"}
            )
            assert (status, midnight) == (200, str(1704067200 - 3600 * hours)), turn
