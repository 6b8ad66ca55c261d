"""Supervises a child program: starts it, watches it, starts it again when it dies, and stops it."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen
from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service import private_file
from project_service.backoff import CHILD_PAUSES, STEADY_SECONDS, Backoff
from project_service.deferreds import background, cancel, start, with_timeout
from project_service.embedded.child import Child
from project_service.embedded.command import ChildFailed, Command
from project_service.embedded.process_identity import identify

POLL_SECONDS = 0.03
# How often a first start is tried if somebody else takes its ports.
FIRST_STARTS = 3
# How long one check whether the child is ready may take. If it hangs, it must not use up the child's time to start.
LOOK_SECONDS = 5.0


@frozen
class Program:
    """What ``Supervised`` needs to know about a program.

    ``prepare`` runs before every start and returns the command. ``ready`` raises one of ``not_yet`` as long as the
    program does not work yet. ``cleanup`` runs after every end. When a first start has failed, ``outrun`` says
    whether somebody else took what ``prepare`` had found free, so that another attempt is worth while. ``level``
    returns the level, one of twisted.logger's names, at which a line of the program's output is logged.
    """

    name: str
    prepare: Callable[[], Awaitable[Command]]
    ready: Callable[[], Coroutine[Any, Any, None]]
    not_yet: tuple[type[Exception], ...]
    pid_file: Path
    stop_signal: signal.Signals
    cleanup: Callable[[], None] = lambda: None
    outrun: Callable[[], bool] = lambda: False
    level: Callable[[str], str] = lambda line: "info"
    start_seconds: float = 60.0
    stop_seconds: float = 15.0


class Supervised:
    """A ``Part``: ``start`` returns when the program is ready, ``stop`` when it is gone.

    ``start`` raises ``ChildFailed``. If the program dies later, that is logged with its last output, and it is
    started again after a pause that grows, until it succeeds or ``stop`` is called.
    """

    log = Logger()

    def __init__(self, reactor: Any, program: Program) -> None:
        self._reactor = reactor
        self._program = program
        self._child: Child | None = None
        self._backoff = Backoff(*CHILD_PAUSES)
        self._ready_at: float | None = None
        self._stopping = False
        self._again: IDelayedCall | None = None
        # Preparing a start can take seconds and runs programs of its own; ``stop`` waits for it.
        self._preparing = DeferredLock()

    @property
    def pid(self) -> int | None:
        """The child's pid while it lives."""
        return self._child.pid if self._child is not None else None

    @property
    def is_ready(self) -> bool:
        return self._child is not None and self._ready_at is not None

    async def start(self) -> None:
        self._stopping = False
        for left in reversed(range(FIRST_STARTS)):
            try:
                await self._bring_up()
                break
            except ChildFailed as fault:
                if not left or self._stopping or not self._program.outrun():
                    raise
                self.log.info("{name} is started once more: {why}", name=self._program.name, why=str(fault))

    async def stop(self) -> None:
        self._stopping = True
        cancel(self._again)
        async with self._preparing:
            if self._child is not None:
                await self._end(self._child)

    async def _end(self, child: Child) -> None:
        child.signal(self._program.stop_signal)
        ended = child.when_ended()
        try:
            await with_timeout(self._reactor, self._program.stop_seconds, ended, TimeoutError)
        except TimeoutError:
            self.log.info("{name} did not stop in time and is killed", name=self._program.name)
            child.signal(signal.SIGKILL)
            await child.when_ended()

    async def _bring_up(self) -> None:
        async with self._preparing:
            command = await self._program.prepare()
        if self._stopping:
            raise ChildFailed(f"{self._program.name} was told to stop before it began")
        self._ready_at = None
        child = Child(self._program.name, self._reactor, self._program.level)
        argv = command.launched(os.getpid())
        self._reactor.spawnProcess(child, argv[0], argv, dict(command.environ), str(command.cwd))
        self._child = child
        child.when_ended().addCallback(self._ended, child).addErrback(self._unsettled)
        try:
            self._remember(child)
            await self._until_ready(child)
        except BaseException:
            # It must not be left half started. _ended sees that it was never ready, and does not start it again.
            await self._end(child)
            raise
        self._ready_at = self._reactor.seconds()

    async def _until_ready(self, child: Child) -> None:
        deadline = self._reactor.seconds() + self._program.start_seconds
        while True:
            if child.ended or self._stopping:
                raise ChildFailed(
                    f"{self._program.name} ended before it was ready ({child.end})\n{child.tail}"
                )
            fault = await self._look()
            if fault is None:
                return
            if self._reactor.seconds() > deadline:
                raise ChildFailed(
                    f"{self._program.name} was not ready after {self._program.start_seconds:.0f} s: {fault}\n"
                    f"{child.tail}"
                )
            await deferLater(self._reactor, POLL_SECONDS)

    async def _look(self) -> Exception | None:
        """None if the program is ready, otherwise why it is not."""
        not_yet: tuple[type[Exception], ...] = (TimeoutError, *self._program.not_yet)
        looking = start(self._program.ready())
        try:
            await with_timeout(self._reactor, LOOK_SECONDS, looking, lambda: TimeoutError("no answer"))
        except not_yet as fault:
            self.log.debug(
                "{name} is not ready yet: {kind} {fault}",
                name=self._program.name,
                kind=type(fault).__name__,
                fault=str(fault),
            )
            return fault
        return None

    def _remember(self, child: Child) -> None:
        identity = identify(child.pid)
        if identity is not None:
            private_file.write_json(self._program.pid_file, attrs.asdict(identity))

    def _ended(self, _: None, child: Child) -> None:
        self._child = None
        self._settle()
        if self._stopping or self._ready_at is None:
            return
        self.log.error(
            "{name} died ({end}); its last output:\n{tail}",
            name=self._program.name,
            end=child.end,
            tail=child.tail,
        )
        if self._reactor.seconds() - self._ready_at >= STEADY_SECONDS:
            self._backoff.succeeded()
        self._later()

    def _settle(self) -> None:
        try:
            self._program.cleanup()
            self._program.pid_file.unlink(missing_ok=True)
        except OSError as fault:
            # For instance a full disk. The next start deals with whatever is there.
            self.log.warn(
                "what {name} left cannot be removed: {why}", name=self._program.name, why=str(fault)
            )

    def _unsettled(self, failure: Failure) -> None:
        self.log.failure("what {name} left could not be settled", failure, name=self._program.name)

    def _later(self) -> None:
        pause = self._backoff.failed()
        self.log.info("{name} starts again in {pause} s", name=self._program.name, pause=pause)
        self._again = self._reactor.callLater(
            pause,
            lambda: background(self._start_again(), f"starting {self._program.name} again"),
        )

    async def _start_again(self) -> None:
        try:
            await self._bring_up()
        except Exception as fault:
            # Any failure, such as a full disk, may pass. If we gave up, the program would be missing for ever.
            if not self._stopping:
                why = str(fault) or type(fault).__name__
                self.log.error("{name} did not start again: {why}", name=self._program.name, why=why)
                self._later()
        else:
            self.log.info("{name} is up again", name=self._program.name)
