"""A queue of callers that wait for a resource: served in order, each for a bounded time, with one timer for all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from project_service.deferreds import cancel

T = TypeVar("T")


class WaitQueue(Generic[T]):
    """A caller that has waited for ``seconds`` gets the failure ``late()``.

    There is one timer for the whole queue, because one for each caller would cost more than a typical wait.
    """

    def __init__(self, clock: IReactorTime, seconds: float, late: Callable[[], Exception]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._late = late
        self._due: OrderedDict[Deferred[T], float] = OrderedDict()
        self._look: IDelayedCall | None = None

    def __len__(self) -> int:
        return len(self._due)

    def join(self) -> Deferred[T]:
        """Wait at the end of the queue. Cancelling the Deferred leaves the queue."""
        waiting: Deferred[T] = Deferred(self._leave)
        self._due[waiting] = self._clock.seconds() + self._seconds
        if self._look is None:
            self._look = self._clock.callLater(self._seconds, self._expire)
        return waiting

    def serve(self, value: T) -> None:
        """Give ``value`` to the first caller. The queue must not be empty."""
        first, _ = self._due.popitem(last=False)
        first.callback(value)

    def close(self, why: Callable[[], Exception]) -> None:
        """Fail everybody who waits with ``why()``."""
        cancel(self._look)
        self._look = None
        while self._due:
            first, _ = self._due.popitem(last=False)
            first.errback(why())

    def _leave(self, waiting: Deferred[T]) -> None:
        self._due.pop(waiting, None)

    def _expire(self) -> None:
        """Fail the callers that are late, and set the timer for the first of the others."""
        self._look = None
        now = self._clock.seconds()
        while self._due:
            first, due = next(iter(self._due.items()))
            if due > now:
                if self._look is None:
                    self._look = self._clock.callLater(due - now, self._expire)
                return
            del self._due[first]
            first.errback(self._late())
