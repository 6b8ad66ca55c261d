"""Starting and stopping in order, loops that survive errors, Deferreds, clocks, and backoff.

``Components`` start one after another and stop in reverse; ``Every`` runs a job again and again. ``start``,
``background``, ``shield``, ``to_its_end`` and ``with_timeout`` cover what is easy to get wrong about Deferreds.
Twisted's own ``MultiService`` stops all its services at once, and its ``TimerService`` ends with the first error.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import Context
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from attrs import define, field
from twisted.application.service import IService, Service
from twisted.internet.defer import CancelledError, Deferred, FirstError, gatherResults
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.errors import ApiError, Away

# The first and the longest pause before a child that died is started again, in seconds.
CHILD_PAUSES = (1.0, 30.0)
# A child that ran for this long has recovered: when it dies, the pauses begin with the first one again.
STEADY_SECONDS = 60.0

P = ParamSpec("P")
T = TypeVar("T")

log = Logger()


# Components


class Stoppable(Protocol):
    """Something that has stopped when ``stop`` returns."""

    async def stop(self) -> None: ...


class Component(Stoppable, Protocol):
    """Something that is running when ``start`` returns."""

    async def start(self) -> None: ...


class Components:
    """Starts components one after the other, and stops them in the reverse order, each awaited.

    When one fails to start, those before it are stopped again and its failure is raised. A failure to stop is logged,
    and the others are stopped all the same.
    """

    def __init__(self, components: Sequence[Component] = ()) -> None:
        self._components = components
        self._running: list[Stoppable] = []

    async def start(self) -> None:
        for component in self._components:
            try:
                await component.start()
            except BaseException:
                await self.stop()
                raise
            self._running.append(component)

    def adopt(self, component: Stoppable) -> None:
        """Have ``stop`` stop ``component`` too, before those already running. The caller starts it."""
        self._running.append(component)

    async def stop(self) -> None:
        while self._running:
            component = self._running.pop()
            try:
                await component.stop()
            except Exception:
                log.failure("{part} did not stop cleanly", part=type(component).__name__)


class ServiceComponent:
    """A Twisted ``Service`` as a component. ``stop`` waits for what the service is doing, or with ``cancels`` cancels
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


class ClosedLast:
    """A component that needs no start; ``stop`` calls ``close``."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        await self._close()


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


class Every(Service):
    """Runs ``job`` every ``seconds``, counted from the end of one run to the start of the next.

    A failure is logged and the loop goes on. There is no traceback in the log if ``outage_of`` has a name for the
    failure. (It is that of ``database.errors``, which this module does not import.)

    ``stopService`` returns a Deferred that fires when the current run has ended; cancelling it cancels the run.
    """

    def __init__(
        self,
        seconds: float,
        job: Callable[[], Awaitable[None]],
        clock: IReactorTime,
        name: str,
        outage_of: Callable[[BaseException], str | None],
    ) -> None:
        self.setName(name)
        self._seconds = seconds
        self._job = job
        self._outage_of = outage_of
        self._sleep = Sleep(clock)
        self._loop: Deferred[None] | None = None

    def startService(self) -> None:
        super().startService()
        self._loop = start(self._run())
        self._loop.addErrback(self._failed)

    def stopService(self) -> Deferred[None] | None:
        super().stopService()
        loop, self._loop = self._loop, None
        self._sleep.wake()
        return loop

    def _failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            log.failure("the loop {name} stopped", failure, name=self.name)

    async def _run(self) -> None:
        while self.running:
            await self._sleep.wait(self._seconds)
            if not self.running:
                return
            try:
                await self._job()
            except CancelledError:
                raise
            except Exception as fault:
                outage = self._outage_of(fault)
                if outage is None:
                    log.failure("{name} failed; it will be tried again", name=self.name)
                else:
                    log.warn("{name} failed, it will be tried again: {why}", name=self.name, why=outage)


@define
class Backoff:
    """``pause`` is the number of seconds to wait before the next try; 0 as long as the last one succeeded.

    It is ``first`` after one failure and doubles with each further one, up to ``longest``.
    """

    first: float
    longest: float
    pause: float = field(default=0.0, init=False)

    def failed(self) -> float:
        """Count a failure. Returns the new pause."""
        self.pause = min(max(self.pause * 2, self.first), self.longest)
        return self.pause

    def succeeded(self) -> None:
        self.pause = 0.0


# Deferreds


class InThread(Protocol):
    """Calls ``function`` off the reactor's thread. It must not touch anything that others change."""

    def __call__(self, function: Callable[[], T], /) -> Coroutine[Deferred[Any], Any, T]: ...


