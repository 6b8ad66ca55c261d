"""The output and exit codes of commands, run in the test's own process on a real database and store."""

from __future__ import annotations

import re
from pathlib import Path

import bcrypt
import pytest

from project_service.database.migrate import definitions, shipped
from project_service.dsn import read_dsn
from project_service.settings.model import Store
from project_service.storage.s3.client import connect_store
from tests.live.cli.command_here import Command, beside_the_reactor, commands_of, failed, on_reactor, reactor
from tests.live.cli.command_line import Ended
from tests.live.services import Services
from tests.live.sql import run_sql
from tests.live.storage.cli import config_file

ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def project(database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    return commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path))


@beside_the_reactor
def test_keys(project: Command) -> None:
    made = project("keys", "create", "anon", "--label", "web app").out
    assert re.fullmatch(r"psk_anon_\S+\n", made)
    as_json = project("keys", "create", "service", "--json").json
    assert re.fullmatch(r"psk_service_\S+", as_json.pop("key"))
    assert (as_json["kind"], as_json["label"]) == ("service", "")
    assert project("keys", "list", "--json").json[1] == as_json
    revoked = as_json["id"]
    assert project("keys", "revoke", revoked).out == f"revoked {revoked}\n"
    assert project("keys", "revoke", revoked) == failed(f"there is no active key with the id {revoked}")
    assert project("keys", "revoke", "x") == failed("there is no active key with the id x")
    lines = project("keys", "list").out
    assert re.fullmatch(
        f"{ID}  anon     {TIME}  active  not used  web app\n{ID}  service  {TIME}  revoked {TIME}  not used\n",
        lines,
    )


@beside_the_reactor
def test_buckets(project: Command) -> None:
    line = f"{'papers':<30} {{}}          0 objects               0 bytes\n"
    limits = ("--max-object-bytes", "10", "--max-bucket-bytes", "20")
    made = project("bucket", "create", "papers", *limits, "--content-type", "text/*", "--content-type", "a/b")
    assert made.out == line.format("private ")
    assert project("bucket", "update", "papers", "--public").out == line.format("public  ")
    assert project("bucket", "list").out == line.format("public  ")
    rules = ("--owner-only-writes", "--anonymous-reads")
    assert project("bucket", "update", "papers", *rules).out == (
        f"{line.format('public  ').rstrip()}  owner_only_writes, anonymous_reads\n"
    )
    (shown,) = project("bucket", "list", "--json").json
    assert (shown["max_object_bytes"], shown["max_bucket_bytes"]) == (10, 20)
    assert shown["allowed_content_types"] == ["text/*", "a/b"]
    changed = project("bucket", "update", "papers", "--max-bucket-bytes", "none", "--json").json
    assert (changed["max_object_bytes"], changed["max_bucket_bytes"]) == (10, None)
    refused = project("bucket", "update", "papers", "--max-object-bytes", "0")
    assert refused == failed(
        "A value is not allowed: max_object_bytes must be null or a whole number from 1 to 5497558138880."
    )
    assert project("bucket", "delete", "papers", "--json").json == {"name": "papers", "deleted": True}
    assert project("bucket", "delete", "papers") == failed("There is no such bucket.")
    own = project("bucket", "create", "papers", "--per-user", "--shared-writes").out
    assert own == f"{line.format('private ').rstrip()}  owner_only_reads\n"
    assert project("bucket", "delete", "papers").out == "deleted papers\n"


FACTOR = "00000000-0000-4000-8000-0000000000fa"


