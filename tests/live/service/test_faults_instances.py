"""Two services on one database and one store behave as one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve, frozen
from twisted.internet.defer import gatherResults
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from zope.interface import provider

from project_service import keys
from project_service.database.connecting import connector
from project_service.database.locks import SWEEPER
from project_service.database.migrate import Migration, MigrationRefused, migrate, shipped
from project_service.database.pool import Pool
from project_service.http.caller import digest
from project_service.lifecycle import start
from project_service.settings.model import Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open
from tests.live.sql import run_sql
from tests.live.waiting import until

OBJECTS = "/storage/buckets/private/objects"


@frozen
class Two:
    """Two services: something is done at ``here``, and must be known at ``there``."""

    here: Api
    there: Api


@pytest.fixture(scope="module")
def two(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Two]:
    directory = Path(tmp_path_factory.mktemp("two"))
    settings = settings_for(
        module_database,
        store_settings,
        directory,
        storage={"sweep_seconds": 0.05},
        # Nothing is refused while a migration changes the tables, however slow the machine is.
        database={"acquire_timeout_seconds": 60.0},
    )
    settings = evolve(settings, stages={"dev": Stage(databases={"main": StageDatabase(pool_size=2)})})
    with held_open(serving(settings)) as here, held_open(serving(settings)) as there:
        yield Two(here, there)


@pytest_twisted.ensureDeferred
async def test_a_key_made_and_revoked_at_one_is_known_at_the_other(two: Two) -> None:
    from twisted.internet import reactor

    made = keys.make("service", secrets.token_bytes)
    pool = Pool(connector(reactor, two.here.settings), 1, 5.0, reactor)

    async def counts(expected: int) -> bool:
        answers = await gatherResults(
            [start(api.request("GET", OBJECTS, key=made)) for api in (two.here, two.there)]
        )
        return all(status == expected for status, _, _ in answers)

    try:
        assert await counts(401)
        record = await keys.store(pool, "service", made)
        await until(lambda: counts(200))
        assert await keys.revoke(pool, record.id)
        await until(lambda: counts(401))
    finally:
        await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_revoked_key_is_refused_even_if_no_notification_arrives(two: Two) -> None:
    """For instance if the listening connection has died without a sign."""
    made = keys.make("service", secrets.token_bytes)

    async def counts(expected: int) -> bool:
        status, _, _ = await two.there.request("GET", OBJECTS, key=made)
        return bool(status == expected)

    sha256 = digest(made).hex()
    run_sql(two.here.dsn, f"insert into auth.project_keys (kind, sha256) values ('service', '\\x{sha256}')")
    await until(lambda: counts(200))
    run_sql(two.here.dsn, "alter table auth.project_keys disable trigger announce")
    try:
        run_sql(two.here.dsn, f"update auth.project_keys set revoked_at = now() where sha256 = '\\x{sha256}'")
        await until(lambda: counts(401))
    finally:
        run_sql(two.here.dsn, "alter table auth.project_keys enable trigger announce")


@pytest_twisted.ensureDeferred
async def test_a_single_use_link_works_once_across_both(two: Two) -> None:
    path = f"{OBJECTS}/once"
    assert (await two.here.request("PUT", path, key="service", data=b"only once"))[0] == 201
    status, _, body = await two.here.request(
        "POST", "/storage/buckets/private/presign", key="service", json={"key": "once"}
    )
    assert status == 200
    link = body["url"].removeprefix(two.here.base_url)
    answers: list[Any] = await gatherResults(
        [start(api.request("GET", link, key=None)) for api in (two.here, two.there) * 5]
    )
    assert sorted(status for status, _, _ in answers) == [200] + [410] * 9
    assert [body for status, _, body in answers if status == 200] == [b"only once"]


@pytest_twisted.ensureDeferred
async def test_one_sweeps_at_a_time(two: Two) -> None:
    """While a lock stands for another sweeper neither of the two sweeps; afterwards one of them does."""
    expired = (
        "insert into storage.links values ('\\x00', 'private', 'k', now() - interval '2 days', 1) returning 1"
    )
    left_alone = 0

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        nonlocal left_alone
        left_alone += formatEvent(event) == "another process sweeps"

    async def enough() -> bool:
        return left_alone > 20

    async def swept() -> bool:
        return run_sql(two.here.dsn, "select 1 from storage.links where expires_at < now()") == []

    with closing(psycopg2.connect(two.here.dsn)) as other:
        other.autocommit = True

        async def locked() -> bool:
            cursor = other.cursor()
            cursor.execute("select pg_try_advisory_lock(%s)", (SWEEPER,))
            return cursor.fetchall() == [(True,)]

        # The services run in this very process, and one of them may be sweeping just now.
        await until(locked)
        run_sql(two.here.dsn, expired)
        globalLogPublisher.addObserver(observe)
        try:
            await until(enough)
        finally:
            globalLogPublisher.removeObserver(observe)
        assert not await swept()
    await until(swept)


@pytest_twisted.ensureDeferred
async def test_new_migrations_while_the_old_program_serves(two: Two) -> None:
    """As in a rolling upgrade: the old program goes on serving, but does not start on the newer database."""
    from twisted.internet import reactor

    newer = (*shipped(), Migration(9999, "9999_later.sql", LATER))
    asking = [start(_asked(api)) for api in (two.here, two.there) * 5]
    session = await connector(reactor, two.here.settings)()
    try:
        assert [one.name for one in await migrate(session, newer)] == ["9999_later.sql"]
        for answer in (*await gatherResults(asking), await _asked(two.here), await _asked(two.there)):
            assert answer == [200, 201, 200, 200]
        with pytest.raises(MigrationRefused, match="newer than this program"):
            await migrate(session, shipped())
        run_sql(two.here.dsn, "delete from _project_service.migrations where number = 9999")
    finally:
        session.close()


# A migration that keeps the rule for rolling upgrades: it only adds.
LATER = """
alter table storage.objects add column note text;
alter table auth.users add column nickname text;
create index users_nickname on auth.users (nickname);
create table auth.later (id int primary key);
"""


async def _asked(api: Api) -> list[int]:
    """The statuses of a write and of reads in all parts."""
    email = f"{secrets.token_hex(8)}@example.test"
    path = f"{OBJECTS}/{secrets.token_hex(8)}"
    await api.sign_up(email)
    account = {"email": email, "password": "a long enough one"}
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/auth/login", {"json": account}),
        ("PUT", path, {"data": b"x", "key": "service"}),
        ("GET", path, {"key": "service"}),
        ("GET", "/dev/db/main/rest/", {"key": "service"}),
    ]
    return [(await api.request(method, target, **more))[0] for method, target, more in asked]


@pytest_twisted.ensureDeferred
async def test_changes_of_tables_and_buckets_are_known_at_the_other(two: Two) -> None:
    rest = "/dev/db/main/rest/fresh"
    assert (await two.there.request("GET", rest, key="service"))[0] == 404
    run_sql(two.here.dsn, "create table public.fresh as select 1 as n; notify pgrst, 'reload schema'")

    async def has_rows() -> bool:
        answers = [await api.request("GET", rest, key="service") for api in (two.here, two.there)]
        return all((status, body) == (200, [{"n": 1}]) for status, _, body in answers)

    await until(has_rows)
    bucket = "/admin/buckets/public"
    seen = "/storage/buckets/public/objects/seen"
    assert (await two.there.request("PUT", seen, key="service"))[0] == 201
    assert (await two.there.request("GET", seen))[0] == 200
    body = json.dumps({"visibility": "private"}).encode()
    status, _, _ = await two.here.request(
        "PATCH", bucket, key="service", data=body, headers={"Content-Type": "application/json"}
    )
    assert status == 200

    async def closed() -> bool:
        return (await two.there.request("GET", seen))[0] == 401

    await until(closed)
