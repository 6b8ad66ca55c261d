"""What lives as long as the process: parts that start and stop in order, loops, Deferreds, clocks, growing pauses."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from attrs import define, field
from twisted.application.service import IService, Service
from twisted.internet.defer import CancelledError, Deferred, FirstError, gatherResults
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.errors import ApiError, Away

# Growing pauses between the attempts at something that fails.


# The first and the longest pause before a child that died is started again, in seconds.
CHILD_PAUSES = (1.0, 30.0)
# A child that ran for this long counts as recovered: when it dies, the pauses begin with the first one again.
STEADY_SECONDS = 60.0


@define
class Backoff:
    """``pause`` is the number of seconds to wait before the next attempt; 0 as long as the last one succeeded.

    It is ``first`` after one failure and doubles with each further one, up to ``longest``.
    """

    first: float
    longest: float
    pause: float = field(default=0.0, init=False)

    def failed(self) -> float:
        """To be told that an attempt has failed. Returns the new pause."""
        self.pause = min(max(self.pause * 2, self.first), self.longest)
        return self.pause

    def succeeded(self) -> None:
        self.pause = 0.0


# The few things about Deferreds and delayed calls that are easy to get wrong.


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


# The two clocks: a monotonic one for timeouts, pauses and ages, and the calendar's for whatever others get to
# read.


def use_monotonic_clock(reactor: Any) -> None:
    """Make ``reactor`` count its seconds by the monotonic clock.

    Twisted's reactors use ``time.time``. When that clock is set back by an hour, no timeout ends and no loop runs for
    an hour; when it is set forward, all of them end at once. Call this before anything is scheduled. Afterwards
    ``reactor.seconds()`` is no date any more; code that needs the date calls ``time.time``.
    """
    reactor.seconds = time.monotonic


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds and ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Starting and stopping in order, and loops that outlive their errors.
#
# Twisted's ``MultiService`` stops all at once, and its ``TimerService`` ends with the first error.


class Stoppable(Protocol):
    """Something that is gone when ``stop`` returns."""

    async def stop(self) -> None: ...


class Part(Stoppable, Protocol):
    """Something that is up when ``start`` returns."""

    async def start(self) -> None: ...


class Ordered:
    """Parts started one after the other and stopped in the reverse order, each awaited.

    When one fails to start, those before it are stopped again and its failure is raised. A failure to stop is logged,
    and the other parts are stopped all the same.
    """

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self._parts = parts
        self._up: list[Stoppable] = []

    async def start(self) -> None:
        for part in self._parts:
            try:
                await part.start()
            except BaseException:
                await self.stop()
                raise
            self._up.append(part)

    def adopt(self, part: Stoppable) -> None:
        """Have ``stop`` stop ``part`` too, before those already up. Starting it is the caller's business."""
        self._up.append(part)

    async def stop(self) -> None:
        while self._up:
            part = self._up.pop()
            try:
                await part.stop()
            except Exception:
                log.failure("{part} did not stop cleanly", part=type(part).__name__)


class ServicePart:
    """A Twisted ``Service`` as a part. ``stop`` waits for what the service has under way, or with ``cancels`` cancels
    it."""

    def __init__(self, service: IService, cancels: bool = False) -> None:
        self._service = service
        self._cancels = cancels

    async def start(self) -> None:
        self._service.startService()

    async def stop(self) -> None:
        stopping = self._service.stopService()
        if stopping is not None:
            if self._cancels:
                stopping.cancel()
            await stopping


class Closing:
    """A part with nothing to start, which is closed at the end."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        await self._close()


class Every(Service):
    """Runs ``work`` every ``seconds``, counted from the end of one run to the start of the next.

    A failure is logged, without a traceback if ``outage_of`` has a name for it, and the loop goes on. (It is that of
    ``database/errors``, which this module does not import.)

    ``stopService`` returns a Deferred that fires when a run under way has ended; cancelling it cancels the run.
    """

    def __init__(
        self,
        seconds: float,
        work: Callable[[], Awaitable[None]],
        clock: IReactorTime,
        name: str,
        outage_of: Callable[[BaseException], str | None],
    ) -> None:
        self.setName(name)
        self._seconds = seconds
        self._work = work
        self._outage_of = outage_of
        self._sleep = Sleep(clock)
        self._loop: Deferred[None] | None = None

    def startService(self) -> None:
        super().startService()
        self._loop = start(self._run())
        self._loop.addErrback(self._ended)

    def stopService(self) -> Deferred[None] | None:
        super().stopService()
        loop, self._loop = self._loop, None
        self._sleep.wake()
        return loop

    def _ended(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            log.failure("the loop {name} stopped", failure, name=self.name)

    async def _run(self) -> None:
        while self.running:
            await self._sleep.wait(self._seconds)
            if not self.running:
                return
            try:
                await self._work()
            except CancelledError:
                raise
            except Exception as fault:
                outage = self._outage_of(fault)
                if outage is None:
                    log.failure("{name} failed; it will be tried again", name=self.name)
                else:
                    log.warn("{name} failed, it will be tried again: {why}", name=self.name, why=outage)
