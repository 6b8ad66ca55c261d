"""The store itself refuses bytes that were changed on their way.

This is not in the store's contract: the store in memory has no way on which bytes could change, and moto checks no
digest. SeaweedFS checks Content-MD5, AWS that and the signed SHA-256; every part of an upload carries both.
"""

from __future__ import annotations

import pytest
import pytest_twisted

from project_service.settings.model import Store
from project_service.storage.s3.errors import NoSuchObject, StoreUnreachable
from tests.live.services import store_client


@pytest_twisted.ensureDeferred
async def test_corrupted_bytes_are_refused_by_the_store(store_settings: Store) -> None:
    store = store_client(store_settings)
    await store.ensure_bucket()
    meant = await store.digest(b"what was meant")
    arrived = await store.digest(b"what arrived  ")
    with pytest.raises(StoreUnreachable) as caught:
        await store.requests.send(
            "PUT",
            "c/corrupt",
            headers={"content-md5": meant.content_md5},
            body=b"what arrived  ",
            digest=arrived.sha256,
        )
    assert str(caught.value) == "BadDigest"
    with pytest.raises(NoSuchObject):
        await store.stat("c/corrupt")
    await store.close()
