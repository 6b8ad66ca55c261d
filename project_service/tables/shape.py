"""The shape of a request: everything but the operands of its filters, its arguments and its body.

Requests of one shape are answered by one plan; only the parameters differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from project_service.tables.parse.filters import shape_of_filter
from project_service.tables.parse.payload import Payload
from project_service.tables.parse.query import is_argument, refuse_nul

# Parameters whose values are part of the shape: by name, and of embedded relations too.
_WHOLE = ("select", "columns", "on_conflict")
_WHOLE_ANYWHERE = ("order", "limit", "offset", "and", "or")

# More than an application's own requests are written in; a thousand of them are a few megabytes.
MOST = 8192

V = TypeVar("V")


def shape_of_query(pairs: Sequence[tuple[str, str]], arguments: bool) -> tuple[Hashable, list[str]]:
    """The shape and the operands, numbered as ``parse_query`` numbers them. Raises PGRST100."""
    shape: list[tuple[str, str]] = []
    operands: list[str] = []
    for name, value in pairs:
        refuse_nul(name, value)
        if name in _WHOLE:
            shape.append((name, value))
            continue
        if arguments and is_argument(name, value):
            shape.append((name, "="))
            operands.append(value)
            continue
        if name.rpartition(".")[2] in _WHOLE_ANYWHERE:
            shape.append((name, value))
            continue
        found = shape_of_filter(value)
        if found is None:
            shape.append((name, "." + value))
        else:
            shape.append((name, found[0]))
            operands.append(found[1])
    return tuple(shape), operands


def shape_of_payload(payload: Payload | None) -> Hashable | None:
    """None where the body is part of the plan itself."""
    if payload is None:
        return ()
    if payload.kind != "json":
        return None
    return (payload.media, payload.keys, payload.is_array, payload.is_empty, payload.is_mixed)


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
            self.put(key, found)
        return found

    def put(self, key: Hashable, value: V) -> None:
        if len(self._young) * 2 >= self._capacity:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def made(self, key: Hashable, make: Callable[[], V]) -> V:
        found = self.get(key)
        if found is None:
            found = make()
            if len(repr(key)) <= MOST and self._weigh(found) <= MOST:
                self.put(key, found)
        return found
