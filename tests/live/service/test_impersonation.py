"""What an operator sees with a token that was made to see what somebody sees: tables and storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest_twisted

from project_service.settings.model import Store
from tests.live.application import NOTES, Api, serving, settings_for
from tests.live.services import Services
from tests.live.sql import run_sql

PATH = "/dev/db/main/rest"
WHO = """
create function who() returns jsonb language sql stable as $$
    select jsonb_build_object('role', current_user, 'uid', auth.uid(), 'said', auth.role())
$$;
"""


async def _token(api: Api, user: str | None) -> str:
    status, _, body = await api.request("POST", "/admin/tokens", key="service", json={"user": user})
    assert status == 200, body
    token: str = body["data"]["access_token"]
    return token


async def _words(api: Api, **sent: Any) -> tuple[int, Any]:
    status, _, body = await api.request("GET", f"{PATH}/notes?select=words", **sent)
    return status, body


@pytest_twisted.ensureDeferred
async def test_tables_show_what_the_user_sees(
    services: Services, database: str, store_settings: Store, tmp_path: Path
) -> None:
    run_sql(database, NOTES + WHO)
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        ada, bob = [await api.sign_up(f"{name}@example.test") for name in ("ada", "bob")]
        for session in (ada, bob):
            words = {"words": f"of {session['user']['email']}"}
            put = await api.request("POST", f"{PATH}/notes", token=session["access_token"], json=words)
            assert put[0] == 201
        as_ada, as_nobody = await _token(api, ada["user"]["id"]), await _token(api, None)
        assert await _words(api, key=None, token=as_ada) == (200, [{"words": "of ada@example.test"}])
        assert await _words(api, key="anon", token=as_ada) == (200, [{"words": "of ada@example.test"}])
        assert await _words(api, key=None, token=as_nobody) == (200, [])
        # A key is needed without one, so that nobody takes the anonymous role by leaving everything out.
        assert (await _words(api, key=None))[0] == 401
        assert (await _words(api, key=None, token=ada["access_token"]))[0] == 401

        for sent, said in (
            ({"key": None, "token": as_ada}, ("authenticated", ada["user"]["id"], "authenticated")),
            ({"key": None, "token": as_nobody}, ("anon", None, "anon")),
            ({"key": "anon"}, ("anon", None, "anon")),
        ):
            status, _, body = await api.request("GET", f"{PATH}/rpc/who", **sent)
            assert (status, (body["role"], body["uid"], body["said"])) == (200, said)


@pytest_twisted.ensureDeferred
async def test_storage_shows_what_the_user_sees(
    services: Services, database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        ada, bob = [await api.sign_up(f"{name}@example.test") for name in ("ada", "bob")]
        made = {"name": "diaries", "visibility": "private", "owner_only_reads": True}
        assert (await api.request("POST", "/admin/buckets", key="service", json=made))[0] == 201
        path = "/storage/buckets/diaries/objects/mine.txt"
        put = await api.request("PUT", path, token=ada["access_token"], data=b"secret")
        assert put[0] == 201
        statuses = {}
        for name, user in (("ada", ada["user"]["id"]), ("bob", bob["user"]["id"]), ("nobody", None)):
            token = await _token(api, user)
            statuses[name] = (await api.request("GET", path, key=None, token=token))[0]
        assert statuses == {"ada": 200, "bob": 404, "nobody": 401}
