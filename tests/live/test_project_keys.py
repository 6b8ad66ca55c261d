"""Project keys in the database: listing and revoking."""

from __future__ import annotations

import secrets
import uuid

import pytest_twisted

from project_service import keys
from project_service.database.pool import Pool
from project_service.http.caller import KeyKind
from tests.live.auth_service import reactor
from tests.live.database import connector


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
