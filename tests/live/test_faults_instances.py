"""Two services on one database and one store behave as one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve, frozen
from twisted.internet.defer import gatherResults
from twisted.internet.task import deferLater

from project_service import keys
from project_service.database.pool import Pool
from project_service.deferreds import start
from project_service.parts import connector
from project_service.settings import Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import wait
from tests.live.tables_service import run_sql

OBJECTS = "/storage/buckets/private/objects"


@frozen
class Two:
    """``here`` is where something is done, ``there`` is where it must be known."""

    here: Api
    there: Api


@pytest.fixture(scope="module")
def two(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Two]:
    settings = settings_for(module_database, store_settings, Path(tmp_path_factory.mktemp("two")))
    settings = evolve(settings, stages={"dev": Stage(databases={"main": StageDatabase(pool_size=2)})})
    stack = AsyncExitStack()
    yield Two(
        wait(lambda: stack.enter_async_context(serving(settings))),
        wait(lambda: stack.enter_async_context(serving(settings))),
    )
    wait(stack.aclose)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    from twisted.internet import reactor

    deadline = reactor.seconds() + 20
    while not await condition():
        assert reactor.seconds() < deadline, "it never came to that"
        await deferLater(reactor, 0.02, lambda: None)


@pytest_twisted.ensureDeferred
async def test_a_key_that_is_made_and_revoked(two: Two) -> None:
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
async def test_a_key_that_is_revoked_although_no_notification_arrives(two: Two) -> None:
    """As behind a listening connection that died without a sign."""
    made = keys.make("service", secrets.token_bytes)

    async def counts(expected: int) -> bool:
        status, _, _ = await two.there.request("GET", OBJECTS, key=made)
        return bool(status == expected)

    digest = keys.digest(made).hex()
    run_sql(two.here.dsn, f"insert into auth.project_keys (kind, sha256) values ('service', '\\x{digest}')")
    await until(lambda: counts(200))
    run_sql(two.here.dsn, "alter table auth.project_keys disable trigger announce")
    try:
        run_sql(two.here.dsn, f"update auth.project_keys set revoked_at = now() where sha256 = '\\x{digest}'")
        await until(lambda: counts(401))
    finally:
        run_sql(two.here.dsn, "alter table auth.project_keys enable trigger announce")


@pytest_twisted.ensureDeferred
async def test_a_session_that_ends(two: Two) -> None:
    session = await two.here.sign_up("two@example.test")
    token = session["access_token"]

    async def known(part: str) -> tuple[int, str]:
        asked = {"auth": "/auth/user", "storage": OBJECTS, "tables": "/dev/db/main/rest/"}
        status, _, body = await two.there.request("GET", asked[part], token=token)
        if status == 200:
            return status, ""
        return status, str(body["code"] if part == "tables" else body["error"]["code"])

    for part in ("auth", "storage", "tables"):
        assert await known(part) == (200, "")
    assert (await two.here.request("POST", "/auth/logout", token=token))[0] == 200

    async def refused() -> bool:
        return all([await known(part) == (401, "session_revoked") for part in ("auth", "storage", "tables")])

    await until(refused)
    refresh = {"refresh_token": session["refresh_token"]}
    assert (await two.there.request("POST", "/auth/refresh", json=refresh))[0] == 401


@pytest_twisted.ensureDeferred
async def test_a_single_use_link_is_good_for_one_of_many_at_both(two: Two) -> None:
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
async def test_a_table_and_a_bucket_that_change(two: Two) -> None:
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
