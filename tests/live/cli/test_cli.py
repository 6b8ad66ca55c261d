"""Commands of ``project-service`` beside a running service, on a data directory without one, and on configured
servers.

The first migration and the commands that take turns are processes of their own; the others run in the test's.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import orjson
import psycopg2
import pytest
import pytest_twisted

from project_service import files
from project_service.cli import invocation
from project_service.embedded.assemble import Embedded
from project_service.embedded.data_directory import DirectoryLock, running_beside
from tests.live.cli.command_here import Command, beside_the_reactor, commands_of, failed
from tests.live.cli.command_line import beginning, cli
from tests.live.daemon import TIMEOUT_SECONDS, children_on
from tests.live.service.documented import OF_ANY_PORT
from tests.live.services import Services, WithDatabase


@pytest.fixture(scope="module")
def migrated(services: Services) -> tuple[str, Path]:
    """The options for the data directory that the test run's own servers work on, migrated."""
    options = ("--data-dir", services.embedded.data_dir)
    done = cli("migrate", *options)
    assert (done.code, done.err) == (0, "")
    assert "Applying migration 0001_base.sql" in done.out
    return options


@pytest.fixture
def beside(migrated: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Command:
    return commands_of(monkeypatch, *migrated)


def test_a_failing_command_gives_the_reason_in_one_line(tmp_path: Path) -> None:
    failed = cli("keys", "list", "--data-dir", tmp_path)
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.startswith(
        f"project-service: there is no project in {tmp_path}; start the service once"
    )
    assert failed.err.count("\n") == 1


@beside_the_reactor
def test_a_key_that_was_made_elsewhere_is_imported_once(beside: Command) -> None:
    key = f"brought.along.{'x' * 30}"
    imported = beside("keys", "import", "anon", "--label", "moved", "--json", stdin=f"{key}\n")
    assert (imported.code, imported.json["kind"], imported.json["label"]) == (0, "anon", "moved")
    assert key not in imported.out + beside("keys", "list").out
    again = beside("keys", "import", "service", stdin=key)
    assert (again.code, "there already" in again.err) == (1, True)
    beside("keys", "revoke", imported.json["id"])
    assert beside("keys", "import", "anon", stdin=key).code == 1
    for wrong in ("short", "has a space in its middle", "x" * 1001, "ümlaut" * 5):
        refused = beside("keys", "import", "anon", stdin=wrong)
        assert (refused.code, wrong in refused.err) == (2, False)


@beside_the_reactor
def test_what_becomes_of_keys_is_in_the_audit(beside: Command) -> None:
    made = beside("keys", "create", "anon", "--json").json["id"]
    brought = beside("keys", "import", "anon", "--json", stdin="y" * 40).json["id"]
    beside("keys", "revoke", made)
    beside("keys", "revoke", made)
    with closing(psycopg2.connect(beside("dsn").out.strip())) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select actor, action, subject, result, user_agent from auth.audit where subject in (%s, %s) order by id",
            (made, brought),
        )
        assert cursor.fetchall() == [
            ("operator", "create_key", made, "ok", "project-service keys"),
            ("operator", "import_key", brought, "ok", "project-service keys"),
            ("operator", "revoke_key", made, "ok", "project-service keys"),
        ]


@beside_the_reactor
def test_openapi_for_the_owner_and_for_a_role(beside: Command) -> None:
    with closing(psycopg2.connect(beside("dsn").out.strip())) as connection:
        connection.autocommit = True
        connection.cursor().execute("create type cli_mood as enum ('new')")
        connection.cursor().execute("create table cli_books (id int primary key, title text, mood cli_mood)")
        try:
            everything = beside("openapi").json
            assert "/cli_books" in everything["paths"]
            columns = everything["definitions"]["cli_books"]["properties"]
            assert set(columns) == {"id", "title", "mood"}
            # Types have their schema, as in the service's own description.
            assert columns["mood"]["format"] == "public.cli_mood"
            assert everything["basePath"] == "/dev/db/main/rest"
            # Nothing has been granted to anon.
            assert "/cli_books" not in beside("openapi", "--role", "anon").json["paths"]
        finally:
            connection.cursor().execute("drop table cli_books; drop type cli_mood")
    assert beside("openapi", "--schema", "auth").code == 1


