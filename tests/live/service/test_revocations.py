"""A host that is cut off from the system database, though not from that of a table API, soon refuses all keys and
sessions, since any may have been revoked (decisions, sections 2 and 3)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve, frozen
from psycopg2.errors import ReadOnlySqlTransaction
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet import reactor as _reactor
from twisted.internet.task import deferLater

from project_service.application import FRESH_SECONDS
from project_service.database.connection import Connection, Row
from project_service.http.caller import digest
from project_service.settings.model import Secret, Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.proxy import Manners, RudeProxy, rude_proxy
from tests.live.sql import run_sql
from tests.live.waiting import until

reactor: Any = _reactor
TABLE = "/dev/db/main/rest/kept"
TIMEOUT_SECONDS = 0.5


@frozen
class CutOff:
    """A service that reaches the system database through ``proxy``, and the tables of another one directly."""

    api: Api
    proxy: RudeProxy
    dsn: str

    async def status(self, **who: Any) -> int:
        status, _, _ = await self.api.request("GET", TABLE, **who)
        return status

    async def answers(self, expected: int, **who: Any) -> bool:
        return await self.status(**who) == expected

    async def decided(self, **who: Any) -> int:
        """The status once it is not 503: on a busy machine the service may not know for a moment what was revoked."""
        status = 503

        async def knows() -> bool:
            nonlocal status
            status = await self.status(**who)
            return status != 503

        await until(knows)
        return status


@asynccontextmanager
async def cut_off(
    dsn: str, tables: str, store: Store, directory: Path, acquire_timeout: float = TIMEOUT_SECONDS
) -> AsyncIterator[CutOff]:
    known = parse_dsn(dsn)
    run_sql(
        tables,
        "create table kept as select 7 as n; grant select on kept to anon, authenticated, service_role",
    )
    async with AsyncExitStack() as stack:
        proxy, port = await stack.enter_async_context(
            rude_proxy(f"unix:{known['host']}/.s.PGSQL.{known['port']}")
        )
        settings = settings_for(
            str(make_dsn(dsn, host="127.0.0.1", port=port)),
            store,
            directory,
            database={"acquire_timeout_seconds": acquire_timeout},
        )
        database = StageDatabase(dsn=Secret(tables), pool_size=2)
        settings = evolve(settings, stages={"dev": Stage(databases={"main": database})})
        api = await stack.enter_async_context(serving(settings))
        yield CutOff(api, proxy, dsn)
        proxy.manners = Manners()


@pytest_twisted.ensureDeferred
async def test_a_host_cut_off_from_the_database_refuses_all_keys_and_sessions_after_a_second(
    database: str, empty_database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with cut_off(database, empty_database, store_settings, tmp_path) as host:
        session = await host.api.sign_up("cut-off@example.test")
        token = session["access_token"]
        await until(lambda: host.answers(200, token=token))
        # Not a word more in either direction, as when a network is split.
        host.proxy.manners = Manners(silent=True)
        revoked_at = time.monotonic()
        sha256 = digest(host.api.anon_key).hex()
        run_sql(database, f"update auth.project_keys set revoked_at = now() where sha256 = '\\x{sha256}'")
        run_sql(database, "update auth.sessions set ended_at = now()")
        while time.monotonic() - revoked_at <= FRESH_SECONDS:
            assert await host.status() in (200, 503)
        assert await host.status() == 503
        assert await host.status(token=token) == 503
        status, _, body = await host.api.request("GET", TABLE, key="service")
        assert (status, body["code"]) == (503, "PGRST000")
        assert (await host.api.request("GET", "/live"))[0] == 200
        # The network is whole again.
        host.proxy.manners = Manners()
        await until(lambda: host.answers(200, key="service"))
        assert await host.decided() == 401
        assert await host.decided(key="service", token=token) == 401


@pytest_twisted.ensureDeferred
async def test_a_host_cut_off_from_the_database_stops_without_waiting_for_it(
    database: str, empty_database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with cut_off(database, empty_database, store_settings, tmp_path, acquire_timeout=60.0) as host:
        await until(lambda: host.answers(200))
        host.proxy.manners = Manners(refuse=True)
        await deferLater(reactor, FRESH_SECONDS)
        stopping_at = time.monotonic()
        await host.api.application.stop()
        assert time.monotonic() - stopping_at < 10.0


@pytest_twisted.ensureDeferred
async def test_requests_and_ready_are_503_while_revocations_are_locked(
    database: str, empty_database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with cut_off(database, empty_database, store_settings, tmp_path) as host:
        await until(lambda: host.answers(200))
        with closing(psycopg2.connect(database)) as rival:
            rival.cursor().execute("lock table auth.revocations in access exclusive mode")
            await until(lambda: host.answers(503))
            status, _, body = await host.api.request("GET", "/ready", key=None)
            assert (status, list(body["error"]["details"])) == (503, ["notifications"])
        await until(lambda: host.answers(200))

        async def ready() -> bool:
            return bool((await host.api.request("GET", "/ready", key=None))[0] == 200)

        await until(ready)


@pytest_twisted.ensureDeferred
async def test_what_a_standby_tells_is_trusted_although_it_lets_nobody_listen(
    database: str,
    empty_database: str,
    store_settings: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failover the address may lead to one that is not promoted yet, and rows can be read meanwhile."""
    query = Connection.query

    async def refused(connection: Connection, sql: Any, params: Any = None) -> list[Row]:
        if sql.startswith("listen"):
            raise ReadOnlySqlTransaction
        return await query(connection, sql, params)

    async with cut_off(database, empty_database, store_settings, tmp_path) as host:
        await until(lambda: host.answers(200))
        monkeypatch.setattr(Connection, "query", refused)
        run_sql(
            database,
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and usename = current_user and pid <> pg_backend_pid()",
        )
        for _ in range(3):
            await deferLater(reactor, FRESH_SECONDS)
            assert await host.decided() == 200
        assert (await host.api.request("GET", "/ready", key=None))[0] == 503
        sha256 = digest(host.api.anon_key).hex()
        run_sql(database, f"update auth.project_keys set revoked_at = now() where sha256 = '\\x{sha256}'")
        await deferLater(reactor, FRESH_SECONDS)
        assert await host.decided() == 401
