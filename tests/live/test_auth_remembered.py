"""The cache of users: it hears of changes wherever they are made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted

from project_service.auth.remembered import CHANNEL
from project_service.settings.model import Store
from tests.live.application import Api
from tests.live.auth_service import PASSWORD, Told, all_of, api_on, heard, listening, post, sql
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
async def test_what_one_process_changes_another_shows(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    """Of another host, say: there is nothing but the database between them."""
    async with (
        api_on(database, store_settings, tmp_path) as one,
        api_on(database, store_settings, tmp_path) as other,
    ):
        token = (await one.sign_up("ada@example.test"))["access_token"]
        for number in range(10):
            await change(one, token, {"number": number})
            assert await shown(one, token) == {"number": number}
            await until_shown(other, token, {"number": number})
        sql(database, 'update auth.users set metadata = \'{"by": "SQL"}\'')
        for api in (one, other):
            await until_shown(api, token, {"by": "SQL"})


@pytest_twisted.ensureDeferred
async def test_what_changes_is_shown_although_no_notification_arrives(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    sql(database, "drop trigger user_changed on auth.users")
    async with (
        api_on(database, store_settings, tmp_path) as one,
        api_on(database, store_settings, tmp_path) as other,
    ):
        token = (await one.sign_up("ada@example.test"))["access_token"]
        assert await shown(other, token) == {}
        await change(one, token, {"plan": "gold"})
        assert await shown(one, token) == {"plan": "gold"}
        await until_shown(other, token, {"plan": "gold"})


@pytest_twisted.ensureDeferred
async def test_nobody_is_shown_less_than_somebody_before_him(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        token = (await api.sign_up("ada@example.test"))["access_token"]
        seen = [-1]

        async def look() -> None:
            for _ in range(60):
                least = max(seen)
                seen.append((await shown(api, token)).get("number", -1))
                assert seen[-1] >= least

        async def count() -> None:
            for number in range(20):
                await change(api, token, {"number": number})
                assert await shown(api, token) == {"number": number}

        await all_of(count(), look(), look(), look())
    assert len(set(seen)) > 2


@pytest.fixture
def told(database: str) -> Iterator[Told]:
    with listening(database, CHANNEL) as connection:
        yield connection


@pytest_twisted.ensureDeferred
async def test_what_is_shown_of_a_user_is_told_when_it_changes_and_nothing_else(
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
            sql(database, f"update auth.users set {column} = {value}")
            assert heard(told) == [key[-3:]]
        assert (await api.request("DELETE", f"/admin/users/{key}", key="service"))[0] == 200
        assert heard(told) == [key[-3:]]


@pytest_twisted.ensureDeferred
async def test_of_many_at_once_few_are_told(database: str, told: Told) -> None:
    """The queue of notifications is the whole server's."""
    sql(
        database,
        """insert into auth.users (email, email_key)
        select 'a' || n || '@x.test', 'a' || n || '@x.test' from generate_series(1, 20000) n""",
    )
    sql(database, 'update auth.users set metadata = \'{"plan": "gold"}\'')
    texts = heard(told)
    assert len(texts) == len(set(texts)) <= 4096
    assert set(texts) == {
        row[0] for row in sql(database, "select distinct right(id::text, 3) from auth.users")
    }
