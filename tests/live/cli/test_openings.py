"""What ``check`` and ``sql --dir`` say of rows that are open by accident, and that the SQL which they print ends
that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve, frozen
from psycopg2.errors import InsufficientPrivilege, UndefinedObject

from project_service.cli import catalog
from project_service.cli.catalog import look
from project_service.cli.openings import PHRASE, Opening
from project_service.settings.model import Secret, StageDatabase, Store
from tests.live.cli.command_here import Command, beside_the_reactor, commands_of
from tests.live.cli.command_line import Ended
from tests.live.daemon import ROOT
from tests.live.service.documented import blocks
from tests.live.services import Services
from tests.live.sql import connection_to, run_each, run_sql
from tests.live.storage.cli import config_file

DOCS = ROOT / "docs"
IN_SHELL = re.compile(r"<<'SQL'\n(.*?)\nSQL$", re.DOTALL | re.MULTILINE)
MAIN = StageDatabase(schemas=("public", "api"), extra_search_path=("public", "tools"))
# ``notes`` has one row, which its policy shows to nobody. The schemas that are not exposed are open all the same.
BEFORE = """
set role project_service;
create schema api; create schema tools; create schema private;
grant usage on schema api, tools, private to public;
create table notes (id int, owner uuid);
alter table notes enable row level security;
create policy own on notes using (owner = auth.uid());
grant all on notes to anon, authenticated;
insert into notes values (1, gen_random_uuid());
"""


@frozen
class Case:
    """What is made, the opening that it is, and what a role can do until it is mended: read a row, or write one."""

    made: str
    opening: Opening
    role: str = "anon"
    does: str | None = None


def view(name: str, reads: str, to: str, whose: str = "its owner") -> tuple[str, str]:
    """The first two of an ``Opening``."""
    return (
        f"view public.{name}",
        f"opens {reads} to {to}, with the rights of {whose}, whom no policy concerns",
    )


OPEN = {
    "a table": Case(
        'create table "Every row" (a int, b int); insert into "Every row" values (1, 2);'
        'grant select, insert on "Every row" to anon, authenticated; grant delete on "Every row" to authenticated',
        Opening(
            'table public."Every row"',
            "has no row-level security: anon may select, insert; authenticated may select, insert, delete every row",
            'alter table public."Every row" enable row level security;',
        ),
        does='select 1 from "Every row"',
    ),
    "columns, through PUBLIC": Case(
        "create table api.t (a int, b int); insert into api.t values (1, 2);"
        "grant select (a), update (b) on api.t to public",
        Opening(
            "table api.t",
            "has no row-level security: anon, authenticated may select, update every row",
            "alter table api.t enable row level security;",
        ),
        does="select a from api.t",
    ),
    "a role that anon has": Case(
        "create table t as select 1 as a; grant select on t to readers",
        Opening(
            "table public.t",
            "has no row-level security: anon may select every row",
            "alter table public.t enable row level security;",
        ),
        does="select 1 from t",
    ),
    "a table behind a view of its reader": Case(
        "create table private.t as select 1 as a; grant select on private.t to anon;"
        "create view v with (security_invoker = on) as select * from private.t; grant select on v to anon",
        Opening(
            "table private.t",
            "has no row-level security: anon may select every row",
            "alter table private.t enable row level security;",
        ),
        does="select 1 from v",
    ),
    "a partitioned table": Case(
        "create table t (a int) partition by list (a); create table one partition of t for values in (1);"
        "insert into t values (1); grant select on t, one to anon",
        Opening(
            "table public.t",
            "has no row-level security: anon may select every row",
            "alter table public.t enable row level security;",
        ),
        does="select 1 from t",
    ),
    "a table of its reader": Case(
        "create table t as select 1 as a; alter table t enable row level security; reset role;"
        "alter table t owner to authenticated",
        Opening(
            "table public.t",
            "has policies, but not for its owner: authenticated may select, insert, update, delete every row",
            "alter table public.t enable row level security, force row level security;",
        ),
        role="authenticated",
        does="select 1 from t",
    ),
    "a foreign table": Case(
        "reset role; create foreign data wrapper nothing; create server s foreign data wrapper nothing;"
        "create foreign table f (a int) server s; grant select on f to anon, public",
        Opening(
            "foreign table public.f",
            "can have no policies: anon, authenticated may select every row",
            "revoke all on public.f from anon, public;",
        ),
        does="select 1 where has_table_privilege('f', 'select')",
    ),
    "a view": Case(
        "create view v as select id from notes; grant select on v to anon, authenticated",
        Opening(
            *view("v", "public.notes", "anon, authenticated"),
            "alter view public.v set (security_invoker = true);",
        ),
        does="select 1 from v",
    ),
    "a view to write through": Case(
        "create view v with (security_invoker = off) as select * from notes; grant insert on v to authenticated",
        Opening(
            *view("v", "public.notes", "authenticated"), "alter view public.v set (security_invoker = true);"
        ),
        role="authenticated",
        does="insert into v values (2)",
    ),
    "a view of the service's table": Case(
        "create view v as select count(email) from auth.users; grant select on v to anon",
        Opening(*view("v", "auth.users", "anon"), "alter view public.v set (security_invoker = true);"),
        does="select 1 from v",
    ),
    "views over a view": Case(
        "create view private.middle as select * from notes; grant select on private.middle to anon;"
        "create view inner_ with (security_invoker) as select * from private.middle; grant select on inner_ to anon;"
        f"comment on view inner_ is '{PHRASE}';"
        "create view v as select middle.id from private.middle, notes; grant select on v to anon",
        Opening(
            *view("v", "public.notes", "anon", "the owner of public.v, private.middle"),
            "alter view public.v set (security_invoker = true); "
            "alter view private.middle set (security_invoker = true);",
        ),
        does="select 1 from v",
    ),
    "a materialised view": Case(
        "create view private.v with (security_invoker) as select * from notes;"
        "create materialized view m as select count(*) from private.v; grant select on m to anon",
        Opening(
            "materialized view public.m",
            "opens public.notes to anon, with the rights of its owner, whom no policy concerns",
            "revoke all on public.m from anon;",
        ),
        does="select 1 from m",
    ),
    "a view over a materialised view": Case(
        "create materialized view private.m as select * from notes; grant select on private.m to anon;"
        "create view v with (security_invoker) as select * from private.m; grant select on v to anon",
        Opening(
            *view("v", "public.notes", "anon", "the owner of private.m"), "revoke all on public.v from anon;"
        ),
        does="select 1 from v",
    ),
    "a policy for inserts": Case(
        'create policy "any row" on notes for insert with check ((1 = 1)); revoke insert on notes from anon',
        Opening(
            'policy "any row" on public.notes',
            "says true where authenticated may insert",
            'drop policy "any row" on public.notes;',
        ),
        role="authenticated",
        does="insert into notes values (2)",
    ),
    "a policy for everything, to a role that anon has": Case(
        "create policy p on notes to readers using (true)",
        Opening(
            "policy p on public.notes",
            "says true where anon may insert, update, delete",
            "drop policy p on public.notes;",
        ),
        does="select 1 from notes",
    ),
    "a policy that says true of what an update makes": Case(
        "create policy p on notes for update using (id = 1) with check (true);"
        "create policy q on notes as restrictive for insert with check (true)",
        Opening(
            "policy p on public.notes",
            "says true where anon, authenticated may update",
            "drop policy p on public.notes;",
        ),
        does="update notes set owner = null returning 1",
    ),
    "a policy for objects": Case(
        "create policy p on storage.objects for delete to authenticated using (true)",
        Opening(
            "policy p on storage.objects",
            "says true where authenticated may delete",
            "drop policy p on storage.objects;",
        ),
    ),
    "a function": Case(
        "create function api.f(a int, b text[]) returns int security definer language sql as 'select 1';"
        "revoke execute on function api.f from public; grant execute on function api.f to authenticated",
        Opening(
            "function api.f(integer,text[])",
            "has the rights of its owner and the search path of its callers: authenticated",
            "alter function api.f(integer,text[]) set search_path = api, public, tools, pg_temp;",
        ),
    ),
    "a function of the search path": Case(
        "create function tools.f(notes) returns int security definer language sql set work_mem = '8MB' as 'select 1'",
        Opening(
            "function tools.f(public.notes)",
            "has the rights of its owner and the search path of its callers: anon, authenticated",
            "alter function tools.f(public.notes) set search_path = tools, public, pg_temp;",
        ),
    ),
    "a role": Case(
        "reset role; alter role anon bypassrls",
        Opening("role anon", "is concerned by no policy", "alter role anon nosuperuser nobypassrls;"),
        does="select 1 from notes",
    ),
}
CLOSED = {
    "a table that nobody may use": "create table t (); grant truncate, references, trigger on t to anon;"
    "grant all on t to service_role",
    "a table in a schema that is not exposed": "create table private.t (); grant select on private.t to anon;"
    "create view v as select * from private.t; grant select on v to anon",
    "a table in a schema that nobody may use": "create table api.t (); grant select on api.t to anon;"
    "revoke usage on schema api from public",
    "a partition, which no request can name": "create table t (a int) partition by list (a);"
    "create table one partition of t for values in (1); grant select on one to anon",
    "a view with the rights of its reader": "create view v with (security_invoker = 1) as select * from notes;"
    "create view w as select * from v; grant select on v, w to anon",
    "a view that its reader cannot look through": "create view private.v as select * from notes;"
    "create view w with (security_invoker) as select * from private.v; grant select on w to anon",
    "a view whose owner the policies concern": "reset role; create view v as select * from notes;"
    "alter view v owner to readers; grant select on notes to readers; grant select on v to anon",
    "a view whose owner forces them on itself": "reset role; alter table notes force row level security;"
    "create view v as select * from notes; grant select on v to anon;"
    "create materialized view m as select * from notes; grant select on m to anon;"
    "alter table notes owner to readers; alter view v owner to readers; alter materialized view m owner to readers",
    "a view that nobody may use": "create view v as select * from notes",
    "policies that only read, or say who": "create policy r on notes for select using (true);"
    "create policy a on notes for insert with check (owner = auth.uid());"
    "create policy s on notes to service_role using (true)",
    "a policy for what nobody may do": "create policy p on notes for delete using (true);"
    "revoke delete on notes from anon, authenticated",
    "a policy that another one restricts": "create policy p on notes using (true);"
    "create policy q on notes as restrictive using (owner = auth.uid())",
    "functions": "create function a() returns int security definer language sql set search_path = '' as 'select 1';"
    "create function b() returns int language sql as 'select 1';"
    "create function c() returns trigger security definer language plpgsql as 'begin return new; end';"
    "create function d() returns int security definer language sql as 'select 1';"
    "revoke execute on function d from public; grant execute on function d to service_role;"
    "create function private.e() returns int security definer language sql as 'select 1'",
    "what an extension has made": "create table t (); grant select on t to anon;"
    "create function f() returns int security definer language sql as 'select 1'; reset role;"
    "alter extension plpgsql add table t; alter extension plpgsql add function f()",
}


@pytest.fixture(scope="module", autouse=True)
def readers(services: Services) -> Iterator[None]:
    """A role whose rights ``anon`` has, and ``authenticated`` has not."""
    services.admin(
        "create role readers; grant readers to anon with inherit true;"
        "grant readers to authenticated with inherit false"
    )
    yield
    services.admin("drop role readers")


@pytest.fixture
def superuser(services: Services, database: str) -> Iterator[str]:
    """The superuser's DSN of a database, in which roles are as they were afterwards."""
    yield services.admin_dsn(database)
    services.admin("alter role anon nobypassrls")


