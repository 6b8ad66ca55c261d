"""What ``/admin/databases`` says of real tables, and that what it says of rights is what PostgreSQL does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from attrs import evolve
from twisted.internet.defer import Deferred

from project_service.settings.model import Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open
from tests.live.sql import run_sql
from tests.live.waiting import until

SCHEMA = """
create type mood as enum ('fine', 'so-so');
create domain short as text check (length(value) < 10);
create table writers (id int primary key, name text not null);
comment on table writers is 'Who writes';
create table notes (
  id bigint generated always as identity primary key, owner uuid not null default auth.uid(),
  writer int references writers on delete cascade, title short not null unique, moods mood[], mood mood, body jsonb,
  length int generated always as (length(title::text)) stored, check (writer > 0));
comment on column notes.title is 'In short';
alter table notes enable row level security;
create policy own on notes to authenticated using (owner = (select auth.uid()));
create policy few on notes as restrictive for delete to public using (writer is null);
grant select (id, title), insert on notes to anon;
grant select, update on notes to authenticated;
grant all on notes to service_role;
create table closed (id int); alter table closed enable row level security, force row level security;
grant all on closed to service_role;
grant select on writers to public;
create view titles as select id, title from notes;
create view own_titles with (security_invoker = true) as select id, title from notes;
create table events (at date not null) partition by range (at);
create table events_old partition of events for values from ('2020-01-01') to ('2021-01-01');
insert into events select '2020-03-01' from generate_series(1, 500);
create function touched() returns trigger language plpgsql as $$ begin return new; end $$;
create trigger touch before update on notes for each row execute function touched();
create schema hidden; create table hidden.secret (id int);
analyze events;
"""
DATABASE = "/admin/databases/dev/main"


@pytest.fixture(scope="module")
def api(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    run_sql(module_database, SCHEMA)
    settings = settings_for(module_database, store_settings, Path(tmp_path_factory.mktemp("databases")))
    settings = evolve(settings, stages={"dev": Stage(databases={"main": StageDatabase(pool_size=2)})})
    with held_open(serving(settings)) as api:
        yield api


async def get(api: Api, path: str, expected: int = 200) -> Any:
    status, headers, body = await api.request("GET", path, key="service")
    assert status == expected, body
    assert headers.getRawHeaders("cache-control") == ["no-store"] or expected != 200
    return body


async def relation(api: Api, name: str) -> Any:
    return await get(api, f"{DATABASE}/relations/public/{name}")


async def test_databases_are_listed_with_their_schemas_and_roles(api: Api) -> None:
    (database,) = (await get(api, "/admin/databases"))["databases"]
    assert (database["stage"], database["name"], database["path"]) == ("dev", "main", "/dev/db/main/rest/")
    assert database["schemas"] == ["public"]
    assert database["roles"]["service"] == "service_role"


async def test_relations_are_listed_with_kind_size_and_security(api: Api) -> None:
    listed = await get(api, DATABASE)
    assert [schema["name"] for schema in listed["schemas"]] == ["public"]
    found = {each["name"]: each for each in listed["relations"]}
    assert sorted(found) == ["closed", "events", "notes", "own_titles", "titles", "writers"]
    assert found["writers"]["comment"] == "Who writes"
    assert found["writers"]["has_primary_key"] and not found["closed"]["has_primary_key"]
    assert [found[name]["row_level_security"] for name in ("writers", "notes", "closed", "titles")] == [
        "off",
        "on",
        "forced",
        None,
    ]
    events = found["events"]
    assert (events["kind"], events["rows"]) == ("partitioned table", 500)
    assert events["bytes"] > 8000
    assert (found["titles"]["kind"], found["titles"]["bytes"], found["titles"]["rows"]) == (
        "view",
        None,
        None,
    )


async def test_a_relation_is_told_with_columns_and_keys(api: Api) -> None:
    notes = await relation(api, "notes")
    columns = {each["name"]: each for each in notes["columns"]}
    assert list(columns) == ["id", "owner", "writer", "title", "moods", "mood", "body", "length"]
    assert columns["id"]["generated"] == "always" and not columns["id"]["settable"]
    assert not columns["length"]["settable"] and "length" in columns["length"]["generated"]
    assert columns["owner"]["default"] == "auth.uid()" and not columns["owner"]["nullable"]
    assert (columns["title"]["type"], columns["title"]["base_type"]) == ("public.short", "text")
    assert columns["title"]["comment"] == "In short"
    assert columns["mood"]["enum"] == columns["moods"]["enum"] == ["fine", "so-so"]
    assert columns["moods"]["array"] and not columns["mood"]["array"]
    assert columns["moods"]["base_type"] == "public.mood"
    assert notes["primary_key"] == ["id"]
    [reference] = notes["references"]
    assert reference == {
        "name": "notes_writer_fkey",
        "schema": "public",
        "relation": "writers",
        "columns": ["writer"],
        "referenced": ["id"],
        "on_delete": "cascade",
    }
    [back] = (await relation(api, "writers"))["referenced_by"]
    assert back == {**reference, "relation": "notes"}
    assert [(index["name"], index["unique"]) for index in notes["indexes"]] == [
        ("notes_pkey", True),
        ("notes_title_key", True),
    ]
    assert [trigger["name"] for trigger in notes["triggers"]] == ["touch"]
    assert notes["changes"] == ["insert", "update", "delete"]
    assert "writer > 0" in notes["checks"][0]["definition"]
    view = await relation(api, "titles")
    assert "SELECT" in view["definition"] and view["changes"] == ["insert", "update", "delete"]


async def test_grants_and_policies_are_told_and_what_they_amount_to(api: Api) -> None:
    notes = await relation(api, "notes")
    assert {"role": "anon", "privilege": "SELECT", "columns": ["id", "title"]} in notes["grants"]
    assert [(each["name"], each["command"], each["roles"]) for each in notes["policies"]] == [
        ("few", "DELETE", ["PUBLIC"]),
        ("own", "ALL", ["authenticated"]),
    ]
    said = {each["role"]: each["sentences"] for each in notes["rights"]["roles"]}
    assert said == {
        "anon": ["anon may not read or add a row: it has the grant, but no policy allows it."],
        "authenticated": ["authenticated may read and change rows where owner = auth.uid()."],
        "service_role": ["service_role may read, add, change and delete all rows."],
    }
    closed = await relation(api, "closed")
    assert closed["rights"]["summary"] == "No policy: nobody but service_role reaches a row."
    assert closed["rights"]["roles"][0]["sentences"] == ["anon may do nothing: it has no grant."]
    writers = await relation(api, "writers")
    assert writers["rights"]["roles"][0] == {"role": "anon", "sentences": ["anon may read all rows."]}
    assert "may use a column" in writers["rights"]["summary"]
    assert "of whoever asks" in (await relation(api, "own_titles"))["rights"]["summary"]
    assert "its policies apply" in (await relation(api, "titles"))["rights"]["summary"]


async def test_who_may_read_according_to_the_words_reads(api: Api) -> None:
    """Every table has a row, and whoever is signed in owns that of ``notes``."""
    owner = "00000000-0000-4000-8000-000000000001"
    run_sql(
        api.dsn,
        f"insert into writers values (1, 'one'); insert into closed values (1); "
        f"insert into notes (owner, title) values ('{owner}', 'mine')",
    )
    for name in ("notes", "closed", "writers", "titles", "own_titles"):
        for role in (await relation(api, name))["rights"]["roles"]:
            said = any(re.match(rf"{role['role']} may read\b", one) for one in role["sentences"])
            assert said == _reads(api.dsn, role["role"], name, owner), (name, role)


def _reads(dsn: str, role: str, name: str, user: str) -> bool:
    claims = f'{{"sub": "{user}", "role": "{role}"}}'
    try:
        rows = run_sql(
            dsn,
            f"select set_config('request.jwt.claims', '{claims}', false); set role {role}; select id from {name}",
        )
    except psycopg2.errors.InsufficientPrivilege:
        return False
    return bool(rows)


async def test_what_is_not_exposed_is_not_there(api: Api) -> None:
    for path, code in (
        ("/admin/databases/dev/other", "database_not_found"),
        ("/admin/databases/other/main/relations/public/notes", "database_not_found"),
        (f"{DATABASE}/relations/hidden/secret", "relation_not_found"),
        (f"{DATABASE}/relations/public/notes%00", "relation_not_found"),
        (f"{DATABASE}/relations/public/missing", "relation_not_found"),
    ):
        assert (await get(api, path, 404))["error"]["code"] == code


async def test_only_the_service_key_may_ask(api: Api) -> None:
    for path in ("/admin/databases", DATABASE, f"{DATABASE}/relations/public/notes"):
        status, _, body = await api.request("GET", path)
        assert (status, body["error"]["code"]) == (403, "service_key_required")


async def test_many_tables_are_listed_at_once_and_a_locked_one_is_not_waited_for(api: Api) -> None:
    run_sql(
        api.dsn,
        "do $$ begin for i in 1..1500 loop execute format('create table many_%s (id int primary key)', i); "
        "end loop; end $$",
    )
    locking = psycopg2.connect(api.dsn)
    try:
        locking.cursor().execute("lock table many_7 in access exclusive mode")
        listing = Deferred.fromCoroutine(get(api, DATABASE))
        # Whoever waited would wait until the lock goes, or for the statement timeout.
        waiting = "select count(*) from pg_locks where not granted"
        await until(lambda: listing.called or run_sql(api.dsn, waiting) != [(0,)])
        assert listing.called
        relations = {each["name"]: each for each in (await listing)["relations"]}
    finally:
        locking.close()
    assert len(relations) == 1506
    assert (relations["many_7"]["bytes"], relations["many_8"]["bytes"]) == (None, 8192)
