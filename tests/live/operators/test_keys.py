"""Project keys over ``/admin/keys``: made, shown once, listed, used, revoked; and who did that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest_twisted

from project_service import keys
from project_service.settings.model import Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import Services
from tests.live.sql import run_sql
from tests.live.waiting import until

ENTRIES = "select actor, action, subject, result, user_agent from auth.audit where subject <> '' order by id"


async def _listed(api: Api) -> dict[str, Any]:
    status, headers, body = await api.request("GET", "/admin/keys", key="service")
    assert (status, headers.getRawHeaders("cache-control")) == (200, ["no-store"])
    return {one["id"]: one for one in body["keys"]}


async def _refused(api: Api, method: str, path: str, **sent: Any) -> tuple[int, str]:
    status, _, body = await api.request(method, path, **{"key": "service", **sent})
    return status, body["error"]["code"]


@pytest_twisted.ensureDeferred
async def test_a_key_is_shown_once_used_and_revoked(
    services: Services, database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        made = {"kind": "service", "label": "the shop"}
        agent = {"User-Agent": "a console"}
        status, _, new = await api.request("POST", "/admin/keys", key="service", json=made, headers=agent)
        assert status == 201
        key = new.pop("key")
        assert keys.well_formed(key)
        assert (new["kind"], new["label"], new["used_at"], new["revoked_at"]) == (
            "service",
            "the shop",
            None,
            None,
        )

        async def works() -> bool:
            return bool((await api.request("GET", "/admin/keys", key=key))[0] == 200)

        await until(works)
        listed = await _listed(api)
        assert listed[new["id"]] == {**new, "current": False}
        assert [one["current"] for one in listed.values()].count(True) == 1
        assert key not in str(listed)
        (own,) = [
            one for one in (await api.request("GET", "/admin/keys", key=key))[2]["keys"] if one["current"]
        ]
        assert own["id"] == new["id"]

        path = f"/admin/keys/{new['id']}"
        assert await _refused(api, "DELETE", path, key=key) == (409, "key_in_use")
        assert await _refused(api, "DELETE", f"{path}?force=false", key=key) == (409, "key_in_use")
        assert (await api.request("DELETE", path, key="service", headers=agent))[0] == 204

        async def refused() -> bool:
            return bool((await api.request("GET", "/admin/keys", key=key))[0] == 401)

        await until(refused)
        assert (await _listed(api))[new["id"]]["revoked_at"] is not None
        assert await _refused(api, "DELETE", path) == (404, "key_not_found")
        assert run_sql(database, ENTRIES) == [
            ("service", "create_key", new["id"], "ok", "a console"),
            ("service", "revoke_key", new["id"], "ok", "a console"),
        ]
        status, _, body = await api.request("GET", f"/admin/audit?subject={new['id']}", key="service")
        entries = body["data"]["entries"]
        assert [one["action"] for one in entries] == ["revoke_key", "create_key"]
        (current,) = [one["id"] for one in (await _listed(api)).values() if one["current"]]
        assert {one["actor_id"] for one in entries} == {current}


@pytest_twisted.ensureDeferred
async def test_the_key_of_the_request_is_revoked_with_force_only(
    services: Services, database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        (own,) = [one["id"] for one in (await _listed(api)).values() if one["current"]]
        assert await _refused(api, "DELETE", f"/admin/keys/{own}") == (409, "key_in_use")
        assert await _refused(api, "DELETE", f"/admin/keys/{own.upper()}") == (409, "key_in_use")
        assert (await api.request("DELETE", f"/admin/keys/{own}?force=true", key="service"))[0] == 204
        assert run_sql(database, f"select revoked_at is null from auth.project_keys where id = '{own}'") == [
            (False,)
        ]


@pytest_twisted.ensureDeferred
async def test_what_is_no_key_is_refused(
    services: Services, database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        wrong: tuple[dict[str, Any], ...] = (
            {},
            {"kind": "root"},
            {"kind": None},
            {"kind": "anon", "label": "a\nb"},
            {"kind": "anon", "label": "x" * 101},
            {"kind": "anon", "label": None},
            {"kind": "anon", "key": "mine"},
        )
        for body in wrong:
            assert await _refused(api, "POST", "/admin/keys", json=body) == (422, "validation_failed"), body
        for path in ("x", "%00", "00000000-0000-4000-8000-000000000000"):
            assert await _refused(api, "DELETE", f"/admin/keys/{path}") == (404, "key_not_found")
        assert await _refused(api, "DELETE", "/admin/keys/x?force=yes") == (422, "validation_failed")
        assert len(await _listed(api)) == 2
        for method, path in (("GET", "/admin/keys"), ("POST", "/admin/keys"), ("DELETE", "/admin/keys/x")):
            refused = await _refused(api, method, path, key="anon", json={} if method == "POST" else None)
            assert refused == (403, "service_key_required")
        assert run_sql(database, ENTRIES) == []
