"""The first start on a data directory, and starts while the database is away or lacks something."""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
import treq
from attrs import evolve
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet import reactor as _reactor
from twisted.logger import capturedLogs, formatEvent

from project_service import application, daemon
from project_service.application import Application
from project_service.auth import tokens
from project_service.auth.tokens import KeySetError
from project_service.daemon import Startup
from project_service.database.locks import MIGRATIONS
from project_service.database.migrate import watch_ddl
from project_service.lifecycle import start, with_timeout
from project_service.network import bind_endpoints
from project_service.settings.model import Secret, Stage, StageDatabase, Store
from project_service.settings.reading import Launch, Source
from tests.live.application import logged_at_start, serving, settings_for
from tests.live.logged import LoggedErrors
from tests.live.proxy import Manners, rude_proxy
from tests.live.services import Services
from tests.live.sql import connection_to, run_sql
from tests.live.storage.cli import config_file
from tests.live.waiting import until
from tests.temporary import free_port

reactor: Any = _reactor
UNWATCHED = "no event triggers announce changes of the schema"


def _spoil(path: Path) -> None:
    path.write_text("{")


@pytest_twisted.ensureDeferred
async def test_a_start_says_if_schema_changes_are_not_noticed(
    database: str, services: Services, store_settings: Store, tmp_path: Path
) -> None:
    """The owner cannot create event triggers; after a superuser has, nothing is logged."""
    settings = settings_for(database, store_settings, tmp_path)
    assert settings.auth.jwt_keys_file is not None
    tokens.load_or_create_keys(Path(settings.auth.jwt_keys_file), settings.auth.jwt_algorithm)
    assert UNWATCHED in await logged_at_start(settings)
    admin = await connection_to(services.admin_dsn(database))
    assert await watch_ddl(admin)
    admin.close()
    assert UNWATCHED not in await logged_at_start(settings)


