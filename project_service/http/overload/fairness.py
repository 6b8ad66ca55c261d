"""Decides which client of a queue is next, so that no client can occupy the whole queue.

The queue is in the order in which requests came. Of clients that have as much under way, whoever came first is next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar


class Request(Protocol):
    @property
    def who(self) -> str:
        """The client."""


R = TypeVar("R", bound=Request)


def next_of(queue: Collection[R], served: Mapping[str, int], most: int) -> R | None:
    """The first request of the client that has the fewest ``served``; None where all have ``most``."""
    least = min(queue, key=lambda request: served.get(request.who, 0), default=None)
    return least if least is not None and served.get(least.who, 0) < most else None


def before(who: str, queue: Collection[Request]) -> int:
    """How many of ``queue`` are served before another request of ``who`` if clients take turns."""
    counts = Counter(request.who for request in queue)
    mine = counts.pop(who, 0)
    return mine + sum(min(count, mine + 1) for count in counts.values())


def gives_way(who: str, queue: Collection[R]) -> R | None:
    """The last request of the client that has most in ``queue``; None where that is not more than ``who`` would
    have."""
    counts = Counter(request.who for request in queue)
    most = max(counts, key=counts.__getitem__, default=who)
    if counts[most] <= counts[who] + 1:
        return None
    return next(request for request in reversed(list(queue)) if request.who == most)
