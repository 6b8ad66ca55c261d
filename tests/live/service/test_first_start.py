"""Starts with a data directory but external servers, in the test's own process."""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
import treq
from attrs import evolve
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet import reactor as _reactor
from twisted.logger import capturedLogs, formatEvent

from project_service import daemon
from project_service.daemon import Startup
from project_service.lifecycle import start
from project_service.settings.model import Secret, Store
from project_service.settings.reading import Launch, Source
from tests.live.application import settings_for
from tests.live.logged import LoggedErrors
from tests.live.sql import run_sql
from tests.live.storage.cli import config_file
from tests.live.waiting import until
from tests.temporary import free_port

reactor: Any = _reactor


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
    assert run_sql(database, BUCKETS) == [("private", "private"), ("public", "public")]

    # What an operator has deleted or revoked is not restored.
    run_sql(database, "delete from storage.buckets where name = 'private'")
    run_sql(database, "update auth.project_keys set revoked_at = now() where kind = 'service'")
    terminal.piped = True
    second = await made()
    assert second["anon_key"] == first["anon_key"]
    assert second["service_key"] not in (first["service_key"], first["anon_key"])
    assert run_sql(database, BUCKETS) == [("public", "public")]
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
    written = config.read_text()
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
