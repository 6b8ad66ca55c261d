"""A queue of callers that wait for a resource: clients in turn, each caller for a bounded time."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from project_service.lifecycle import cancel

T = TypeVar("T")


@frozen(eq=False)
class _Waiter:
    client: str
    size: int
    due: float


class WaitQueue(Generic[T]):
    """Clients take turns, and the callers of one client are served in the order in which they came.

    A caller that has waited for ``seconds`` gets the failure ``late()``. Each caller has a size. If they exceed
    ``max_size`` together, the client that has the most in the queue makes room: its last caller gets ``full()``.

    There is one timer for the whole queue, because one for each caller would cost more than a typical wait.
    """

    def __init__(
        self,
        clock: IReactorTime,
        seconds: float,
        late: Callable[[], Exception],
        full: Callable[[], Exception] = RuntimeError,
        max_size: int = sys.maxsize,
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._late = late
        self._full = full
        self._max_size = max_size
        # In the order in which they came. Not plain dicts: finding the first key of one takes longer, the more have
        # been removed before it.
        self.waiters: OrderedDict[Deferred[T], _Waiter] = OrderedDict()
        # By client, in the order of their turns.
        self._lines: OrderedDict[str, OrderedDict[Deferred[T], None]] = OrderedDict()
        self._sizes: Counter[str] = Counter()
        self._size = 0
        self._look: IDelayedCall | None = None

    def __len__(self) -> int:
        return len(self.waiters)

    @property
    def longest(self) -> float:
        """For how many seconds the caller that came first has been waiting; 0 if nobody waits."""
        first = next(iter(self.waiters.values()), None)
        return 0.0 if first is None else self._clock.seconds() - (first.due - self._seconds)

    def join(self, client: str = "", size: int = 0) -> Deferred[T]:
        """Wait for a turn of ``client``. Cancelling the Deferred leaves the queue."""
        waiting: Deferred[T] = Deferred(self._leave)
        self.waiters[waiting] = _Waiter(client, size, self._clock.seconds() + self._seconds)
        self._lines.setdefault(client, OrderedDict())[waiting] = None
        self._sizes[client] += size
        self._size += size
        if self._look is None:
            self._look = self._clock.callLater(self._seconds, self._expire)
        while self._size > self._max_size:
            self._remove(last := self._last_of_largest())
            last.errback(self._full())
        return waiting

    def serve(self, value: T) -> None:
        """Give ``value`` to the caller whose turn it is. The queue must not be empty."""
        client, line = next(iter(self._lines.items()))
        first = next(iter(line))
        self._remove(first)
        if line:
            self._lines.move_to_end(client)
        first.callback(value)

    def close(self, why: Callable[[], Exception]) -> None:
        """Fail all waiting callers with ``why()``."""
        cancel(self._look)
        self._look = None
        while self.waiters:
            self._fail_first(why)

    def _leave(self, waiting: Deferred[T]) -> None:
        if waiting in self.waiters:
            self._remove(waiting)

    def _last_of_largest(self) -> Deferred[T]:
        largest = max(self._lines, key=self._sizes.__getitem__)
        return next(reversed(self._lines[largest]))

    def _remove(self, waiting: Deferred[T]) -> None:
        waiter = self.waiters.pop(waiting)
        self._size -= waiter.size
        self._sizes[waiter.client] -= waiter.size
        line = self._lines[waiter.client]
        del line[waiting]
        if not line:
            del self._lines[waiter.client], self._sizes[waiter.client]

    def _fail_first(self, why: Callable[[], Exception]) -> None:
        first = next(iter(self.waiters))
        self._remove(first)
        first.errback(why())

    def _expire(self) -> None:
        """Fail the callers that are late, and set the timer for the first of the others."""
        self._look = None
        now = self._clock.seconds()
        while self.waiters:
            due = next(iter(self.waiters.values())).due
            if due > now:
                if self._look is None:
                    self._look = self._clock.callLater(due - now, self._expire)
                return
            self._fail_first(self._late)