def in_thread_of(reactor: Any) -> InThread:
    """Calls functions in the reactor's threads, several at a time."""

    async def in_thread(function: Callable[[], T]) -> T:
        return await run_in_thread(reactor, function)

    return in_thread


async def run_in_thread(reactor: Any, function: Callable[[], T]) -> T:
    """What ``function`` returns, or raises, in one of the reactor's threads."""
    result, refusal = await deferToThreadPool(reactor, reactor.getThreadPool(), partial(_answer_of, function))
    if refusal is None:
        return cast("T", result)
    try:
        raise refusal
    finally:
        del refusal


def _answer_of(function: Callable[[], T]) -> tuple[T | None, ApiError | None]:
    """What ``function`` returns, or the refusal that it raises, without the frames that it passed: they hold what had
    been read until then, half a million texts perhaps, which the reactor would have to free one by one as soon as the
    garbage collector finds them there. It took 70 ms."""
    try:
        return function(), None
    except ApiError as refusal:
        refusal.__context__ = refusal.__cause__ = None
        return None, refusal.with_traceback(None)


def start(coroutine: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
    """A coroutine as a Deferred, where Twisted's callback world begins."""
    return Deferred.fromCoroutine(coroutine)


def shield(coroutine: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
    """Run ``coroutine`` to its end even if its caller is cancelled.

    Cancelling the returned Deferred makes it fail with ``CancelledError`` at once, while ``coroutine`` goes on. If
    it fails after that, the failure is logged, except for an ``ApiError`` or an outage: those were meant for the
    caller, who has left.
    """
    outer: Deferred[T] = Deferred()
    inner = start(coroutine)

    def passed(result: T | Failure) -> None:
        if not outer.called:
            outer.callback(result)  # a Failure handed to callback() runs the errbacks
        elif isinstance(result, Failure) and not result.check(CancelledError, ApiError, Away):
            log.failure("a task failed after its caller had left", result)

    inner.addBoth(passed)
    return outer


def shielded(function: Callable[P, Coroutine[Deferred[Any], Any, T]]) -> Callable[P, Deferred[T]]:
    """Decorates an ``async def`` so that each call is shielded as by ``shield``."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        return shield(function(*args, **kwargs))

    return call


async def to_its_end(
    coroutine: Coroutine[Deferred[Any], Any, T], when_cancelled: Callable[[], None] = lambda: None
) -> T:
    """The result of ``coroutine``, also for a caller that is cancelled while it waits, which has to be told what has
    become of something that may be done already. ``when_cancelled`` is called then, and may have ``coroutine`` end
    sooner; the caller goes on as if nothing had happened."""
    waiting: Deferred[T] = Deferred()
    ended = False

    def passed(result: T | Failure) -> None:
        nonlocal ended
        ended = True
        waiting.callback(result)  # a Failure handed to callback() runs the errbacks

    start(coroutine).addBoth(passed)
    while True:
        try:
            return await waiting
        except CancelledError:
            if ended:
                raise
            waiting = Deferred()
            when_cancelled()


def start_apart(coroutine: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
    """As ``start``, without the caller's context variables: for what is not the caller's alone."""
    return Context().run(start, coroutine)


def background(coroutine: Coroutine[Deferred[Any], Any, object], what: str) -> None:
    """Run ``coroutine`` on its own, without the caller's context variables. A failure is logged as ``what`` having
    failed."""

    def failed(failure: Failure) -> None:
        if not failure.check(CancelledError):
            log.failure("{what} failed", failure, what=what)

    start_apart(coroutine).addErrback(failed)


class SharedRun(Generic[T]):
    """Calls ``function`` for all who join, once at a time.

    Those who join during a run share the next one, so that each gets the outcome of a run that began after its call.
    ``what`` is its name in the log.
    """

    def __init__(self, function: Callable[[], Coroutine[Deferred[Any], Any, T]], what: str) -> None:
        self._function = function
        self._what = what
        self._running = False
        self._waiting: dict[Deferred[T], None] = {}

    def join(self) -> Deferred[T]:
        """Fires with what ``function`` returns, or fails with what it raises. Cancelling it does not end the run."""
        waiting: Deferred[T] = Deferred(lambda one: self._waiting.pop(one, None))
        self._waiting[waiting] = None
        if not self._running:
            self._running = True
            background(self._run(), self._what)
        return waiting

    async def _run(self) -> None:
        """In the background, since the caller that started it may leave before the others."""
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                outcome: T | Failure
                try:
                    outcome = await self._function()
                except Exception:
                    outcome = Failure()
                for one in waiting:
                    if not one.called:
                        one.callback(outcome)  # a Failure handed to callback() runs the errbacks
        finally:
            self._running = False


async def all_of(coroutines: Iterable[Coroutine[Deferred[Any], Any, object]]) -> None:
    """Run all ``coroutines`` at the same time and return when the last has ended.

    The first failure is raised immediately and unwrapped. The others go on; their failures are dropped.
    """
    try:
        await gatherResults([start(one) for one in coroutines], consumeErrors=True)
    except FirstError as first:
        first.subFailure.raiseException()


def with_timeout(
    clock: IReactorTime, seconds: float, waiting: Deferred[T], error: Callable[[], Exception]
) -> Deferred[T]:
    """``waiting`` itself, which is cancelled after ``seconds`` and then fails with ``error()``."""

    def late(result: T | Failure, _: float) -> T | Failure:
        if isinstance(result, Failure) and result.check(CancelledError):
            return Failure(error())
        return result

    return waiting.addTimeout(seconds, clock, late)


def cancel(call: IDelayedCall | None) -> None:
    """Cancel ``call`` if there is one and it is still pending; otherwise do nothing."""
    if call is not None and call.active():
        call.cancel()


# Clocks


# How often ``progress`` is called within ``seconds``.
CHECKS = 10


class IdleTimer:
    """Calls ``expire`` when nothing has moved for ``seconds``, once for each ``start``.

    Code that moves something calls ``touch``. That is cheap, as the delayed call is only renewed when it fires. If
    there is no such code, ``progress`` returns a value that changes whenever something has moved. It is called ten
    times within ``seconds``, so ``expire`` is called up to a tenth late.

    What moved while the whole process stood still counts: that is read between two turns of the reactor's calls.
    """

    __slots__ = ("_call", "_clock", "_expire", "_progress", "_seconds", "_seen", "expired", "touched_at")

    def __init__(
        self,
        clock: IReactorTime,
        seconds: float,
        expire: Callable[[], object],
        progress: Callable[[], object] | None = None,
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._expire = expire
        self._progress = progress
        self._seen: object = None
        self._call: IDelayedCall | None = None
        self.touched_at = 0.0
        self.expired = False

    def start(self) -> None:
        """Begin, or begin anew."""
        if self._call is not None:
            self.stop()
        wait = self._seconds
        if self._progress is not None:
            self._seen = self._progress()
            wait /= CHECKS
        self.touched_at = self._clock.seconds()
        self._call = self._clock.callLater(wait, self._check)

    def touch(self) -> None:
        self.touched_at = self._clock.seconds()

    def stop(self) -> None:
        cancel(self._call)
        self._call = None

    def _check(self, is_last: bool = False) -> None:
        self._call = None
        if self._progress is not None and (seen := self._progress()) != self._seen:
            self._seen = seen
            self.touch()
        left = self.touched_at + self._seconds - self._clock.seconds()
        if left > 0:
            wait = left if self._progress is None else min(left, self._seconds / CHECKS)
            self._call = self._clock.callLater(wait, self._check)
        elif not is_last:
            self._call = self._clock.callLater(0, self._check, True)
        else:
            self.expired = True
            self._expire()


def use_monotonic_clock(reactor: Any) -> None:
    """Make ``reactor`` count its seconds by the monotonic clock. Call this before anything is scheduled.

    Twisted's reactors use ``time.time``. When that clock is set back by an hour, no timeout ends and no loop runs for
    an hour; when it is set forward, all of them end at once. ``reactor.seconds()`` is no date afterwards; code that
    needs the date calls ``time.time``.
    """
    reactor.seconds = time.monotonic


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds and ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