@beside_the_reactor
def test_users(project: Command, database: str) -> None:
    hashed = bcrypt.hashpw(b"y", bcrypt.gensalt(4)).decode()
    both = project(
        "user", "create", "a@example.test", "--password-stdin", "--password-hash", hashed, stdin="y"
    )
    assert both == failed("A value is not allowed: password_hash cannot go with a password.")
    made = project("user", "create", "a@example.test")
    assert re.fullmatch(f"{ID}\n", made.out)
    one = made.out.strip()
    assert project("user", "end-sessions", "a@example.test", "--json").json == {"ended": 0}
    assert project("user", "disable", one).out == f"disabled {one}\n"
    assert re.fullmatch(f"{one}  disabled  {TIME}  a@example.test\n", project("user", "list").out)
    assert project("user", "enable", one, "--json").json["disabled"] is False
    assert re.fullmatch(f"{one}  active    {TIME}  a@example.test\n", project("user", "list").out)
    run_sql(
        database,
        "insert into auth.mfa_factors (id, user_id, friendly_name, factor_type, status)"
        f" values ('{FACTOR}', '{one}', 'phone', 'totp', 'verified')",
    )
    (shown,) = project("user", "list", "--json").json
    (identity,) = shown["identities"]
    assert (identity["provider"], identity["email"]) == ("email", shown["email"])
    assert project("user", "identities", shown["email"], "--json").json == [identity]
    assert project("user", "identities", one).out == f"email  {one}  a@example.test\n"
    (factor,) = shown["factors"]
    assert (factor["id"], factor["friendly_name"], factor["factor_type"], factor["status"]) == (
        *(FACTOR, "phone", "totp", "verified"),
    )
    assert project("user", "mfa-reset", "a@example.test", "--json").json == {"id": one, "deleted": 1}
    assert project("user", "mfa-reset", one).out == f"deleted 0 of {one}\n"
    assert project("user", "list", "--json").json[0]["factors"] == []
    assert project("user", "delete", one, "--json").json == {"id": one, "deleted": True}
    for command in ("disable", "enable", "unlock", "delete", "end-sessions", "mfa-reset", "identities"):
        assert project("user", command, one) == failed("There is no such user.")
    # These are more users than one page of /admin/users has.
    run_sql(
        database,
        "insert into auth.users (email, email_key, created_at) select a, a, timestamptz '2020-01-01' + n * '1 s'"
        "::interval from (select n, n || '@example.test' a from generate_series(1, 1001) n) numbered",
    )
    listed = [user["email"] for user in project("user", "list", "--json").json]
    assert listed == [f"{n}@example.test" for n in range(1, 1002)]


