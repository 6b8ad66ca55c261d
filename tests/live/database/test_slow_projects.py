"""Slow policies and triggers of the project wait on connections of their own: they keep nobody from signing in."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from project_service.auth.assemble import Auth
from project_service.auth.postgres import Repository
from project_service.lifecycle import start
from project_service.settings.model import Store
from tests.live.application import Api, serving, settings_for
from tests.live.auth.service import PASSWORD, all_of, log_in, post
from tests.live.sql import run_sql
from tests.live.waiting import until

EMAIL = "ada@example.test"
OBJECT = "/storage/buckets/judged/objects/a"
PUBLIC = "/storage/buckets/public/objects/b"
# Waits for whoever holds the lock.
WAITS = (
    "create function public.waits() returns boolean language sql as"
    " 'select pg_advisory_xact_lock(7) is not null';"
)
POLICY = (
    WAITS + "create policy slow on storage.objects to authenticated using (public.waits()) with check (true)"
)
TRIGGER = (
    WAITS + "create function public.held() returns trigger language plpgsql as $$ begin"
    " perform public.waits(); return new; end $$;"
    "create trigger held after insert on auth.users for each row execute function public.held()"
)


async def downloads(api: Api, token: str) -> list[Deferred[Any]]:
    return [start(api.request("GET", OBJECT, token=token)) for _ in range(6)]


async def signups(api: Api, token: str) -> list[Deferred[Any]]:
    return [
        start(post(api, "/auth/signup", {"email": f"u{number}@example.test", "password": PASSWORD}))
        for number in range(6)
    ]


@pytest.mark.parametrize(
    ("sql", "asked"), [(POLICY, downloads), (TRIGGER, signups)], ids=("policy", "trigger")
)
@pytest_twisted.ensureDeferred
async def test_slow_sql_of_the_project_keeps_nobody_from_signing_in(
    database: str, store_settings: Store, tmp_path: Path, sql: str, asked: Any
) -> None:
    # Less than the statements may take that wait for the lock.
    limits = {"pool_size": 2, "policy_pool_size": 2, "acquire_timeout_seconds": 20.0}
    settings = settings_for(database, store_settings, tmp_path, database=limits)
    async with serving(settings) as api:
        token = (await api.sign_up(EMAIL))["access_token"]
        made = {"name": "judged", "visibility": "private", "policies": True}
        assert (await api.request("POST", "/admin/buckets", key="service", json=made))[0] == 201
        assert (await api.request("PUT", OBJECT, key="service", data=b"x"))[0] == 201
        assert (await api.request("PUT", PUBLIC, token=token, data=b"y"))[0] == 201
        run_sql(database, sql)
        if sql is TRIGGER:
            await until(lambda: "auth.users insert" in triggers(api))
        with held(database):
            slow = await asked(api, token)
            await until(lambda: waiting(database) == 2)
            for status, _ in await all_of(*(log_in(api, EMAIL) for _ in range(4))):
                assert status == 200
            assert (await api.request("GET", "/auth/user", token=token))[0] == 200
            assert (await api.request("GET", PUBLIC))[0] == 200
        for one in slow:
            await one


def triggers(api: Api) -> Collection[str]:
    """What the service knows of the project's triggers. Without event triggers it looks for changes now and then."""
    assert api.application._assembled is not None
    (accounts,) = [part.accounts for part in api.application._assembled.mounted if isinstance(part, Auth)]
    assert isinstance(accounts.repository, Repository) and accounts.repository.actor is not None
    known = accounts.repository.actor.trust()
    return known.triggers if known.clean else ()


def waiting(database: str) -> int:
    """How many connections wait for the lock."""
    return len(run_sql(database, "select 1 from pg_locks where locktype = 'advisory' and not granted"))


@contextmanager
def held(database: str) -> Iterator[None]:
    """Holds the lock for as long as the block lasts."""
    with closing(psycopg2.connect(database)) as connection:
        connection.cursor().execute("select pg_advisory_lock(7)")
        yield
