"""A database that drops connections, accepts no more, hangs or stays silent: 503 in time, and recovery by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve, frozen
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet.defer import Deferred, gatherResults

from project_service.application import EXTRA_SLOTS
from project_service.database import connecting
from project_service.lifecycle import start
from project_service.settings.model import Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.proxy import Manners, RudeProxy, rude_proxy
from tests.live.services import Services, held_open, wait
from tests.live.sql import run_sql
from tests.live.waiting import until, within

POOL_SIZE = 3
# Not so short that a slow machine exceeds them where nothing is wrong.
ACQUIRE_SECONDS = 1.5
STATEMENT_SECONDS = 3.0
# The guard waits this long for a server that does not end a statement; the service's own margin is longer.
MARGIN_SECONDS = 2.0
# The sum of the time limits, with some slack for a slow machine.
BOUND_SECONDS = ACQUIRE_SECONDS + STATEMENT_SECONDS + MARGIN_SECONDS + 3.0
ACCOUNT = {"email": "faults@example.test", "password": "a long enough one"}


@frozen
class Shaken:
    """A service whose database is behind the proxy, and the database's own address."""

    api: Api
    proxy: RudeProxy
    dsn: str
    admin_dsn: str

    def admin(self, sql: str) -> list[Any]:
        return run_sql(self.admin_dsn, sql)

    def terminate_all(self) -> int:
        """Ends the service's connections and returns their number."""
        ended = self.admin(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name = 'project-service'"
        )
        return len(ended)

    async def kinds(self) -> dict[str, int]:
        """The statuses of one request to each part."""
        asked = {
            "auth": ("POST", "/auth/login", None, {"json": ACCOUNT}),
            "storage": ("GET", "/storage/buckets/private/objects", "service", {}),
            "tables": ("GET", "/dev/db/main/rest/kept", "service", {}),
        }
        waiting = [start(self._status(*one)) for one in asked.values()]
        return dict(zip(asked, await gatherResults(waiting), strict=True))

    async def _status(self, method: str, path: str, key: str | None, more: dict[str, Any]) -> int:
        status, headers, body = await self.api.request(method, path, key=key, **more)
        # A statement ended by its time limit is PostgREST's 500; whatever else is away says when to come back.
        timed_out = status == 500 and isinstance(body, dict) and body.get("code") == "57014"
        assert status < 500 or timed_out or headers.hasHeader("Retry-After")
        return status


WELL = {"auth": 200, "storage": 200, "tables": 200}


@pytest.fixture(scope="module")
def short_guard() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connecting, "GUARD_MARGIN_SECONDS", MARGIN_SECONDS)
        yield


@pytest.fixture(scope="module")
def shaken(
    short_guard: None,
    services: Services,
    module_database: str,
    store_settings: Store,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shaken]:
    run_sql(module_database, "create table public.kept as select 7 as n")
    known = parse_dsn(module_database)
    limits = {"acquire_timeout_seconds": ACQUIRE_SECONDS, "statement_timeout_seconds": STATEMENT_SECONDS}
    stages = {"dev": Stage(databases={"main": StageDatabase(pool_size=POOL_SIZE)})}
    directory = Path(tmp_path_factory.mktemp("shaken"))
    with held_open(rude_proxy(f"unix:{known['host']}/.s.PGSQL.{known['port']}")) as (proxy, port):
        dsn = str(make_dsn(module_database, host="127.0.0.1", port=port))
        settings = settings_for(dsn, store_settings, directory, database=limits)
        with held_open(serving(evolve(settings, stages=stages))) as api:
            wait(lambda: api.sign_up(ACCOUNT["email"], ACCOUNT["password"]))
            yield Shaken(api, proxy, module_database, services.admin_dsn(module_database))
            proxy.manners = Manners()


async def bounded(waiting: Deferred[Any]) -> Any:
    """Fails if ``waiting`` takes longer than the configured timeouts allow."""
    return await within(BOUND_SECONDS, waiting)


