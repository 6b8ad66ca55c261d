"""``project-service check``: databases of the table API, stores and mail servers that cannot be used."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from aiosmtpd.smtp import AuthResult, LoginPassword
from attrs import evolve
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet.threads import deferToThread

from project_service.cli import check
from project_service.cli import ports as cli_ports
from project_service.settings.model import Secret, Store
from project_service.storage.s3.client import connect_store
from tests.certificates import issue
from tests.collector import collecting
from tests.live.auth.mail_server import mail_server
from tests.live.cli.command_here import beside_the_reactor, commands_of, on_reactor, reactor
from tests.live.cli.command_line import Ended
from tests.live.services import Services
from tests.live.sql import run_sql
from tests.live.storage.cli import config_file
from tests.temporary import free_port

Check = Callable[[str], list[str]]
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
def checked(database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """What the command reports about the database prod/shop with these settings, after "ok" or "FAIL"."""

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
def test_roles_that_are_not_there_or_are_not_granted(services: Services, shop: str, checked: Check) -> None:
    named = f'dsn = "{shop}"\n{NAMED}'
    assert checked(named) == [
        "FAIL",
        "anon_role: shop_login may not become shop_anon; run grant shop_anon to shop_login",
        'authenticated_role: shop_login may not become "Shop user"; run grant "Shop user" to shop_login',
        "service_role: shop_login may not become shop_service; run grant shop_service to shop_login",
    ]
    services.admin("grant shop_anon, shop_service to shop_login")
    services.admin('grant "Shop user" to shop_login with inherit true, set false')
    assert checked(named)[1:] == [
        'authenticated_role: shop_login may not become "Shop user"; run grant "Shop user" to shop_login'
    ]
    services.admin('grant "Shop user" to shop_login with set true')
    assert checked(named) == FINE
    assert checked(named.replace("shop_service", "nobody"))[1:] == ["service_role: there is no role nobody"]
    # With keys of its own nobody need be authenticated, and with an empty name there is no such caller.
    own = f'jwt_secret = "{"x" * 32}"\n{named}'
    for without in ("Shop user", "shop_anon", "shop_service"):
        fewer = own.replace(without, "nobody" if without == "Shop user" else "")
        assert checked(fewer) == FINE


@beside_the_reactor
def test_the_usual_service_role_of_another_cluster(services: Services, shop: str, checked: Check) -> None:
    services.admin("grant anon, authenticated, service_role to shop_login")
    assert checked(f'dsn = "{shop}"') == FINE
    services.admin("alter role service_role nobypassrls")
    try:
        assert checked(f'dsn = "{shop}"')[1:] == [
            "service_role: service_role does not bypass row-level security; "
            "run alter role service_role bypassrls"
        ]
        # That of the system database has a part of its own.
        assert checked("") == FINE
    finally:
        services.admin("alter role service_role bypassrls")


@beside_the_reactor
def test_schemas_and_functions_that_are_not_there(
    services: Services, shop: str, empty_database: str, checked: Check
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
    assert checked(named + absent)[1:] == [
        "schemas: there is no schema v3",
        "extra_search_path: there is no schema extensions",
    ]
    closed = "schemas: none of shop_anon, Shop user, shop_service has usage on the schema v2"
    assert checked(f'{named}schemas = ["api", "v2"]')[1:] == [closed]
    complete = f'{named}schemas = ["api"]\nextra_search_path = ["tools"]\n'
    for fine in ("pre_request = 'counts'", "pre_request = 'tools.counts'", "root_spec = 'described'"):
        assert checked(f"{complete}{fine}") == FINE
    assert checked(f"{complete}root_spec = 'api.described'") == FINE
    assert checked(f"{complete}pre_request = 'asks'\nroot_spec = 'counts'")[1:] == [
        "pre_request: there is no function asks() in api, tools",
        "root_spec: there is no function counts in an exposed schema",
    ]
    assert checked(f"{complete}pre_request = 'public.counts'\nroot_spec = 'tools.counts'")[1:] == [
        "pre_request: there is no function counts() in public",
        "root_spec: there is no function tools.counts in an exposed schema",
    ]


@beside_the_reactor
def test_why_a_store_cannot_be_used_is_reported(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response to HEAD, which says nothing, is not enough for that."""
    assert store_settings.endpoint_url is not None

    def checked(**changes: Any) -> list[str]:
        config = config_file(database, evolve(store_settings, **changes), tmp_path)
        lines = commands_of(monkeypatch, "--config", config)("check").out.splitlines()
        return [line for line in lines if " store: " in line]

    refused = f"FAIL  store: {store_settings.endpoint_url}: the store refuses: {{}} (HTTP 403)".format
    away = "FAIL  store: {}: the store cannot be reached: {}".format
    assert checked(secret_access_key=Secret("wrong")) == [refused("SignatureDoesNotMatch")]
    assert checked(access_key_id="nobody") == [refused("InvalidAccessKeyId")]
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert checked(endpoint_url=nowhere) == [away(nowhere, "no server listens there")]
    plain = store_settings.endpoint_url.replace("http:", "https:")
    assert checked(endpoint_url=plain) == [away(plain, "the server does not speak TLS")]