async def found(dsn: str, *before: str, database: StageDatabase = MAIN) -> list[Opening]:
    """What is open after these statements, which are undone."""
    connection = await connection_to(dsn)
    try:
        await connection.query("begin; reset search_path")
        for statement in before:
            await connection.query(statement)
        return await look(connection, [database, database])
    finally:
        connection.close()


def can(dsn: str, case: Case) -> bool:
    """Whether the role can do it. Nothing is changed."""
    assert case.does is not None
    try:
        rows = run_each(dsn, "begin", f"set local role {case.role}", case.does)
    except InsufficientPrivilege:
        return False
    return bool(rows) or case.does.startswith("insert")


@pytest.mark.parametrize("name", OPEN)
@pytest_twisted.ensureDeferred
async def test_what_is_open_is_named_until_it_is_mended_or_meant(name: str, superuser: str) -> None:
    case = OPEN[name]
    run_sql(superuser, f"{BEFORE}{case.made}")
    assert await found(superuser) == [case.opening]
    for comment in (PHRASE, f"The catalogue; {PHRASE.capitalize()}."):
        assert await found(superuser, f"comment on {case.opening.shown} is '{comment}'") == []
    assert await found(superuser, f"comment on {case.opening.shown} is 'open'") == [case.opening]
    assert case.does is None or can(superuser, case)
    run_sql(superuser, case.opening.mend)
    assert await found(superuser) == []
    assert case.does is None or not can(superuser, case)