@pytest_twisted.ensureDeferred
async def test_migrating_may_take_longer_than_a_request(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    """Here it waits for another process that holds the lock."""
    settings = settings_for(database, store_settings, tmp_path)
    hurried = evolve(settings, database=evolve(settings.database, statement_timeout_seconds=0.1))
    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        other.autocommit = True
        cursor.execute("select pg_advisory_lock(%s)", (MIGRATIONS,))
        migrating = start(Startup(reactor, Launch(hurried, Source()))._migrate())

        async def long_enough() -> bool:
            cursor.execute(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and wait_event = 'advisory' and clock_timestamp() - query_start > interval '0.3 s'"
            )
            return migrating.called or cursor.fetchall() == [(1,)]

        await until(long_enough)
        assert not migrating.called
        cursor.execute("select pg_advisory_unlock(%s)", (MIGRATIONS,))
        await migrating


@pytest_twisted.ensureDeferred
async def test_a_connection_lost_while_migrating_is_replaced(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        other.autocommit = True
        cursor.execute("select pg_advisory_lock(%s)", (MIGRATIONS,))
        settings = settings_for(database, store_settings, tmp_path)
        migrating = start(Startup(reactor, Launch(settings, Source()))._migrate())
        seen: set[int] = set()

        async def another_waits() -> bool:
            cursor.execute(
                "select pid from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
            )
            found = {pid for (pid,) in cursor.fetchall()} - seen
            seen.update(found)
            return migrating.called or bool(found)

        await until(another_waits)
        cursor.execute("select pg_terminate_backend(pid) from unnest(%s) pid", (list(seen),))
        await until(another_waits)
        assert not migrating.called
        cursor.execute("select pg_advisory_unlock(%s)", (MIGRATIONS,))
        await migrating


@pytest_twisted.ensureDeferred
async def test_a_database_of_the_table_api_that_is_away_delays_no_other_part(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "LISTENING_SECONDS", 0.1)
    away = {"dev": Stage({"away": StageDatabase(dsn=Secret("postgresql://127.0.0.1:1/away"))})}
    settings = evolve(settings_for(database, store_settings, tmp_path), stages=away)
    with capturedLogs() as events:
        async with serving(settings) as api:

            async def only_tables_are_away() -> bool:
                status, _, body = await api.request("GET", "/ready", key=None)
                assert status == 503
                return list(body["error"]["details"]) == ["tables"]

            # The other connections for notifications may take longer than the start waits for them.
            await until(only_tables_are_away)
            assert (await api.request("GET", "/storage/buckets/public/objects"))[0] == 200
    messages = [formatEvent(event) for event in events]
    assert "stages.dev.databases.away does not answer yet" in messages
    assert any(one.startswith("listening to stages.dev.databases.away failed: ") for one in messages)


@pytest_twisted.ensureDeferred
async def test_a_process_started_while_the_database_is_away_answers_and_recovers(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that replaces another, for one: migrating has been done then."""
    monkeypatch.setattr(application, "LISTENING_SECONDS", 0.1)
    known = parse_dsn(database)
    settings = settings_for(database, store_settings, tmp_path, database={"acquire_timeout_seconds": 0.2})
    async with (
        serving(settings) as first,
        rude_proxy(f"unix:{known['host']}/.s.PGSQL.{known['port']}") as (proxy, port),
    ):
        proxy.manners = Manners(refuse=True)
        away = Secret(make_dsn(database, host="127.0.0.1", port=port))
        settings = evolve(settings, database=evolve(settings.database, dsn=away))
        second = Application(reactor, settings, bind_endpoints(reactor, settings.server.listen))
        await with_timeout(reactor, 20.0, start(second.start()), TimeoutError)
        api = evolve(first, base_url=f"http://127.0.0.1:{second.addresses[0].port}")

        async def asked(path: str) -> tuple[int, Any]:
            status, _, body = await api.request("GET", path, key="service")
            return status, body.get("error")

        async def recovered() -> bool:
            objects = await asked("/storage/buckets/public/objects")
            return (await asked("/ready"))[0] == objects[0] == 200

        assert (await asked("/live"))[0] == 200
        status, error = await asked("/ready")
        assert (status, list(error["details"])) == (503, ["database", "notifications", "tables"])
        status, error = await asked("/storage/buckets/public/objects")
        assert (status, error["code"]) == (503, "database_unavailable")
        proxy.manners = Manners()
        await until(recovered)
        await second.stop()


@pytest_twisted.ensureDeferred
async def test_an_unusable_key_file_keeps_all_settings_at_a_reload(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    settings = settings_for(database, store_settings, tmp_path)
    assert settings.auth.jwt_keys_file is not None
    async with serving(settings) as api:
        _spoil(Path(settings.auth.jwt_keys_file))
        with pytest.raises(KeySetError):
            api.application.reload(evolve(settings, server=evolve(settings.server, cors_origins=())))
        _, headers, _ = await api.request("GET", "/auth/user", headers={"Origin": "https://a.example"})
        assert headers.getRawHeaders("access-control-allow-origin") == ["*"]


class Terminal(StringIO):
    """An output that is a terminal, unless it is a pipe."""

    piped = False

    def isatty(self) -> bool:
        return not self.piped


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output."""
    made = Terminal()
    monkeypatch.setattr(sys, "__stdout__", made)
    return made


@asynccontextmanager
async def started(launch: Launch) -> AsyncIterator[Startup]:
    startup = Startup(reactor, launch)
    try:
        await startup.start()
        yield startup
    finally:
        await startup.stop()


OTHERS = (
    "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    " and backend_type = 'client backend'"
)
BUCKETS = "select name, visibility from storage.buckets order by name"


@pytest_twisted.ensureDeferred
async def test_keys_and_buckets_are_made_once_and_shown_only_on_a_terminal(
    database: str, store_settings: Store, tmp_path: Path, terminal: Terminal
) -> None:
    data_dir = tmp_path / "made" / "var"
    launch = Launch(settings_for(database, store_settings, tmp_path), Source(data_dir=data_dir))
    path = data_dir / "credentials.json"

    async def made() -> dict[str, str]:
        terminal.truncate(0)
        async with started(launch):
            found: dict[str, str] = json.loads(path.read_text())
        printed = terminal.getvalue()
        assert f"ready on {found['base_url']}\n" in printed
        # A program that collects the output does not get the keys.
        assert [found[key] in printed for key in ("anon_key", "service_key")] == [not terminal.piped] * 2
        return found

    first = await made()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", first["base_url"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert first["dsn"] == database
    assert run_sql(database, BUCKETS) == [
        ("personal", "private"),
        ("private", "private"),
        ("public", "public"),
    ]

    # What an operator has deleted or revoked is not restored.
    run_sql(database, "delete from storage.buckets where name = 'private'")
    run_sql(database, "update auth.project_keys set revoked_at = now() where kind = 'service'")
    terminal.piped = True
    second = await made()
    assert second["anon_key"] == first["anon_key"]
    assert second["service_key"] not in (first["service_key"], first["anon_key"])
    assert run_sql(database, BUCKETS) == [("personal", "private"), ("public", "public")]
    active = run_sql(database, "select kind from auth.project_keys where revoked_at is null order by kind")
    assert active == [("anon",), ("service",)]

    async def alone() -> bool:
        return run_sql(database, OTHERS) == [(0,)]

    # All connections are closed in the end.
    await until(alone)

    path.write_text("no longer what it was")
    with pytest.raises(ValueError, match=r"credentials\.json holds no JSON object"):
        await made()


@pytest_twisted.ensureDeferred
async def test_the_start_waits_for_the_database(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process may be started without a standard output.
    monkeypatch.setattr(sys, "__stdout__", None)
    where = parse_dsn(database)
    settings = settings_for(make_dsn(database, host=str(tmp_path)), store_settings, tmp_path)
    settings = evolve(settings, auth=evolve(settings.auth, jwt_keys_file=str(tmp_path / "keys.json")))
    startup = Startup(reactor, Launch(settings, Source(data_dir=tmp_path)))
    with capturedLogs() as events:
        starting = start(startup.start())
        await until(lambda: any("waiting for the database" in str(formatEvent(one)) for one in events))
        assert not starting.called
        socket = f".s.PGSQL.{where['port']}"
        (tmp_path / socket).symlink_to(Path(where["host"]) / socket)
        await starting
    await startup.stop()
    assert settings.database.dsn == Secret(make_dsn(database, host=str(tmp_path)))


@pytest_twisted.ensureDeferred
async def test_a_reload_reads_the_file_again_and_options_still_win(
    database: str,
    store_settings: Store,
    tmp_path: Path,
    logged_errors: LoggedErrors,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels: list[str] = []
    monkeypatch.setattr(daemon, "set_level", levels.append)
    port = free_port()
    config = config_file(database, store_settings, tmp_path)
    written = "\n".join(line for line in config.read_text().splitlines() if "server.listen" not in line)
    listen = f"tcp:{port}:interface=127.0.0.1"
    options = {"server.listen": [listen], "server.public_url": "https://a.example"}

    def write(origin: str) -> None:
        config.write_text(
            f'[server]\npublic_url = "https://b.example"\nlog_level = "warn"\ncors_origins = ["{origin}"]\n{written}'
        )

    write("https://old.test")
    source = Source(config, options, tmp_path)
    launch = Launch(source.read({}), source)
    async with started(launch) as startup:

        async def allowed() -> list[str] | None:
            asking: dict[bytes | str, bytes | str] = {"Origin": "https://new.test"}
            answer = await treq.get(f"http://127.0.0.1:{port}/auth/user", headers=asking, persistent=False)
            await treq.content(answer)
            found: list[str] | None = answer.headers.getRawHeaders("access-control-allow-origin")
            return found

        assert json.loads((tmp_path / "credentials.json").read_text())["base_url"] == "https://a.example"
        assert await allowed() is None
        write("https://new.test")
        with capturedLogs() as events:
            startup.reload()
        messages = [str(formatEvent(one)) for one in events]
        assert (sum("the configuration was reloaded" in one for one in messages), levels) == (1, ["warn"])
        write("https://new.test\nno TOML")
        with capturedLogs() as events:
            startup.reload()
        assert await allowed() == ["https://new.test"]
    assert not any("the configuration was reloaded" in str(formatEvent(one)) for one in events)
    assert len(logged_errors.flush("the configuration was not reloaded")) == 1
