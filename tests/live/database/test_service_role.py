"""The roles of the table API on an operator's own PostgreSQL, whoever creates them and whoever owns what is
exposed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn

from project_service.auth import tokens
from project_service.database.migrate import definitions, expose, lacking, migrate, shipped
from project_service.embedded.assemble import Embedded
from project_service.lifecycle import start
from project_service.settings.model import Store
from tests.live.application import logged_at_start, settings_for
from tests.live.auth.service import reactor
from tests.live.cli.command_here import beside_the_reactor, commands_of
from tests.live.services import WithDatabase, wait
from tests.live.sql import connection_to, run_each
from tests.live.storage.cli import config_file
from tests.live.waiting import until

NO_BYPASS = (
    "service_role does not bypass row-level security: let a superuser run alter role service_role bypassrls"
)
REMEDY = "let a superuser, or who owns all of the schema, run select _project_service.expose_schema"
ROLES = "anon, authenticated, service_role"


@pytest.fixture(scope="module")
def cluster(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The administrator's DSN of a PostgreSQL for this module only."""
    embedded = Embedded(reactor, with_database(Path(tmp_path_factory.mktemp("service-role"))), store=False)
    running = wait(embedded.start)
    assert running.admin_dsn is not None
    yield running.admin_dsn
    wait(embedded.stop)


@pytest.fixture
def admin(cluster: str) -> Iterator[str]:
    """The administrator's DSN of a new database, owned by the role ``runs``. The roles of the table API do not
    exist."""
    run_each(cluster, "create role runs login noinherit createrole bypassrls password 'runs'")
    run_each(cluster, "create database own owner runs template template0")
    yield str(make_dsn(cluster, dbname="own"))
    run_each(cluster, "drop database own with (force)")
    run_each(cluster, f"drop role if exists {ROLES}, runs, hers")


async def migrated(admin: str, *schemas: str) -> list[str]:
    """Migrates as a start does, and returns what is lacking then."""
    connection = await connection_to(owners(admin))
    try:
        await migrate(connection, shipped(), afterwards=lambda locked: expose(locked, schemas))
        return await lacking(connection, schemas)
    finally:
        connection.close()


def owners(admin: str) -> str:
    return str(make_dsn(admin, user="runs", password="runs"))


@pytest_twisted.ensureDeferred
async def test_an_owner_who_may_create_roles_creates_them_as_documented(admin: str) -> None:
    assert await migrated(admin, "public") == []
    roles = "select rolname, rolcanlogin, rolinherit, rolbypassrls from pg_roles order by rolname"
    made = [row for row in run_each(admin, roles) if row[0] in ROLES.split(", ")]
    assert made == [
        ("anon", False, False, False),
        ("authenticated", False, False, False),
        ("service_role", False, False, True),
    ]
    for role, *_ in made:
        assert run_each(owners(admin), f"set role {role}", "select current_user::text") == [(role,)]


@pytest_twisted.ensureDeferred
async def test_an_owner_without_bypassrls_is_told_what_an_administrator_has_to_do(admin: str) -> None:
    run_each(admin, "alter role runs nobypassrls")
    assert await migrated(admin, "public") == [NO_BYPASS]
    # Without an exposed schema the role is not needed.
    assert await migrated(admin) == []
    run_each(admin, "alter role service_role bypassrls")
    assert await migrated(admin, "public") == []


@pytest_twisted.ensureDeferred
async def test_a_database_without_the_schema_public_is_migrated(admin: str) -> None:
    run_each(admin, "drop schema public")
    assert await migrated(admin, "public") == []


@pytest_twisted.ensureDeferred
async def test_a_role_created_at_the_same_moment_for_another_database_is_used(admin: str) -> None:
    with closing(psycopg2.connect(admin)) as other, other.cursor() as cursor:
        cursor.execute("create role anon nologin noinherit; grant anon to runs")
        migrating = start(migrated(admin, "public"))

        async def waiting() -> bool:
            return bool(run_each(admin, "select 1 from pg_locks where not granted"))

        await until(waiting)
        other.commit()
    assert await migrating == []


@pytest_twisted.ensureDeferred
async def test_roles_and_schemas_that_an_administrator_made_are_used_and_closed_to_callers(
    admin: str,
) -> None:
    run_each(admin, "create role anon login; create role authenticated; create role service_role bypassrls")
    run_each(admin, f"alter role runs nocreaterole nobypassrls; grant {ROLES} to runs")
    run_each(admin, "create schema auth authorization runs; create schema storage authorization runs")
    run_each(admin, "grant all on schema auth, storage to public")
    assert await migrated(admin, "public") == []
    assert run_each(admin, "select rolcanlogin from pg_roles where rolname = 'anon'") == [(True,)]
    rights = "has_schema_privilege('anon', s, 'usage'), has_schema_privilege('anon', s, 'create')"
    may = run_each(admin, f"select s, {rights} from unnest(array['auth', 'storage']) s order by s")
    # Policies on storage.objects are judged in the callers' roles, so these can name what is in the schema.
    assert may == [("auth", True, False), ("storage", True, False)]


