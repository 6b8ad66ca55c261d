"""The cache of users behind ``GET /auth/user``: processes learn of changes wherever they are made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted

from project_service.auth.remembered import CHANNEL
from project_service.settings.model import Store
from tests.live.application import Api
from tests.live.auth_service import PASSWORD, Told, all_of, api_on, heard, listening, post
from tests.live.database import run_sql
from tests.live.waiting import until


async def shown(api: Api, token: str) -> Any:
    status, _, answer = await api.request("GET", "/auth/user", key=None, token=token)
    assert status == 200, answer
    return answer["data"]["user"]["metadata"]


async def until_shown(api: Api, token: str, metadata: Any) -> None:
    async def is_shown() -> bool:
        return bool(await shown(api, token) == metadata)

    await until(is_shown)


async def change(api: Api, token: str, metadata: Any) -> None:
    body = {"metadata": metadata}
    assert (await api.request("PATCH", "/auth/user", key=None, token=token, json=body))[0] == 200


@pytest_twisted.ensureDeferred
async def test_a_change_in_one_process_is_shown_by_another(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    """They may be on different hosts: they share only the database."""
    async with (
        api_on(database, store_settings, tmp_path) as one,
        api_on(database, store_settings, tmp_path) as other,
    ):
        token = (await one.sign_up("ada@example.test"))["access_token"]
        for number in range(10):
            await change(one, token, {"number": number})
            assert await shown(one, token) == {"number": number}
            await until_shown(other, token, {"number": number})
        run_sql(database, 'update auth.users set metadata = \'{"by": "SQL"}\'')
        for api in (one, other):
            await until_shown(api, token, {"by": "SQL"})


@pytest_twisted.ensureDeferred
async def test_a_change_is_shown_even_if_notifications_are_lost(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    run_sql(database, "drop trigger user_changed on auth.users")
    async with (
        api_on(database, store_settings, tmp_path) as one,
        api_on(database, store_settings, tmp_path) as other,
    ):
        token = (await one.sign_up("ada@example.test"))["access_token"]
        assert await shown(other, token) == {}
        await change(one, token, {"plan": "gold"})
        assert await shown(one, token) == {"plan": "gold"}
        await until_shown(other, token, {"plan": "gold"})


LAST = 19


@pytest_twisted.ensureDeferred
async def test_a_client_never_sees_an_older_value_than_another_before(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        token = (await api.sign_up("ada@example.test"))["access_token"]
        seen = [-1]

        async def look() -> None:
            while seen[-1] < LAST:
                least = max(seen)
                seen.append((await shown(api, token)).get("number", -1))
                assert seen[-1] >= least

        async def count() -> None:
            for number in range(LAST + 1):
                await change(api, token, {"number": number})
                assert await shown(api, token) == {"number": number}

        await all_of(count(), look(), look(), look())
    assert len(set(seen)) > 2


@pytest.fixture
def told(database: str) -> Iterator[Told]:
    with listening(database, CHANNEL) as connection:
        yield connection


@pytest_twisted.ensureDeferred
async def test_notifications_are_sent_for_what_is_shown_of_a_user_and_for_nothing_else(
    database: str, store_settings: Store, tmp_path: Path, told: Told
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        session = await api.sign_up("ada@example.test")
        key, token = session["user"]["id"], session["access_token"]
        assert (await post(api, "/auth/login", {"email": "ada@example.test", "password": PASSWORD}))[0] == 200
        assert heard(told) == []
        await change(api, token, {"plan": "gold"})
        assert heard(told) == [key[-3:]]
        for body in ({"disabled": True}, {"disabled": False}):
            assert (await api.request("PATCH", f"/admin/users/{key}", key="service", json=body))[0] == 200
            assert heard(told) == [key[-3:]]
        for column, value in (("email", "'eve@example.test'"), ("created_at", "now()")):
            run_sql(database, f"update auth.users set {column} = {value}")
            assert heard(told) == [key[-3:]]
        assert (await api.request("DELETE", f"/admin/users/{key}", key="service"))[0] == 200
        assert heard(told) == [key[-3:]]


@pytest_twisted.ensureDeferred
async def test_many_changes_at_once_send_few_notifications(database: str, told: Told) -> None:
    """All databases of a server share one queue of notifications."""
    run_sql(
        database,
        """insert into auth.users (email, email_key)
        select 'a' || n || '@x.test', 'a' || n || '@x.test' from generate_series(1, 20000) n""",
    )
    run_sql(database, 'update auth.users set metadata = \'{"plan": "gold"}\'')
    texts = heard(told)
    assert len(texts) == len(set(texts)) <= 4096
    assert set(texts) == {
        row[0] for row in run_sql(database, "select distinct right(id::text, 3) from auth.users")
    }
