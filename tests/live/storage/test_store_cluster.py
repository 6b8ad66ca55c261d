"""The cluster of docs/operating/stores.rst: a volume server is lost, then a whole machine, and no read fails.
``python -m tests.chaos cluster`` does it under load, and makes and spreads copies again by the page's commands."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.threads import deferToThread

from project_service.storage.s3.client import S3Store
from tests.fakes.store import Collected
from tests.live.daemon import eventually
from tests.live.services import store_client, wait
from tests.live.storage.store_cluster import StoreCluster, store_cluster

OBJECTS = {f"photos/{number}": os.urandom(70_000) for number in range(40)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StoreCluster]:
    with store_cluster(tmp_path) as made:
        yield made


@pytest.fixture
def store(cluster: StoreCluster) -> Iterator[S3Store]:
    made = store_client(cluster.settings)
    wait(made.ensure_bucket)
    yield made
    wait(made.close)


class Readers:
    """Reads all objects again and again, four at a time. ``failed`` has what did not have its bytes."""

    def __init__(self, store: S3Store) -> None:
        self._store = store
        self._ended = False
        self.read: Counter[str] = Counter()
        self.failed: list[str] = []
        keys = list(OBJECTS)
        self.ended = gatherResults([Deferred.fromCoroutine(self._go_on(keys[one::4])) for one in range(4)])

    async def _go_on(self, keys: list[str]) -> None:
        while not self._ended:
            for key in keys:
                sink = Collected()
                try:
                    whole = len(OBJECTS[key])
                    await (await self._store.open(key, 0, whole, whole)).pipe_to(sink)
                except Exception as problem:
                    self.failed.append(f"{key}: {problem!r}")
                else:
                    self.read[key] += 1
                    if bytes(sink.data) != OBJECTS[key]:
                        self.failed.append(f"{key} has other bytes")

    def stop(self) -> Deferred[list[None]]:
        self._ended = True
        return self.ended

    def so_often(self, more: int) -> Callable[[], bool]:
        """Whether each object has been read ``more`` times from now on."""
        before = Counter(self.read)
        return lambda: all(self.read[key] >= before[key] + more for key in OBJECTS)


@pytest_twisted.ensureDeferred
async def test_a_volume_server_and_then_a_whole_machine_are_lost(
    cluster: StoreCluster, store: S3Store
) -> None:
    for key, payload in OBJECTS.items():
        await store.put(key, payload, "image/png", {})
    await deferToThread(eventually, lambda: cluster.copies() == {2}, "two copies of every volume")
    readers = Readers(store)
    await deferToThread(cluster.lose, 0, ["volume"])
    await deferToThread(eventually, readers.so_often(3), "reads of all objects")
    await deferToThread(
        eventually, lambda: cluster.addresses[0] not in cluster.volumes(), "the loss is known"
    )
    await _writes(store, "beside a lost volume server")
    await deferToThread(cluster.bring_back, 0, ["volume"])
    await deferToThread(eventually, lambda: cluster.addresses[0] in cluster.volumes(), "it is back")
    await deferToThread(cluster.lose, 1)
    await deferToThread(eventually, readers.so_often(3), "reads of all objects")
    await _writes(store, "beside a lost machine")
    await readers.stop()
    assert readers.failed == []


async def _writes(store: S3Store, name: str) -> None:
    for number in range(10):
        await store.put(f"{name}/{number}", b"bytes", "text/plain", {})
        assert (await store.stat(f"{name}/{number}")).size == 5