@pytest_twisted.ensureDeferred
async def test_what_another_owner_exposes_is_reported_with_the_remedy(admin: str) -> None:
    run_each(
        admin,
        'create role hers; create schema hers authorization hers; create schema "it\'s" authorization runs',
    )
    run_each(admin, 'create table public."A" (a int)', 'create table "it\'s".t (a int)')
    # This extension revokes the rights to its views from everybody; it is not reported, as it is not made for
    # callers.
    run_each(admin, "create extension pg_buffercache schema public")
    exposed = ("public", "hers", "it's", "none")
    assert await migrated(admin, *exposed) == [
        f"service_role may not use the schema 'hers': {REMEDY}('hers')",
        f"service_role may not read \"it's\".t: {REMEDY}('it''s')",
        f"service_role may not read public.\"A\": {REMEDY}('public')",
    ]
    for schema in ("hers", "it''s", "public"):
        run_each(admin, f"select _project_service.expose_schema('{schema}')")
    assert await migrated(admin, *exposed) == []


@pytest_twisted.ensureDeferred
async def test_what_another_owner_exposes_does_not_prevent_the_rest(admin: str) -> None:
    run_each(admin, "create role hers", "grant create on schema public to hers")
    one_of_each = (
        "create table {0}_table (id int generated by default as identity)",
        "create view {0}_view as select 1 as a",
        "create materialized view {0}_kept as select 1 as a",
        "create sequence {0}_numbers",
        "create function {0}_function(n int default 1) returns int language sql return n",
        "revoke all on function {0}_function from public",
    )
    for owner in ("hers", "runs"):
        run_each(admin, f"set role {owner}", *(one.format(owner) for one in one_of_each))
    assert await migrated(admin, "public") == [
        f"service_role may not read public.hers_kept: {REMEDY}('public')"
    ]
    may = (
        "select relname from pg_class where relnamespace = 'public'::regnamespace and case relkind"
        " when 'S' then has_sequence_privilege('service_role', oid, 'usage')"
        " else has_table_privilege('service_role', oid, 'insert') end"
        " union all select proname from pg_proc where pronamespace = 'public'::regnamespace"
        " and has_function_privilege('service_role', oid, 'execute') order by 1"
    )
    names = ["function", "kept", "numbers", "table", "table_id_seq", "view"]
    assert run_each(admin, may) == [(f"runs_{name}",) for name in names]
    # What the owner creates later is open to service_role as well.
    run_each(admin, "set role runs", "create table public.runs_later (a int)")
    assert ("runs_later",) in run_each(admin, may)
    run_each(admin, "select _project_service.expose_schema('public')")
    assert len(run_each(admin, may)) == 2 * len(names) + 1
    assert await migrated(admin, "public") == []


@beside_the_reactor
def test_commands_report_missing_rights_of_service_role(
    admin: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_file(owners(admin), store_settings, tmp_path)
    config.write_text(f"{config.read_text()}\n[stages.dev.databases.main]\n")
    project = commands_of(monkeypatch, "--config", config)
    assert project("jwt-keys", "create").code == 0
    assert "ok    service_role: migrations come first\n" in project("check").out
    run_each(admin, "alter role runs nobypassrls")
    done = project("migrate", "--json")
    assert (done.code, done.err) == (0, f"project-service: {NO_BYPASS}\n")
    assert len(done.json["applied"]) == len(shipped()) + len(definitions().files)
    checked = project("check")
    wrong = [line for line in checked.out.splitlines() if line.startswith("FAIL")]
    assert (checked.code, wrong) == (1, [f"FAIL  service_role: {NO_BYPASS}"])
    run_each(admin, "alter role service_role bypassrls")
    checked = project("check")
    assert checked.code == 0
    assert "ok    service_role: has its rights in every schema that is exposed\n" in checked.out


@pytest_twisted.ensureDeferred
async def test_a_start_reports_missing_rights_of_service_role(
    admin: str, store_settings: Store, tmp_path: Path
) -> None:
    settings = settings_for(owners(admin), store_settings, tmp_path)
    assert settings.auth.jwt_keys_file is not None
    tokens.load_or_create_keys(Path(settings.auth.jwt_keys_file), settings.auth.jwt_algorithm)
    run_each(admin, "alter role runs nobypassrls")
    assert NO_BYPASS in (await logged_at_start(settings)).splitlines()
    run_each(admin, "alter role service_role bypassrls")
    assert "service_role" not in await logged_at_start(settings)
