"""``project-service check`` with databases of the table API that somebody has added by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from project_service.settings.model import Store
from tests.live.cli.command_here import beside_the_reactor, commands_of
from tests.live.services import Services
from tests.live.storage.cli import config_file

Said = Callable[[str], list[str]]
ROLES = 'shop_anon, "Shop user", shop_service'


@pytest.fixture
def shop(services: Services, empty_database: str) -> Iterator[str]:
    """The DSN of a database with its own roles, of which the one that logs in is not yet a member."""
    services.admin("create role shop_login login noinherit password 'shop'")
    services.admin('create role shop_anon; create role "Shop user"; create role shop_service bypassrls')
    yield str(make_dsn(empty_database, user="shop_login", password="shop"))
    name = parse_dsn(empty_database)["dbname"]
    services.admin(f'drop database "{name}" with (force)')
    services.admin(f"drop role shop_login, {ROLES}")


@pytest.fixture
def said(database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    """What is said of the database prod/shop with these settings, after "ok" or "FAIL"."""

    def checked(settings: str) -> list[str]:
        config = config_file(database, store_settings, tmp_path)
        config.write_text(f"{config.read_text()}\n[stages.prod.databases.shop]\n{settings}")
        project = commands_of(monkeypatch, "--config", config)
        project("jwt-keys", "create")
        done = project("check", "--json")
        [part] = [one for one in done.json["parts"] if one["part"] == "tables of prod/shop"]
        assert part["ok"] or done.code == 1
        return ["ok" if part["ok"] else "FAIL", *str(part["message"]).split("\n  ")]

    return checked


FINE = ["ok", "its roles, schemas and functions are there"]
NAMED = 'anon_role = "shop_anon"\nauthenticated_role = "Shop user"\nservice_role = "shop_service"\n'


@beside_the_reactor
def test_roles_that_are_not_there_or_are_not_granted(services: Services, shop: str, said: Said) -> None:
    named = f'dsn = "{shop}"\n{NAMED}'
    assert said(named) == [
        "FAIL",
        "anon_role: shop_login may not become shop_anon; run grant shop_anon to shop_login",
        'authenticated_role: shop_login may not become "Shop user"; run grant "Shop user" to shop_login',
        "service_role: shop_login may not become shop_service; run grant shop_service to shop_login",
    ]
    services.admin("grant shop_anon, shop_service to shop_login")
    services.admin('grant "Shop user" to shop_login with inherit true, set false')
    assert said(named)[1:] == [
        'authenticated_role: shop_login may not become "Shop user"; run grant "Shop user" to shop_login'
    ]
    services.admin('grant "Shop user" to shop_login with set true')
    assert said(named) == FINE
    assert said(named.replace("shop_service", "nobody"))[1:] == ["service_role: there is no role nobody"]
    # With keys of its own nobody need be authenticated, and with an empty name there is no such caller.
    own = f'jwt_secret = "{"x" * 32}"\n{named}'
    for without in ("Shop user", "shop_anon", "shop_service"):
        fewer = own.replace(without, "nobody" if without == "Shop user" else "")
        assert said(fewer) == FINE


@beside_the_reactor
def test_the_usual_service_role_of_another_cluster(services: Services, shop: str, said: Said) -> None:
    services.admin("grant anon, authenticated, service_role to shop_login")
    assert said(f'dsn = "{shop}"') == FINE
    services.admin("alter role service_role nobypassrls")
    try:
        assert said(f'dsn = "{shop}"')[1:] == [
            "service_role: service_role does not bypass row-level security; "
            "run alter role service_role bypassrls"
        ]
        # That of the system database has a part of its own.
        assert said("") == FINE
    finally:
        services.admin("alter role service_role bypassrls")


@beside_the_reactor
def test_schemas_and_functions_that_are_not_there(
    services: Services, shop: str, empty_database: str, said: Said
) -> None:
    services.admin(f"grant {ROLES} to shop_login")
    with psycopg2.connect(empty_database) as connection:
        connection.cursor().execute(
            "create schema api; create schema v2; grant usage on schema api to shop_service; create schema tools;"
            "create function tools.counts(a int default 1) returns void language sql as '';"
            "create function tools.asks(a int) returns void language sql as '';"
            "create function api.described(a int) returns json language sql as 'select null::json'"
        )
    named = f'dsn = "{shop}"\n{NAMED}'
    absent = 'schemas = ["api", "v3"]\nextra_search_path = ["$user", "extensions", "tools"]'
    assert said(named + absent)[1:] == [
        "schemas: there is no schema v3",
        "extra_search_path: there is no schema extensions",
    ]
    closed = "schemas: none of shop_anon, Shop user, shop_service has usage on the schema v2"
    assert said(f'{named}schemas = ["api", "v2"]')[1:] == [closed]
    found = f'{named}schemas = ["api"]\nextra_search_path = ["tools"]\n'
    for fine in ("pre_request = 'counts'", "pre_request = 'tools.counts'", "root_spec = 'described'"):
        assert said(f"{found}{fine}") == FINE
    assert said(f"{found}root_spec = 'api.described'") == FINE
    assert said(f"{found}pre_request = 'asks'\nroot_spec = 'counts'")[1:] == [
        "pre_request: there is no function asks() in api, tools",
        "root_spec: there is no function counts in an exposed schema",
    ]
    assert said(f"{found}pre_request = 'public.counts'\nroot_spec = 'tools.counts'")[1:] == [
        "pre_request: there is no function counts() in public",
        "root_spec: there is no function tools.counts in an exposed schema",
    ]