@pytest.mark.parametrize("name", CLOSED)
@pytest_twisted.ensureDeferred
async def test_what_only_looks_open_is_not_named(name: str, superuser: str) -> None:
    run_sql(superuser, f"{BEFORE}{CLOSED[name]}")
    assert await found(superuser) == []


@pytest_twisted.ensureDeferred
async def test_whose_rights_count(services: Services, database: str) -> None:
    """Those of the roles that the database names and, with keys of its own, of all that its tokens may name."""
    run_sql(
        database,
        "create table t (); grant select on t to readers; create table u (); grant select on u to authenticated",
    )

    async def named(**settings: Any) -> dict[str, str]:
        openings = await found(database, database=evolve(MAIN, **settings))
        return {one.shown: one.why.split()[4] for one in openings}

    own: dict[str, Any] = {"dsn": Secret(database), "jwt_secret": Secret("x" * 32)}
    assert await named() == {"table public.t": "anon", "table public.u": "authenticated"}
    assert await named(anon_role="", authenticated_role="service_role") == {}
    assert await named(anon_role="readers", authenticated_role="nobody") == {"table public.t": "readers"}
    assert await named(service_role="anon") == {"table public.u": "authenticated"}
    services.admin("create role project_reporting; grant project_reporting to project_service")
    try:
        run_sql(database, "create table v (); grant select on v to project_reporting")
        assert "table public.v" not in await named()
        assert (await named(**own))["table public.v"] == "project_reporting"
        services.admin("alter role project_reporting bypassrls")
        assert set(await named(**own)) & {"table public.v", "role project_reporting"} == set()
    finally:
        run_sql(database, "drop table v")
        services.admin("drop role project_reporting")