@beside_the_reactor
def test_check_names_the_one_thing_that_is_wrong(beside: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the servers run there; nobody has made token keys."""
    for name, value in OF_ANY_PORT.items():
        monkeypatch.setenv(name, value)
    checked = beside("check", "--json")
    assert checked.code == 1
    wrong = {part["part"]: part["message"] for part in checked.json["parts"] if not part["ok"]}
    assert set(wrong) == {"token keys"}
    assert "jwt-keys.json" in wrong["token keys"]
    fine = {part["part"] for part in checked.json["parts"] if part["ok"]}
    assert {"database", "migrations", "store"} <= fine


@beside_the_reactor
def test_check_looks_at_the_rest_although_settings_are_missing_or_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "poor.toml"
    config.write_text(
        '[database]\ndsn = "postgresql://u:hush@127.0.0.1:9/x"\n[auth]\nbcrypt_cost = "many"\n'
        '[smtp]\nhost = "127.0.0.1"\nport = 9\n'
    )
    checked = commands_of(monkeypatch, "--config", config)("check")
    assert checked.code == 1
    for wrong in ("auth.bcrypt_cost must", "store.endpoint_url is missing", "auth.jwt_keys_file is missing"):
        assert wrong in checked.out
    assert "the database cannot be reached: u@127.0.0.1:9/x: no server listens there" in checked.out
    assert "FAIL  mail server: the mail server cannot be reached: connection refused" in checked.out
    nowhere = commands_of(monkeypatch, "--config", tmp_path / "none.toml")("check")
    assert (nowhere.code, nowhere.out.count("FAIL")) == (1, 1)
    empty = commands_of(monkeypatch, "--data-dir", tmp_path)("check")
    assert empty.code == 1
    assert "FAIL  embedded servers: " in empty.out
    assert "FAIL  token keys: " in empty.out


@beside_the_reactor
def test_a_command_needs_no_settings_that_it_does_not_use(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "database.toml"
    config.write_text(f'[database]\ndsn = "{empty_database}"\n')
    commands = commands_of(monkeypatch, "--config", config)
    assert "applied" in commands("migrate").out
    assert commands("keys", "list").code == 0
    verified = commands("storage", "verify")
    assert (verified.code, "store.endpoint_url is missing" in verified.err) == (2, True)


@beside_the_reactor
def test_check_of_servers_that_do_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "away.toml"
    config.write_text(
        '[database]\ndsn = "postgresql://u:hush@127.0.0.1:9/x"\n'
        '[store]\nendpoint_url = "http://127.0.0.1:9"\naccess_key_id = "a"\nsecret_access_key = "hush"\n'
        f'connect_timeout_seconds = 0.5\n[auth]\njwt_keys_file = "{tmp_path}/none.json"\n'
        f'[stages.prod.databases.shop]\ndsn = "postgresql://u:hush@/x?host={tmp_path}"\n'
        "[stages.prod.databases.odd]\njwks = '[\"hush\"]'\n"
    )
    away = commands_of(monkeypatch, "--config", config)
    checked = away("check")
    assert checked.code == 1
    for part in (
        "database, migrations, policies, rights, clock, service_role, tables of prod/odd",
        "store",
        "token keys",
    ):
        assert f"FAIL  {part}:" in checked.out
    # Each database is checked by its own DSN.
    away_too = f"the database cannot be reached: u@{tmp_path}:5432/x: there is no such socket"
    assert f"FAIL  database prod/shop, rights of prod/shop, tables of prod/shop: {away_too}" in checked.out
    assert "FAIL  tokens of prod/odd: " in checked.out
    assert "ok    tokens of prod/shop: by the service's own keys" in checked.out
    assert "hush" not in checked.out + checked.err
    listed = away("keys", "list")
    assert listed.code == 1
    # It fails at once instead of waiting for the database to return.
    assert "the database cannot be reached: " in listed.err
    assert "hush" not in listed.err


@beside_the_reactor
def test_a_data_directory_without_a_project_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = commands_of(monkeypatch, "--data-dir", tmp_path / "none")("keys", "list")
    assert nothing.code == 1
    assert "no project in" in nothing.err
    assert not (tmp_path / "none").exists()


@pytest_twisted.async_yield_fixture
async def at_rest(with_database: WithDatabase, tmp_path: Path) -> AsyncIterator[Path]:
    from twisted.internet import reactor

    embedded = Embedded(reactor, with_database(tmp_path / "var"), store=False, shared=False)
    noted = embedded.data_dir / "run" / "running.json"
    noted.parent.mkdir(parents=True)
    noted.write_text("what a killed service had noted")
    await embedded.start()
    # Servers started for one command only are not offered to other commands.
    assert running_beside(embedded.data_dir) is None
    await embedded.stop()
    yield embedded.data_dir


@beside_the_reactor
def test_servers_of_a_data_directory_at_rest_are_started_for_the_command(
    at_rest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = commands_of(monkeypatch, "--data-dir", at_rest)
    assert project("migrate").code == 0
    # Simultaneous commands take turns, and none stops the database under another.
    # Not more than two: one that waits longer than 30 seconds for its turn gives up, and each starts the servers.
    at_once = [beginning("keys", "create", "anon", "--json", "--data-dir", at_rest) for _ in range(2)]
    ended = [(*one.communicate(timeout=TIMEOUT_SECONDS), one.returncode) for one in at_once]
    assert [(err, code) for _, err, code in ended] == [("", 0)] * 2
    assert {orjson.loads(out)["kind"] for out, _, _ in ended} == {"anon"}
    dsn = project("dsn")
    assert dsn.code == 0
    assert "nothing runs there" in dsn.err
    assert children_on(at_rest) == []


ELSEWHERE = "the service that runs on the data directory has a {} elsewhere; give its --config too"


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[Path]:
    """A data directory that another process is using."""
    files.write_json(tmp_path / "embedded.json", {})
    (tmp_path / "run").mkdir()
    lock = DirectoryLock(tmp_path)
    lock.take()
    yield tmp_path
    lock.release()


@beside_the_reactor
def test_a_service_with_its_database_or_store_elsewhere_is_explained(
    taken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = {"dsn": None, "admin_dsn": None, "store": None}
    files.write_json(taken / "run" / "running.json", noted)
    project = commands_of(monkeypatch, "--data-dir", taken)
    assert project("keys", "list") == failed(ELSEWHERE.format("database"))
    files.write_json(taken / "run" / "running.json", noted | {"dsn": "postgresql://127.0.0.1:9/x"})
    assert project("storage", "verify") == failed(ELSEWHERE.format("store"))


@beside_the_reactor
def test_a_command_that_does_not_get_its_turn_names_the_process_that_has_it(
    taken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invocation, "TURN_SECONDS", 0.0)
    project = commands_of(monkeypatch, "--data-dir", taken)
    whose = f"another project-service (pid {os.getpid()}) is running on {taken}"
    assert project("keys", "list") == failed(f"{whose}; stop it or use another --data-dir")
