"""A cache of the bytes of small objects that were read lately. Pure."""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

# The memory that an entry takes besides its bytes, rounded up.
ENTRY_BYTES = 512
# An object may take at most one part in so many of the capacity, so that a single one never pushes out all others.
SHARE = 64


class SmallObjects:
    """Keeps at most ``capacity`` bytes, those that were read last; with 0 none.

    Entries are kept by version, and the bytes of a version never change, so they are never out of date. Whether the
    object exists, who may read it and which version it has is decided by its row each time.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[UUID, bytes] = OrderedDict()
        self._held = 0

    def find(self, version: UUID) -> bytes | None:
        body = self._kept.get(version)
        if body is not None:
            self._kept.move_to_end(version)
        return body

    def keep(self, version: UUID, body: bytes) -> None:
        """Keep ``body``, the whole object, unless it takes more than its share."""
        size = len(body) + ENTRY_BYTES
        if size * SHARE > self._capacity or version in self._kept:
            return
        self._kept[version] = body
        self._held += size
        while self._held > self._capacity:
            _, oldest = self._kept.popitem(last=False)
            self._held -= len(oldest) + ENTRY_BYTES
