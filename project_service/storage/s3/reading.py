"""Reading the store: whole objects, everything that it has, and small objects that were read lately."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from attrs import field, frozen
from cachetools import LRUCache

from project_service.storage.s3.client import S3Store
from project_service.storage.s3.connection import ObjectStream
from project_service.storage.s3.errors import SAME_PAGE, StoreUnreachable
from project_service.storage.s3.xml import StoredPage

# The memory that a cached object takes besides its bytes, rounded up.
ENTRY_BYTES = 512
# An object may take at most one part in so many of the capacity, so that a single one never pushes out all others.
SHARE = 64


class SmallObjects:
    """The bytes of small objects that were read lately, at most ``capacity`` in all; with 0 none.

    They are cached by version, and the bytes of a version never change, so they are never out of date. Whether the
    object exists, who may read it and which version it has is decided by its row each time.
    """

    def __init__(self, capacity: int) -> None:
        self._largest = capacity // SHARE
        self._bodies: LRUCache[UUID, bytes] = LRUCache(capacity, lambda body: len(body) + ENTRY_BYTES)
        self.get = self._bodies.get

    def add(self, version: UUID, body: bytes) -> None:
        """Cache ``body``, the whole object, unless it takes more than its share."""
        if len(body) + ENTRY_BYTES <= self._largest:
            self._bodies[version] = body


async def read_all(stream: ObjectStream) -> bytes:
    """All bytes of ``stream``. Raises ``BrokenRead`` where the store stops before the end."""
    body = stream.buffered()
    if body is not None:
        return body
    gathered = _Gathered()
    await stream.pipe_to(gathered)
    return bytes(gathered.data)


async def list_all(store: S3Store, prefix: str = "") -> AsyncIterator[StoredPage]:
    """Everything that the store has under ``prefix``, page by page.

    Raises ``StoreUnreachable`` where a page comes twice, as from a store that ignores where to go on: there would be
    no end.
    """
    page = await store.list(prefix, None)
    yield page
    while page.next_token is not None:
        following = await store.list(prefix, page.next_token)
        # Pages without objects may follow each other, as long as they lead somewhere.
        if following.objects == page.objects and (page.objects or following.next_token == page.next_token):
            raise StoreUnreachable(SAME_PAGE)
        page = following
        yield page


@frozen(eq=False)
class _Gathered:
    """A ``ByteSink`` in memory. It needs no back-pressure, as only small objects are read with it."""

    data: bytearray = field(factory=bytearray, init=False)

    def write(self, data: bytes) -> None:
        self.data.extend(data)

    def take(self, source: int, limit: int) -> int:
        return 0

    def register_producer(self, producer: Any) -> None:
        return

    def unregister_producer(self) -> None:
        return


# How often to read the row of an object whose bytes are gone. Each time it must have been overwritten between the two
# reads; the limit is for a store whose new objects appear late while somebody keeps overwriting one.
MAX_READS = 5


class ObjectLost(Exception):
    """A row names a version whose bytes are not in the store. ``project-service storage verify`` lists such rows."""