@pytest.fixture
def project(database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    config = config_file(database, store_settings, tmp_path)
    config.write_text(f"{config.read_text()}\n[stages.dev.databases.main]\n[stages.prod.databases.main]\n")
    made = commands_of(monkeypatch, "--config", config)
    made("jwt-keys", "create")
    return made


NOTES = "create table notes (id int, text text); grant select on notes to anon;"
WARNING = (
    "this may be open by accident:\n"
    "  table public.notes has no row-level security: anon may select every row\n"
    "      alter table public.notes enable row level security;\n"
    "  where that is intended, its comment has to say so: comment on table public.notes is 'open on purpose';\n"
)


@beside_the_reactor
def test_check_warns_and_does_not_fail(project: Command, database: str) -> None:
    fine = "ok    rights: no rows are open past row-level security, unless on purpose\n"
    before = project("check")
    assert (before.code, fine in before.out) == (0, True)
    run_sql(database, NOTES)
    warned = project("check")
    assert (warned.code, f"WARN  rights: {WARNING}" in warned.out) == (0, True)
    shown = project("check", "--json").json
    assert shown["ok"]
    assert [one["part"] for one in shown["parts"] if one["warning"]] == ["rights"]
    run_sql(database, re.findall("^      (.*;)$", warned.out, re.MULTILINE)[0])
    assert fine in project("check").out


@beside_the_reactor
def test_check_looks_into_each_database_of_the_table_api(
    project: Command, database: str, empty_database: str, tmp_path: Path
) -> None:
    run_sql(
        empty_database,
        f"{NOTES} create schema auth; create table auth.t ();"
        "create view v as select from auth.t; grant select on v to anon",
    )
    config = tmp_path / "service.toml"
    config.write_text(f"{config.read_text()}\n[stages.prod.databases.other]\ndsn = '{empty_database}'")
    parts = {one["part"]: one for one in project("check", "--json").json["parts"]}
    assert not parts["rights"]["warning"]
    # Only in the system database the schema auth is the service's.
    assert parts["rights of prod/other"]["message"] == WARNING.strip()
    # Without a table API there are policies for objects all the same.
    config.write_text(config.read_text().split("[stages")[0])
    run_sql(database, f"{NOTES} create policy p on storage.objects for insert with check (true)")
    (rights,) = (one for one in project("check", "--json").json["parts"] if one["part"] == "rights")
    assert "policy p on storage.objects" in rights["message"]
    assert "notes" not in rights["message"]


@beside_the_reactor
def test_files_are_applied_and_what_they_open_is_a_warning(
    project: Command, database: str, tmp_path: Path
) -> None:
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "1_notes.sql").write_text(f"{NOTES} set role anon")
    warning = f"project-service: warning: {WARNING}"
    tried = project("sql", "--dir", str(folder), "--dry-run")
    assert tried == Ended(0, "would apply 1_notes.sql\n", warning)
    assert run_sql(database, "select to_regclass('notes')") == [(None,)]
    assert project("sql", "--dir", str(folder), "--status").err == ""
    assert project("sql", "--dir", str(folder)) == Ended(0, "applied 1_notes.sql\n", warning)
    again = project("sql", "--dir", str(folder), "--json")
    assert (again.code, again.json, again.err) == (0, [], warning)
    (folder / "2_meant.sql").write_text("comment on table notes is 'Open on purpose'")
    for more in (("--dry-run",), ()):
        assert project("sql", "--dir", str(folder), *more).err == ""


