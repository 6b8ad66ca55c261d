"""Project keys in the database: listing and revoking."""

from __future__ import annotations

import secrets
import uuid
from pathlib import Path

import pytest_twisted
from twisted.logger import formatEvent

from project_service import keys
from project_service.database.pool import Pool
from project_service.http.caller import KeyKind
from project_service.settings.model import Store
from tests.captured_log import captured_logs
from tests.live.application import serving, settings_for
from tests.live.auth.service import reactor
from tests.live.sql import connector


@pytest_twisted.ensureDeferred
async def test_keys_are_listed_by_age_and_a_revoked_one_is_refused(database: str) -> None:
    pool = Pool(connector(database), 1, 5.0, reactor)
    kinds: list[KeyKind] = ["anon", "service", "anon", "service", "anon"]
    made = [keys.make(kind, secrets.token_bytes) for kind in kinds]
    ids = [(await keys.store(pool, kind, key, key[-3:])).id for kind, key in zip(kinds, made, strict=True)]
    # The younger key gets the lower id, so that ordering by id would be wrong.
    for age, row in enumerate(sorted(ids)):
        older = "update auth.project_keys set created_at = now() - %s * interval '1 h' where id = %s"
        await pool.query(older, (age, row))
    assert [one.id for one in await keys.listed(pool)] == sorted(ids, reverse=True)

    assert not await keys.revoke(pool, str(uuid.uuid4()))
    assert [await keys.revoke(pool, ids[0]) for _ in range(2)] == [True, False]
    assert [one.id for one in await keys.listed(pool) if one.revoked_at is not None] == [ids[0]]
    ring = keys.KeyRing(pool)
    await ring.reload()
    assert [ring.kind_of(key) for key in made] == [None, *kinds[1:]]
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_keys_are_read_when_a_change_is_announced_and_the_others_work_on(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    pool = Pool(connector(database), 1, 5.0, reactor)
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        with captured_logs() as events:
            for _ in range(3):
                record = await keys.store(pool, "anon", keys.make("anon", secrets.token_bytes))
                assert await keys.revoke(pool, record.id)
                assert {(await api.request("GET", "/dev/db/main/rest/"))[0] for _ in range(30)} == {200}
    said = [str(formatEvent(event)) for event in events]
    assert [line for line in said if "cannot be read" in line] == []
    await pool.close()
