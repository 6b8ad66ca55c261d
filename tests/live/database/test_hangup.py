"""A client that hangs up never hands its database role to the next caller."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.task import deferLater

from project_service.lifecycle import start
from project_service.settings.model import Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.sql import run_sql
from tests.live.waiting import until

SCHEMA = """
create table notes (id int generated always as identity primary key, author text not null default current_user);
grant select, insert, update, delete on notes to anon, authenticated;
create view who as
  select current_user::text as role, auth.uid() as uid;
create view slowly as
  select w.*, pg_sleep(random() * 0.02) is null as slept from who w, generate_series(1, 2);
grant select on who, slowly to anon, authenticated;
"""
HANG_UPS = 120


@pytest_twisted.async_yield_fixture
async def api(database: str, store_settings: Store, tmp_path: Path) -> AsyncIterator[Api]:
    run_sql(database, SCHEMA)
    settings = settings_for(database, store_settings, tmp_path)
    # With only two connections, what one caller leaves behind in one reaches the next.
    stages = {"dev": Stage({"main": StageDatabase(pool_size=2)})}
    async with serving(evolve(settings, stages=stages)) as running:
        yield running


async def hang_up_after(api: Api, request: bytes, seconds: float) -> None:
    """Send ``request`` and break the connection off, whatever has been received by then."""
    client: Any = await connectProtocol(TCP4ClientEndpoint(api.reactor, "127.0.0.1", api.port), Protocol())
    client.transport.write(request)
    await deferLater(api.reactor, seconds, lambda: None)
    client.transport.abortConnection()


def raw(api: Api, token: str, method: str, target: str, body: bytes = b"") -> bytes:
    return (
        f"{method} /dev/db/main/rest/{target} HTTP/1.1\r\nHost: a\r\nX-Service-Key: {api.anon_key}\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


@pytest.mark.parametrize("seed", [1, 2])
@pytest_twisted.ensureDeferred
async def test_no_request_ever_runs_under_the_role_of_another(api: Api, seed: int) -> None:
    chance = random.Random(seed)
    session = await api.sign_up(f"ann{seed}@example.test")
    token, user_id = session["access_token"], session["user"]["id"]
    as_user = [
        raw(api, token, "GET", "slowly"),
        raw(api, token, "POST", "notes", b"[{}, {}, {}]"),
        raw(api, token, "PATCH", "notes?id=gt.0", b'{"author": "someone"}'),
        raw(api, token, "DELETE", "notes?id=lt.0"),
    ]
    pending: list[Deferred[Any]] = []
    for _ in range(HANG_UPS):
        pending.append(start(hang_up_after(api, chance.choice(as_user), chance.random() * 0.02)))
        status, _, rows = await api.request("GET", "/dev/db/main/rest/who?select=role,uid")
        assert status == 200, rows
        assert rows == [{"role": "anon", "uid": None}], rows
    await gatherResults(pending)

    # The connections still work afterwards, for the user too.
    _, _, rows = await api.request("GET", "/dev/db/main/rest/who?select=role,uid", token=token)
    assert rows == [{"role": "authenticated", "uid": user_id}]
    in_transactions = (
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and state like 'idle in transaction%' and pid <> pg_backend_pid()"
    )
    # The schema may just be read again, in a transaction.
    await until(lambda: run_sql(api.dsn, in_transactions) == [(0,)])