async def well(shaken: Shaken) -> bool:
    status, _, _ = await shaken.api.request("GET", "/ready", key=None)
    return status == 200 and await shaken.kinds() == WELL


@pytest_twisted.ensureDeferred
async def test_terminated_connections_are_replaced_and_listening_goes_on(shaken: Shaken) -> None:
    await until(lambda: well(shaken))
    asking = [start(shaken.kinds()) for _ in range(10)]
    assert shaken.terminate_all() > 2
    for statuses in await bounded(gatherResults(asking)):
        assert set(statuses.values()) <= {200, 503, 504}
    await until(lambda: well(shaken))
    # Notifications are received again: a new table is known.
    run_sql(shaken.dsn, "create table public.later as select 1 as n; notify pgrst, 'reload schema'")

    async def known() -> bool:
        status, _, _ = await shaken.api.request("GET", "/dev/db/main/rest/later", key="service")
        return status == 200

    await until(known)


def fill(held: ExitStack, dsn: str) -> None:
    """Takes all connections that the server has for ordinary users."""
    while True:
        try:
            held.enter_context(closing(psycopg2.connect(dsn)))
        except psycopg2.OperationalError as fault:
            if "remaining connection slots" in str(fault):
                return
            raise


@pytest_twisted.ensureDeferred
async def test_a_server_that_accepts_no_more_connections(shaken: Shaken) -> None:
    await until(lambda: well(shaken))
    with ExitStack() as held:
        fill(held, shaken.dsn)
        # The connections that the service has go on working.
        assert await bounded(start(shaken.kinds())) == WELL

        async def refused() -> bool:
            shaken.terminate_all()
            fill(held, shaken.dsn)
            statuses = await bounded(start(shaken.kinds()))
            assert set(statuses.values()) <= {200, 503, 504}
            return 200 not in statuses.values()

        # It may take several attempts, since the service may reconnect faster than the test.
        await until(refused)
    await until(lambda: well(shaken))


@pytest_twisted.ensureDeferred
async def test_statements_that_hang_are_ended_and_do_not_delay_other_parts(shaken: Shaken) -> None:
    await until(lambda: well(shaken))
    with closing(psycopg2.connect(shaken.dsn)) as rival:
        rival.cursor().execute("lock table public.kept in access exclusive mode")
        # One for each slot; one more would wait for a slot, and be refused as ``overloaded``.
        hanging = [
            start(shaken.api.request("GET", "/dev/db/main/rest/kept", key="service"))
            for _ in range(POOL_SIZE + EXTRA_SLOTS)
        ]
        statuses = await bounded(start(shaken.kinds()))
        assert statuses["tables"] >= 500
        assert {**statuses, "tables": 200} == WELL
        for status, _, body in await bounded(gatherResults(hanging)):
            # Either statement_timeout ended it, or no connection was free.
            assert (status, body["code"]) in {(500, "57014"), (503, "57014"), (504, "PGRST003")}, body
    assert await shaken.kinds() == WELL


@pytest_twisted.ensureDeferred
async def test_a_silent_database_is_503_in_time(shaken: Shaken) -> None:
    """Nothing tells of a host that is switched off; only the service's own time limits do."""
    await until(lambda: well(shaken))
    shaken.proxy.manners = Manners(silent=True)
    statuses = await bounded(start(shaken.kinds()))
    assert set(statuses.values()) <= {503, 504}
    # Without any connection it is 503 in all parts: PostgREST's clients retry that, and no 504.
    shaken.proxy.manners = Manners(refuse=True)

    async def refused() -> bool:
        statuses = await bounded(start(shaken.kinds()))
        assert set(statuses.values()) <= {503, 504}
        return set(statuses.values()) == {503}

    await until(refused)
    _, _, body = await shaken.api.request("GET", "/dev/db/main/rest/kept", key="service")
    assert body["code"] == "PGRST000"
    shaken.proxy.manners = Manners()
    await until(lambda: well(shaken))
