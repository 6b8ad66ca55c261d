"""The few things about Deferreds and delayed calls that are easy to get wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred, FirstError, gatherResults
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.errors import ApiError, Away

T = TypeVar("T")

log = Logger()


class InThread(Protocol):
    """Runs ``work``, which must touch nothing that others change, off the reactor's thread."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


def start(work: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
    """A coroutine as a Deferred, where Twisted's callback world begins."""
    return Deferred.fromCoroutine(work)


def shield(work: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
    """Run ``work`` to its end even if its caller is cancelled.

    Cancelling the returned Deferred makes it fail with ``CancelledError`` at once, while ``work`` goes on. If
    ``work`` fails after that, the failure is logged, except for an ``ApiError`` or an outage: those were meant for
    the caller, who has left.
    """
    outer: Deferred[T] = Deferred()
    inner = start(work)

    def passed(result: T | Failure) -> None:
        if not outer.called:
            outer.callback(result)  # a Failure handed to callback() runs the errbacks
        elif isinstance(result, Failure) and not result.check(CancelledError, ApiError, Away):
            log.failure("work that nobody waits for any more failed", result)

    inner.addBoth(passed)
    return outer


def background(work: Coroutine[Deferred[Any], Any, object], what: str) -> None:
    """Run ``work`` on its own; a failure is logged as ``what`` having failed."""

    def failed(failure: Failure) -> None:
        if not failure.check(CancelledError):
            log.failure("{what} failed", failure, what=what)

    start(work).addErrback(failed)


class SharedRun(Generic[T]):
    """Runs ``work`` for whoever joins, once at a time.

    Whoever joins while it runs shares the next run with all others who do, so that everybody gets the outcome of a
    run that began after he had asked. ``what`` is its name in the log.
    """

    def __init__(self, work: Callable[[], Coroutine[Deferred[Any], Any, T]], what: str) -> None:
        self._work = work
        self._what = what
        self._running = False
        self._waiting: dict[Deferred[T], None] = {}

    def join(self) -> Deferred[T]:
        """Fires with what ``work`` returns, or fails with what it raises. Cancelling it leaves the run to others."""
        waiting: Deferred[T] = Deferred(lambda one: self._waiting.pop(one, None))
        self._waiting[waiting] = None
        if not self._running:
            self._running = True
            background(self._run(), self._what)
        return waiting

    async def _run(self) -> None:
        """In the background, since whoever started it may leave before the others."""
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                outcome: T | Failure
                try:
                    outcome = await self._work()
                except Exception:
                    outcome = Failure()
                for one in waiting:
                    if not one.called:
                        one.callback(outcome)  # a Failure handed to callback() runs the errbacks
        finally:
            self._running = False


async def all_of(work: Iterable[Coroutine[Deferred[Any], Any, object]]) -> None:
    """Run all of ``work`` at the same time and return when the last has ended.

    The first failure is raised immediately and unwrapped. The others go on; their failures are dropped.
    """
    try:
        await gatherResults([start(one) for one in work], consumeErrors=True)
    except FirstError as first:
        first.subFailure.raiseException()


def cancel(call: IDelayedCall | None) -> None:
    """Cancel ``call`` if there is one and it is still pending; otherwise do nothing."""
    if call is not None and call.active():
        call.cancel()


class Sleep:
    """A pause that can be ended early. One caller waits at a time."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._waking: Deferred[None] | None = None

    async def wait(self, seconds: float) -> None:
        """Returns after ``seconds``, or when ``wake`` is called."""
        self._waking = waking = Deferred[None]()
        call = self._clock.callLater(seconds, waking.callback, None)
        try:
            await waking
        finally:
            self._waking = None
            cancel(call)

    def wake(self) -> None:
        """End the pause, if there is one."""
        if self._waking is not None:
            self._waking.callback(None)


def with_timeout(
    clock: IReactorTime, seconds: float, waiting: Deferred[T], error: Callable[[], Exception]
) -> Deferred[T]:
    """``waiting`` itself, which is cancelled after ``seconds`` and then fails with ``error()``."""

    def late(result: T | Failure, _: float) -> T | Failure:
        if isinstance(result, Failure) and result.check(CancelledError):
            return Failure(error())
        return result

    return waiting.addTimeout(seconds, clock, late)
