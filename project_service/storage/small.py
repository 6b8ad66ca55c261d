"""The bytes of small objects that were read lately, so that they need not be fetched again. Pure."""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

# What an entry takes besides its bytes, rounded up.
ENTRY_BYTES = 512
# One object takes this part of the room at most, so that a single one never pushes out all others.
SHARE = 64


class SmallObjects:
    """At most ``capacity`` bytes, those that were read last; 0 keeps none.

    By version: bytes under a version never change, so nothing here is ever out of date. Whether an object is there,
    who may read it and which version is its own is asked of its row each time.
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
        """The whole object. One that takes more than its share is not kept."""
        size = len(body) + ENTRY_BYTES
        if size * SHARE > self._capacity or version in self._kept:
            return
        self._kept[version] = body
        self._held += size
        while self._held > self._capacity:
            _, oldest = self._kept.popitem(last=False)
            self._held -= len(oldest) + ENTRY_BYTES
