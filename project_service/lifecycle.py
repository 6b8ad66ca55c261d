"""Starting and stopping in order, and loops that outlive their errors.

Twisted's ``MultiService`` stops all at once, and its ``TimerService`` ends with the first error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from twisted.application.service import IService, Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.deferreds import Sleep, start

log = Logger()


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
    ``database/sqlstate``, which this module does not import.)

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
