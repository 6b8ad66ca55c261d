"""A bounded cache of what was worked out for earlier requests."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

# Longer keys and heavier values are not kept. Ordinary requests are shorter; a thousand entries take a few megabytes.
MOST = 8192

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Keeps the values that were used last, at most ``capacity`` of them.

    Since clients determine keys and values, both are limited in size: ``made`` keeps nothing whose key has more than
    ``MOST`` characters, or whose value weighs more than that by ``weigh``.
    """

    def __init__(self, capacity: int, weigh: Callable[[V], int] = lambda value: 0) -> None:
        self._capacity = capacity
        self._weigh = weigh
        # Two generations of half the capacity each. A value that is used moves from the old to the young one; when
        # the young one is full it becomes the old one, and what was left in that is forgotten. A hit costs one
        # lookup; keeping a list in the order of use would cost three.
        self._young: dict[Hashable, V] = {}
        self._old: dict[Hashable, V] = {}

    def get(self, key: Hashable) -> V | None:
        found = self._young.get(key)
        if found is None and self._old and (found := self._old.pop(key, None)) is not None:
            self._put(key, found)
        return found

    def _put(self, key: Hashable, value: V) -> None:
        if len(self._young) * 2 >= self._capacity:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def made(self, key: Hashable, make: Callable[[], V]) -> V:
        """The kept value of ``key``, else ``make()``, which is kept if it is small enough."""
        found = self.get(key)
        if found is None:
            found = make()
            if len(repr(key)) <= MOST and self._weigh(found) <= MOST:
                self._put(key, found)
        return found