@beside_the_reactor
def test_files_are_applied_also_if_nobody_can_say_what_they_open(
    project: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "1_notes.sql").write_text(NOTES)
    monkeypatch.setattr(catalog, "_CATALOG", "select pg_terminate_backend(pg_backend_pid())")
    unknown = "project-service: warning: whether anything is open by accident is not known: "
    for statement in ("select nothing", "select pg_terminate_backend(pg_backend_pid())"):
        monkeypatch.setattr(catalog, "_CATALOG", statement)
        (folder / "1_notes.sql").write_text(NOTES)
        done = project("sql", "--dir", str(folder))
        assert (done.code, done.err.startswith(unknown)) == (0, True)
    (folder / "2_more.sql").write_text("create table more ()")
    monkeypatch.setattr(catalog, "_CATALOG", "select nothing")
    tried = project("sql", "--dir", str(folder), "--dry-run")
    assert (tried.code, tried.out) == (0, "would apply 2_more.sql\n")
    assert tried.err.startswith(unknown)


@pytest_twisted.ensureDeferred
async def test_no_example_of_the_documentation_is_open_by_accident(database: str) -> None:
    pages = ["../README.rst", *(str(one.relative_to(DOCS)) for one in sorted(DOCS.rglob("*.rst")))]
    examples = [
        (page, example)
        for page in pages
        for block in blocks(page)
        for example in ([block.text] if block.language == "sql" else IN_SHELL.findall(block.text))
        if "create table" in example and "grant " in example
    ]
    assert {"../README.rst", "tables.rst", "schema.rst", "howto/teams.rst"} < {page for page, _ in examples}
    for page, example in examples:
        try:
            assert await found(database, example, database=StageDatabase()) == [], page
        except UndefinedObject as fault:
            assert 'type "vector" does not exist' in str(fault), page
