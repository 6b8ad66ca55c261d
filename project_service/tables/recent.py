"""What was worked out for earlier requests and is kept for later ones, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

# More than an application's own requests are written in; a thousand of them are a few megabytes.
MOST = 8192

V = TypeVar("V")


class Recent(Generic[V]):
    """The values used last, at most ``capacity`` of them.

    What clients send makes the keys and values, so both are bounded: ``made`` keeps nothing whose key is written in
    more than ``MOST`` characters, nor whose value ``weigh`` finds heavier.
    """

    def __init__(self, capacity: int, weigh: Callable[[V], int] = lambda value: 0) -> None:
        self._capacity = capacity
        self._weigh = weigh
        # Two generations: what is asked for in the older one moves to the younger, and what is left there when that
        # is full is forgotten. A hit costs one look, where a list in order of use would cost three.
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
        found = self.get(key)
        if found is None:
            found = make()
            if len(repr(key)) <= MOST and self._weigh(found) <= MOST:
                self._put(key, found)
        return found
