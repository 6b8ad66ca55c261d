"""A start on a database and a store that are there already, in the test's own process."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet import reactor as _reactor
from twisted.logger import capturedLogs, formatEvent

from project_service import application
from project_service.application import Application
from project_service.auth import tokens
from project_service.auth.tokens import KeySetError
from project_service.daemon import Startup
from project_service.database.listener import MIGRATIONS
from project_service.database.migrate import watch_ddl
from project_service.lifecycle import start, with_timeout
from project_service.network import bind_endpoints
from project_service.settings.model import Secret, Stage, StageDatabase, Store
from project_service.settings.reading import Launch, Source
from tests.live.application import logged_at_start, serving, settings_for
from tests.live.proxy import Manners, rude_proxy
from tests.live.services import Services
from tests.live.sql import connection_to
from tests.live.waiting import until

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
            status, _, body = await api.request("GET", "/ready", key=None)
            assert (status, list(body["error"]["details"])) == (503, ["tables"])
            assert (await api.request("GET", "/storage/buckets/public/objects"))[0] == 200
    messages = [formatEvent(event) for event in events]
    assert "stages.dev.databases.away does not answer yet" in messages
    assert "listening to stages.dev.databases.away failed: no server listens there" in messages


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
            return (await asked("/ready"))[0] == 200

        assert (await asked("/live"))[0] == 200
        status, error = await asked("/ready")
        assert (status, list(error["details"])) == (503, ["database", "notifications", "tables"])
        status, error = await asked("/storage/buckets/public/objects")
        assert (status, error["code"]) == (503, "database_unavailable")
        proxy.manners = Manners()
        await until(recovered)
        assert (await asked("/storage/buckets/public/objects"))[0] == 200
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