@beside_the_reactor
def test_what_a_start_refuses_is_refused_and_what_is_alike_is_one_line(
    store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_file("postgresql://me:hush@127.0.0.1:1/there", store_settings, tmp_path)
    folder = tmp_path / "none" / "s"
    with socket.socket() as taken, socket.create_server(("127.0.0.1", 0)) as answers_nothing:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        closed, silent = taken.getsockname()[1], answers_nothing.getsockname()[1]
        ports = [f"tcp:{port}:interface=127.0.0.1" for port in (closed, silent)]
        listen = json.dumps([*ports, f"unix:{folder}", f"unix:{tmp_path}/s"])
        text = config.read_text().replace('["tcp:0:interface=127.0.0.1"]', f"{listen}\nserver.workers = 32")
        config.write_text(text)
        monkeypatch.setattr(cli_ports, "ANSWER_SECONDS", 0.1)
        done = commands_of(monkeypatch, "--config", config)("check")
    assert done.code == 1
    lines = done.out.splitlines()
    server = "me@127.0.0.1:1/there: no server listens there"
    assert (
        f"FAIL  database, migrations, policies, rights, clock: the database cannot be reached: {server}"
        in lines
    )
    short = "server.workers is 32 and database.pool_size is 10: each worker needs a connection of its own"
    assert f"FAIL  workers: {short}" in lines
    for port in ports:
        assert f"FAIL  port {port}: cannot listen on {port}: Address already in use" in lines
    assert f"FAIL  port unix:{folder}: cannot listen on unix:{folder}: No such file or directory" in lines
    assert f"ok    port unix:{tmp_path}/s: can be opened" in lines
    assert "ok    tables: no table API is configured: [stages.STAGE.databases.NAME] makes one" in lines
    assert not (tmp_path / "s").exists()


@beside_the_reactor
def test_ports_are_those_that_the_environment_names(
    store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_file("postgresql://me:hush@127.0.0.1:1/there", store_settings, tmp_path)
    run = commands_of(monkeypatch, "--config", config)
    endpoint = f"tcp:{free_port()}:interface=127.0.0.1"
    for listen, expected in (
        (json.dumps([endpoint]), [f"ok    port {endpoint}: can be opened"]),
        # A start is refused, so there is nothing to say of the port of the file, or of the default one.
        (endpoint, []),
        ("[8080]", []),
    ):
        monkeypatch.setenv("PROJECT_SERVICE__SERVER__LISTEN", listen)
        lines = run("check").out.splitlines()
        assert [line for line in lines if " port tcp:" in line] == expected, listen
        assert any("server.listen" in line for line in lines) == (not expected)


@beside_the_reactor
def test_the_object_it_writes_as_a_test_is_removed(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind: list[object] = []

    async def left() -> None:
        store = connect_store(reactor, store_settings)
        left_behind.extend((await store.list()).objects)
        await store.close()

    checked = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path))("check")
    assert f"ok    store: bucket {store_settings.bucket} can be written and read\n" in checked.out
    on_reactor(left())
    assert left_behind == []


@pytest.mark.parametrize(
    ("off", "reuse", "message"),
    [
        *((-40, 0, "behind"), (40, 0, "ahead of"), (-20, 0, None), (20, 0, None)),
        *((-8, 10, "behind"), (8, 10, "ahead of"), (-3, 10, None), (3, 10, None)),
        *((40, 600, "ahead of"), (20, 600, None)),
    ],
)
@beside_the_reactor
def test_a_clock_that_differs_from_the_databases_is_reported(
    off: int,
    reuse: int,
    message: str | None,
    database: str,
    store_settings: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may differ by as much as a token may come from the future, or by half the time in which a refresh token
    may be repeated."""
    monkeypatch.setenv("PROJECT_SERVICE__AUTH__REFRESH_REUSE_SECONDS", str(reuse))
    monkeypatch.setattr(check, "time", SimpleNamespace(time=lambda: time.time() + off))
    config = config_file(database, store_settings, tmp_path)
    checked = commands_of(monkeypatch, "--config", config)("check", "--json")
    (clock,) = (one for one in checked.json["parts"] if one["part"] == "clock")
    assert clock["ok"] is (message is None)
    assert (message or "as") in clock["message"]


@beside_the_reactor
def test_policies_that_cannot_decide_are_reported(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path))

    def checked() -> tuple[bool, str]:
        (part,) = (one for one in project("check", "--json").json["parts"] if one["part"] == "policies")
        return part["ok"], part["message"]

    assert checked() == (True, "no bucket has the rule policies")
    run_sql(database, "alter table storage.buckets disable row level security")
    assert checked() == (
        False,
        "storage.buckets lacks row-level security, so users may change all buckets",
    )
    run_sql(database, "alter table storage.buckets enable row level security")
    for name in ("papers", "photos"):
        assert project("bucket", "create", name, "--policies").code == 0
    nobody = "storage.objects has none, so only the service key can use papers, photos"
    assert checked() == (True, nobody)
    run_sql(database, "create policy mine on storage.objects for select to service_role using (true)")
    assert checked() == (True, nobody)
    run_sql(database, "create policy own on storage.objects to authenticated using (owner = auth.uid())")
    assert checked() == (True, "decide in papers, photos")
    run_sql(database, "drop policy through_the_service on storage.objects")
    ok, message = checked()
    assert (ok, "lacks the policy through_the_service" in message) == (False, True)
    run_sql(database, "alter table storage.objects disable row level security")
    ok, message = checked()
    assert (ok, "lacks row-level security" in message) == (False, True)


PASSWORD = "hush-hush"
# What a real server says to another password, by the ways to log in that it offers.
REFUSED = (
    "PLAIN: 535 5.7.8 Authentication credentials invalid; LOGIN: 535 5.7.8 Authentication credentials invalid"
)


@pytest_twisted.ensureDeferred
async def test_the_command_names_the_mail_server_as_the_failing_part(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> Any:
        return AuthResult(success=data == LoginPassword(b"mailer", PASSWORD.encode()), handled=False)

    certificate, key = issue("localhost").written(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    insists: dict[str, Any] = {"require_starttls": True, "auth_required": True, "authenticator": authenticate}
    config = config_file(database, store_settings, tmp_path)
    servers = config.read_text()
    project = commands_of(monkeypatch, "--config", config)

    async def check() -> Ended:
        return await deferToThread(project, "check")

    assert project("jwt-keys", "create").code == 0
    none = await check()
    assert (none.code, none.err) == (0, "")
    assert "ok    mail server: none is configured" in none.out.splitlines()

    async with mail_server(tls_context=context, **insists) as (mailbox, port):
        account = (
            f'[smtp]\nhost = "localhost"\nport = {port}\nusername = "mailer"\nsender = "a@example.test"\n'
        )
        config.write_text(f'{servers}{account}password = "{PASSWORD}"\n')
        checks = [await check()]
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        checks.append(await check())
        config.write_text(f'{servers}{account}password = "{PASSWORD}-not"\n')
        checks.append(await check())
    checks.append(await check())
    assert [(one.code, line_of(one)) for one in checks] == [
        (1, "FAIL  mail server: the mail server's certificate is not trusted: self-signed certificate"),
        (0, "ok    mail server: reached with STARTTLS, logged in"),
        (1, f"FAIL  mail server: the mail server refuses the user name or the password ({REFUSED})"),
        (1, "FAIL  mail server: the mail server cannot be reached: connection refused"),
    ]
    output = "".join(one.out + one.err for one in checks)
    for secret in (PASSWORD, base64.b64encode(PASSWORD.encode()).decode().rstrip("=")):
        assert secret not in output
    assert mailbox.mails == []


def line_of(checked: Ended) -> str:
    """The output's line for this part, which must be the only failing one."""
    (line,) = [line for line in checked.out.splitlines() if "mail server" in line or line.startswith("FAIL")]
    return line


@beside_the_reactor
def test_links_of_emails_that_lead_nowhere_are_a_warning(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_file(database, store_settings, tmp_path)
    servers = config.read_text()
    project = commands_of(monkeypatch, "--config", config)
    project("jwt-keys", "create")
    mails = ['smtp.host = "localhost"', f"smtp.port = {free_port()}", 'smtp.sender = "a@example.test"']
    base = 'server.public_url = "https://api.example.test"'
    site = 'site_url = "https://app.example.test"'

    def links(*above: str, auth: str = "") -> list[object]:
        config.write_text("\n".join([*above, servers, auth]))
        parts = project("check", "--json").json["parts"]
        return [one for part in parts if part["part"] == "links of e-mails" for one in _said(part)]

    no_base = "server.public_url is not set, so e-mails have codes, but no links"
    no_site = "auth.site_url is not set, so links sign nobody in"
    some = "auth.site_url is not set, so links whose redirectTo is not in auth.redirect_urls sign nobody in"
    other = 'redirect_urls = ["https://other.example.test/"]'
    assert links(*mails) == [True, no_base, no_site]
    assert links(*mails, base) == [True, no_site]
    assert links(*mails, base, auth=other) == [True, some]
    assert links(*mails, auth=site) == [True, no_base]
    assert links(*mails, base, auth=site) == [False, "lead to https://app.example.test"]
    assert links() == links(*mails, "server.client_paths = false") == []


def _said(part: dict[str, Any]) -> list[object]:
    """Whether a part is a warning, and what it says, line by line."""
    assert part["ok"]
    return [part["warning"], *str(part["message"]).split("\n  ")]


@beside_the_reactor
def test_a_pooler_that_leads_elsewhere_is_reported(
    services: Services,
    database: str,
    empty_database: str,
    store_settings: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_file(database, store_settings, tmp_path)
    project = commands_of(monkeypatch, "--config", config)
    project("jwt-keys", "create")

    def found(direct: str) -> tuple[bool, str]:
        monkeypatch.setenv("PROJECT_SERVICE__DATABASE__DIRECT_DSN", direct)
        [part] = [one for one in project("check", "--json").json["parts"] if one["part"] == "pooler"]
        return part["ok"], part["message"]

    assert found(database) == (True, f"leads to {parse_dsn(database)['dbname']}, as direct_dsn does")
    assert found(empty_database) == (False, "dsn and direct_dsn lead to different databases")


@beside_the_reactor
def test_a_collector_of_traces_that_takes_none_is_reported(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_file(database, store_settings, tmp_path)
    project = commands_of(monkeypatch, "--config", config)
    project("jwt-keys", "create")
    (tmp_path / "headers").write_text("x-key: secret of the collector\n")
    (tmp_path / "headers").chmod(0o600)

    def found() -> tuple[bool, str]:
        done = project("check", "--json")
        assert "secret of" not in done.out + done.err
        [part] = [one for one in done.json["parts"] if one["part"] == "collector of traces"]
        return part["ok"], part["message"]

    with collecting() as collector:
        more = f'[tracing]\nendpoint = "{collector.url}"\nheaders_file = "{tmp_path / "headers"}"\n'
        config.write_text(config.read_text() + more)
        assert found() == (True, f"{collector.url} takes traces")
        # What it was sent is no trace.
        assert (collector.bodies, collector.headers[0]["x-key"]) == ([b""], "secret of the collector")
        collector.status = 401
        ok, why = found()
        assert not ok and why.startswith(f"{collector.url} does not take traces: ") and "401" in why
    ok, why = found()
    assert not ok and "refused" in why
