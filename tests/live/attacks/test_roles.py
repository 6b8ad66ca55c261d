"""Roles and functions of the table API under attack."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn

from project_service.embedded.assemble import Embedded
from project_service.settings.model import Store
from tests.live.application import NOTES, serving, settings_for, use_every_part
from tests.live.cli.command_line import cli
from tests.live.services import WithDatabase, wait
from tests.live.sql import run_each

DOCS = Path(__file__).parents[3] / "docs" / "operations.rst"


def block(name: str) -> list[str]:
    """The statements in a named code block of the documentation."""
    found = re.search(
        rf"\.\. code-block:: sql\n   :name: {name}\n\n((?:   .*\n|\n)+)", DOCS.read_text("utf-8")
    )
    assert found is not None, name
    text = re.sub(r"--.*", "", found[1])
    return [statement for statement in (part.strip() for part in text.split(";")) if statement]


@pytest.fixture(scope="module")
def cluster(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The administrator's DSN of a new PostgreSQL."""
    from twisted.internet import reactor

    embedded = Embedded(reactor, with_database(Path(tmp_path_factory.mktemp("roles"))), store=False)
    running = wait(embedded.start)
    assert running.admin_dsn is not None
    run_each(running.admin_dsn, "drop database project", "drop role project_service")
    yield running.admin_dsn
    wait(embedded.stop)


def login(admin: str, role: str) -> str:
    """The DSN for one of the documented roles, whose password the documentation leaves open."""
    password = secrets.token_hex()
    run_each(admin, f"alter role {role} password '{password}'")
    return str(make_dsn(admin, user=role, password=password, dbname="project"))


@pytest_twisted.ensureDeferred
async def test_the_documented_roles_suffice(cluster: str, store_settings: Store, tmp_path: Path) -> None:
    run_each(cluster, *block("roles"))
    owner = login(cluster, "project_service")
    config = tmp_path / "c.toml"
    assert store_settings.secret_access_key is not None
    config.write_text(
        f'[database]\ndsn = "{owner}"\n[store]\nendpoint_url = "{store_settings.endpoint_url}"\n'
        f'access_key_id = "{store_settings.access_key_id}"\n'
        f'secret_access_key = "{store_settings.secret_access_key.reveal()}"\n'
        f'[auth]\njwt_keys_file = "{tmp_path / "jwt-keys.json"}"\n'
    )
    done = cli("migrate", "--config", config)
    assert (done.code, done.err) == (0, ""), done
    run_each(owner, NOTES)
    limits = "rolsuper, rolcreatedb, rolcreaterole, rolbypassrls, rolreplication, rolinherit"
    roles = "where rolname in ('project_service', 'project_runtime')"
    async with serving(settings_for(owner, store_settings, tmp_path)) as api:
        await use_every_part(api, "one")

    run_each(cluster, *block("runtime-role"))
    run_each(owner, *block("runtime-grants"))
    runtime = login(cluster, "project_runtime")
    assert run_each(cluster, f"select distinct {limits} from pg_roles {roles}") == [(False,) * 6]
    config.write_text(config.read_text().replace(owner, runtime))
    # Every start migrates, and here there is nothing to do.
    done = cli("migrate", "--config", config)
    assert (done.code, done.err) == (0, ""), done
    for role in (owner, runtime):
        assert run_each(role, "show log_min_error_statement") == [("panic",)]
    async with serving(settings_for(runtime, store_settings, tmp_path)) as api:
        await use_every_part(api, "two")
    for forbidden in (
        "create table auth.mine (a int)",
        "create or replace function auth.uid() returns uuid language sql return null::uuid",
        "drop table notes",
        "delete from _project_service.migrations",
        "create role another",
        "create database another",
        "alter role service_role login",
        "copy auth.users to '/tmp/users'",
    ):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            run_each(runtime, forbidden)


@pytest_twisted.ensureDeferred
async def test_the_api_roles_cannot_read_the_services_tables(database: str) -> None:
    tables = "from pg_class where relkind in ('r', 'v') and relnamespace = any(%s::regnamespace[])"
    service = "array['auth', 'storage', '_project_service']"
    assert run_each(database, f"select count(*) > 10 {tables % service}") == [(True,)]
    for role in ("anon", "authenticated", "service_role"):
        for right in ("select", "insert", "update", "delete", "truncate"):
            may = f"select relname {tables % service} and has_table_privilege('{role}', oid, '{right}')"
            # Row-level security lets them see and change no row but through the service.
            judged = role != "service_role" and right != "truncate"
            tables_of_policies = [("buckets",), ("objects",)] if judged else []
            assert sorted(run_each(database, may)) == tables_of_policies, (role, right)
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            run_each(database, f"set role {role}", "select password_hash from auth.users")


def test_the_api_roles_may_call_only_the_documented_functions(database: str) -> None:
    """A new function may be called by everybody unless that is revoked."""
    found = run_each(
        database,
        "select distinct p.proname from pg_proc p, unnest(array['anon', 'authenticated', 'service_role']) r"
        " where p.pronamespace in ('auth'::regnamespace, 'storage'::regnamespace)"
        " and p.prorettype <> 'trigger'::regtype and has_function_privilege(r, p.oid, 'execute')",
    )
    assert {name for (name,) in found} == {
        *("jwt", "uid", "role", "email"),
        *("folder", "foldername", "filename", "extension", "pass", "through_the_service"),
    }


# Each fits the service's calls better than PostgreSQL's own function, whose arguments may be of any type.
TRAPS = """
create table public.caught (what text);
create function public.caught_one(what text) returns void language sql as 'insert into public.caught values (what)';
create function public.keep(a jsonb, b json) returns jsonb language plpgsql as
  $$ begin perform public.caught_one('json_agg'); return coalesce(a, '[]') || b::jsonb; end $$;
create function public.kept(a jsonb) returns json language sql as 'select a::json';
create aggregate public.json_agg(json) (sfunc = public.keep, stype = jsonb, finalfunc = public.kept);
create function public.array_remove(a timestamptz[], b timestamptz) returns timestamptz[] language plpgsql as
  $$ begin perform public.caught_one('array_remove'); return pg_catalog.array_remove(a, b); end $$;
create function public.concat_ws(s text, a int8, b int8, c int8, d numeric) returns text language plpgsql as
  $$ begin perform public.caught_one('concat_ws'); return pg_catalog.concat_ws(s, a, b, c, d); end $$;
create function public.cardinality(a text[]) returns int language plpgsql as
  $$ begin perform public.caught_one('cardinality'); return pg_catalog.cardinality(a); end $$
"""
# These calls show that the functions would be called if the search path led to them.
CALLS = """
select json_agg(to_json(1)), array_remove(array[now()], now()), concat_ws(':', 1::int8, 1::int8, 1::int8, 1.5),
  cardinality(array['a'])
"""


@pytest_twisted.ensureDeferred
async def test_the_service_does_not_call_functions_made_by_others(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    run_each(database, NOTES, TRAPS)
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        await use_every_part(api, "one")
        assert (await api.request("GET", "/storage/buckets/private/objects", key="service"))[0] == 200
        assert (await api.request("GET", "/dev/db/main/rest/not_there"))[0] == 404
    assert run_each(database, "select * from caught") == []
    run_each(database, CALLS)
    assert len(run_each(database, "select distinct what from caught")) == 4