@beside_the_reactor
def test_storage(project: Command, database: str, store_settings: Store, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for name in ("gone", "kept", "torn"):
        (files / name).write_text(name)
    project("bucket", "create", "papers")
    assert project("storage", "import", "none", str(files)) == failed("There is no such bucket.")
    done = project("storage", "import", "papers", str(files))
    assert done == Ended(0, "3 imported, 0 there already, 0 refused\n", "")
    (files / "bad\nname").write_text("bad")
    refusal = "The object key is not allowed: it has a control character."
    partly = project("storage", "import", "papers", str(files))
    assert (partly.code, partly.err) == (1, "project-service: not everything could be imported\n")
    assert partly.out == f"refused  bad\\nname: {refusal}\n0 imported, 3 there already, 1 refused\n"
    (files / "bad\nname").unlink()
    again = project("storage", "import", "papers", str(files), "--overwrite", "--json").json
    assert again == {"imported": ["gone", "kept", "torn"], "skipped": [], "refused": {}}

    store = connect_store(reactor, store_settings)
    versions = dict(run_sql(database, "select key, version::text from storage.objects"))

    async def spoil() -> None:
        await store.delete(f"papers/{versions['gone']}")
        await store.put(f"papers/{versions['torn']}", b"TORN", "text/plain", {})
        await store.put("papers/00000000-0000-4000-8000-000000000000", b"x", "text/plain", {})
        await store.close()

    on_reactor(spoil())
    verified = project("storage", "verify")
    assert verified.code == 1
    assert verified.err == "project-service: the store does not have what the database says\n"
    assert verified.out.splitlines() == [
        "missing  papers/gone",
        "torn     papers/torn",
        "3 objects, 2 faults, 0 unproven, 1 orphans in the store",
    ]
    verified = project("storage", "verify", "--json")
    assert (verified.code, verified.json["sound"], verified.json["missing"]) == (1, False, ["papers/gone"])
    swept = "uploads 0, versions 0, multiparts 0, links 0, orphans 1\n"
    assert project("storage", "sweep") == Ended(0, swept, "")
    assert project("storage", "sweep", "--json").json["orphans"] == 0


def _shipped_names() -> list[str]:
    return [*(one.name for one in shipped()), *(one.name for one in definitions().files)]


@beside_the_reactor
def test_a_database_that_has_not_been_migrated(
    empty_database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = commands_of(monkeypatch, "--config", config_file(empty_database, store_settings, tmp_path))
    unmigrated = project("keys", "list")
    assert (unmigrated.code, unmigrated.out) == (1, "")
    assert unmigrated.err.startswith("project-service: the database refuses: ")
    assert unmigrated.err.endswith("; has it been migrated? (`project-service migrate`)\n")
    project("jwt-keys", "create")
    checked = project("check")
    names = ", ".join(_shipped_names())
    remedy = "(`project-service migrate`, or start the service)"
    lines = checked.out.splitlines()
    assert checked.code == 1
    assert f"FAIL  migrations: not applied yet: {names} {remedy}" in lines
    assert len([line for line in lines if line.startswith("FAIL")]) == 1
    applying = [
        *(f"Applying migration {one.name}" for one in shipped()),
        *(f"Applying definitions {one.name}" for one in definitions().files),
    ]
    assert project("migrate").out.splitlines() == [*applying, f"applied {len(applying)}"]
    assert project("migrate").out == "nothing to do\n"
    checked = project("check")
    assert checked.code == 0
    assert re.fullmatch(
        r"ok    configuration: fine\n"
        r"ok    database: PostgreSQL 18\.\d+ as project_service\n"
        r"ok    migrations: up to date\n"
        r"ok    policies: no bucket has the rule policies\n"
        r"ok    rights: no rows are open past row-level security, unless on purpose\n"
        rf"ok    store: bucket {store_settings.bucket} can be written and read\n"
        r"ok    clock: as the database's\n"
        rf"ok    token keys: {tmp_path}/jwt-keys\.json\n"
        r"ok    workers: one process\n"
        r"ok    mail server: none is configured\n"
        r"ok    e-mail templates: en \(built in\)\n"
        r"ok    pictures: .+\n"  # whether the extra ``images`` is installed
        r"ok    port tcp:0:interface=127\.0\.0\.1: can be opened\n"
        r"ok    tables: no table API is configured: \[stages\.STAGE\.databases\.NAME\] makes one\n",
        checked.out,
    )
    assert project("check", "--json").json["ok"] is True


@beside_the_reactor
def test_migrate_with_json_prints_nothing_but_json(
    empty_database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = commands_of(monkeypatch, "--config", config_file(empty_database, store_settings, tmp_path))
    assert project("migrate", "--json").json == {"applied": _shipped_names()}


@beside_the_reactor
def test_token_keys(project: Command, tmp_path: Path) -> None:
    path = tmp_path / "jwt-keys.json"
    assert project("jwt-keys", "rotate") == failed(f"{path}: No such file or directory")
    made = project("jwt-keys", "create")
    assert re.fullmatch(rf"{path}\n\S+  ES256  signs\n", made.out)
    for algorithm in ("EdDSA", "HS256", "ES256"):
        project("jwt-keys", "rotate", "--algorithm", algorithm)
    lines = project("jwt-keys", "rotate", "--keep", "1").out.splitlines()
    assert [line.split()[1:] for line in lines[1:]] == [["ES256", "signs"], ["ES256", "verifies"]]
    only = project("jwt-keys", "rotate", "--keep", "0", "--json").json
    assert (only["file"], len(only["keys"])) == (str(path), 1)
    nowhere = tmp_path / "none" / "keys.json"
    assert project("jwt-keys", "create", "--file", str(nowhere)) == failed(
        f"{nowhere}: No such file or directory"
    )


@beside_the_reactor
def test_other_databases(
    database: str, services: Services, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with services.database("elsewhere") as elsewhere:
        run_sql(elsewhere, "create schema api; create table api.books (id int primary key)")
        config = config_file(database, store_settings, tmp_path)
        config.write_text(
            f'server.public_url = "https://a.example"\n{config.read_text()}'
            f'[stages.prod.databases.shop]\ndsn = "{elsewhere}"\nschemas = ["public", "api"]\n'
            "[stages.prod.databases.main]\n"
            'openapi_server_proxy_uri = "https://b.example/v1"\n'
        )
        project = commands_of(monkeypatch, "--config", config)
        assert project("dsn").out == f"{database}\n"
        assert project("dsn", "--json").json == {"dsn": database}
        assert project("dsn", "--stage", "prod", "--database", "shop").out == f"{elsewhere}\n"
        # Without a DSN of its own it is the system database.
        assert project("dsn", "--stage", "prod", "--database", "main").out == f"{database}\n"

        shop = ("--stage", "prod", "--database", "shop")
        described = project("openapi", *shop, "--schema", "api").json
        assert (described["host"], described["basePath"]) == ("a.example", "/prod/db/shop/rest")
        assert "/books" in described["paths"]
        assert "/books" not in project("openapi", *shop).json["paths"]
        assert project("openapi", *shop, "--json").out == project("openapi", *shop).out
        proxied = project("openapi", "--stage", "prod", "--database", "main").json
        assert (proxied["host"], proxied["basePath"]) == ("b.example:443", "/v1")
        none = "the configuration has no stage dev with a database main"
        assert project("openapi") == failed(none)
        unknown = project("openapi", *shop, "--role", "nobody")
        assert unknown == failed('the database refuses: role "nobody" does not exist')
        assert project("openapi", *shop, "--schema", "auth") == failed(
            "the database does not expose the schema auth"
        )
        checked = [line for line in project("check").out.splitlines() if "prod/" in line]
        assert checked[0].startswith("ok    database prod/shop: PostgreSQL 18")
        assert [line for line in checked if "tokens" in line] == [
            "ok    tokens of prod/shop: by the service's own keys",
            "ok    tokens of prod/main: by the service's own keys",
        ]
    # As of the system database: at once, and with the reason.
    gone = f"{read_dsn(elsewhere).candidates[0].address}: there is no such database or role"
    assert project("openapi", *shop) == failed(f"the database cannot be reached: {gone}")
