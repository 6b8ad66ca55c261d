"""Runs programs as children of the service.

``run_command`` runs one to its end. ``Supervised`` keeps one running: it starts it, waits until it is ready, starts
it again when it dies, and stops it. In both cases the output goes to the log and its end into error messages.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen
from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import deferLater
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from project_service import files
from project_service.embedded.leftovers import identify
from project_service.lifecycle import (
    CHILD_PAUSES,
    STEADY_SECONDS,
    Backoff,
    background,
    cancel,
    start,
    with_timeout,
)

log = Logger()

LAUNCHER = Path(__file__).with_name("launcher.py")

TAIL_LINES = 20
MAX_LINE = 2000
# How long to wait for the last output after the program's end. Its own children may hold the pipes open longer.
OUTPUT_SECONDS = 0.1

READY_POLL_SECONDS = 0.03
# How long one check whether the child is ready may take. If it hangs, it must not use up the child's time to start.
READY_CHECK_SECONDS = 5.0
# How often a first start is tried if another program takes its ports.
FIRST_STARTS = 3


class ChildFailed(Exception):
    """A child program did not do what it was started for. The message contains its last output."""


@frozen
class Account:
    """An operating system user that a program runs as if the service is root."""

    name: str
    uid: int
    gid: int


@frozen
class Command:
    """``environ`` is the whole environment; it is left out of ``repr`` because it may contain secrets.
    ``parent_death_signal`` is what the kernel sends to the program when the service dies. ``max_bytes`` is how much
    memory each of its processes may take, not counting what they share; 0 sets no limit."""

    argv: tuple[str, ...]
    cwd: Path
    environ: Mapping[str, str] = field(repr=False, factory=dict)
    account: Account | None = None
    parent_death_signal: int = signal.SIGTERM
    max_bytes: int = 0

    def launched(self, parent: int) -> list[str]:
        """The arguments to start it by the launcher; ``parent`` is the pid of this process."""
        uid, gid = (self.account.uid, self.account.gid) if self.account else (-1, -1)
        options = [str(one) for one in (parent, int(self.parent_death_signal), uid, gid, self.max_bytes)]
        return [sys.executable, "-I", "-S", str(LAUNCHER), *options, *self.argv]


class Child(ProcessProtocol):
    """One run of a program. ``name`` is what the log calls it; ``level`` returns the log level for a line of its
    output.

    ``pid`` is 0 until the program has been started. ``end`` says in words how it ended.
    """

    def __init__(self, name: str, reactor: Any, level: Callable[[str], str]) -> None:
        self._name = name
        self._reactor = reactor
        self._level = level
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._partial: dict[int, bytes] = {}
        self._waiting: list[Deferred[None]] = []
        self.ended = False
        self.end = "still running"
        self.pid = 0

    @property
    def tail(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self._lines)

    def when_ended(self) -> Deferred[None]:
        """Fires when the program has ended and has been reaped."""
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        if self.ended:
            waiting.callback(None)
        else:
            self._waiting.append(waiting)
        return waiting

    def spawn(self, command: Command) -> None:
        argv = command.launched(os.getpid())
        self._reactor.spawnProcess(self, argv[0], argv, dict(command.environ), str(command.cwd))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the program has ended. Twisted knows when the pid is no longer the program's."""
        if self.transport is not None:
            with contextlib.suppress(ProcessExitedAlready):
                self.transport.signalProcess(int(number))

    # Called by Twisted.

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.pid = self.transport.pid
        self.transport.closeStdin()

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        *lines, rest = (self._partial.get(childFD, b"") + data).split(b"\n")
        if len(rest) > MAX_LINE:
            lines.append(rest)
            rest = b""
        self._partial[childFD] = rest
        for line in lines:
            self._log(line)

    def processExited(self, reason: Failure) -> None:
        assert self.transport is not None
        self._reactor.callLater(OUTPUT_SECONDS, self.transport.loseConnection)

    def processEnded(self, reason: Failure) -> None:
        for rest in self._partial.values():
            self._log(rest)
        self.end = _described(reason.value)
        self.ended = True
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(None)

    def _log(self, line: bytes) -> None:
        text = line[:MAX_LINE].decode("utf-8", "replace").rstrip()
        if text:
            self._lines.append(text)
            level = LogLevel.levelWithName(self._level(text))
            log.emit(level, "{child}: {line}", child=self._name, line=text)


def _described(fault: BaseException | None) -> str:
    if isinstance(fault, ProcessDone):
        return "exit code 0"
    if isinstance(fault, ProcessTerminated) and fault.signal:
        return f"signal {signal.Signals(fault.signal).name}"
    return f"exit code {getattr(fault, 'exitCode', None)}"


async def run_command(reactor: Any, command: Command) -> None:
    """Run a program to its end. Raises ``ChildFailed``, with its last output, unless it ends with exit code 0.

    If this is cancelled, the program and everything that it started are killed first.
    """
    name = Path(command.argv[0]).name
    child = Child(name, reactor, lambda line: "debug")
    child.spawn(command)
    try:
        await child.when_ended()
    except CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        # The launcher may not have put it in a session of its own yet, so it gets the signal directly as well.
        child.signal(signal.SIGKILL)
        await child.when_ended()
        raise
    if child.end != "exit code 0":
        raise ChildFailed(f"{name} ended with {child.end}:\n{child.tail}")


class Program(ABC):
    """A program to supervise. ``start_seconds`` is how long it may take to get ready, ``stop_seconds`` to end after
    ``stop_signal``. Its pid is noted in ``pid_file``."""

    name: str
    pid_file: Path
    stop_signal: signal.Signals
    # What ``ready`` raises as long as the program does not work yet.
    not_yet: tuple[type[Exception], ...]
    start_seconds = 60.0
    stop_seconds = 15.0

    @abstractmethod
    async def prepare(self) -> Command:
        """Do what is needed before each start; the command."""

    @abstractmethod
    async def ready(self) -> None:
        """Return when the program is ready."""

    def cleanup(self) -> None:  # noqa: B027  # a program need not leave anything
        """Called each time the child process has ended, to remove what it leaves."""

    def retry(self) -> bool:
        """When a first start has failed: whether another program took what ``prepare`` had chosen, so that a second
        try is worth while."""
        return False

    def level(self, line: str) -> str:
        """The level, one of twisted.logger's names, at which a line of the program's output is logged."""
        return "info"


class Supervised:
    """A ``Component``: ``start`` returns when the program is ready, ``stop`` when it is gone.

    ``start`` raises ``ChildFailed``. If the program dies later, that is logged with its last output, and it is
    started again after a pause that grows, until it succeeds or ``stop`` is called.
    """

    def __init__(self, reactor: Any, program: Program) -> None:
        self._reactor = reactor
        self._program = program
        self._child: Child | None = None
        self._backoff = Backoff(*CHILD_PAUSES)
        self._ready_at: float | None = None
        self._stopping = False
        self._restart: IDelayedCall | None = None
        # Preparing a start can take seconds and runs programs of its own; ``stop`` waits for it.
        self._preparing = DeferredLock()

    @property
    def pid(self) -> int | None:
        """The child's pid while it lives."""
        return self._child.pid if self._child is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether the child lives and works. One that has just been started again does not yet."""
        return self._child is not None and self._ready_at is not None

    async def start(self) -> None:
        self._stopping = False
        for remaining in reversed(range(FIRST_STARTS)):
            try:
                await self._bring_up()
                break
            except ChildFailed as fault:
                if not remaining or self._stopping or not self._program.retry():
                    raise
                log.info("{name} is started once more: {why}", name=self._program.name, why=str(fault))

    async def stop(self) -> None:
        self._stopping = True
        cancel(self._restart)
        async with self._preparing:
            if self._child is not None:
                await self._end(self._child)

    async def _end(self, child: Child) -> None:
        child.signal(self._program.stop_signal)
        ended = child.when_ended()
        try:
            await with_timeout(self._reactor, self._program.stop_seconds, ended, TimeoutError)
        except TimeoutError:
            log.info("{name} did not stop in time and is killed", name=self._program.name)
            child.signal(signal.SIGKILL)
            await child.when_ended()

    async def _bring_up(self) -> None:
        async with self._preparing:
            command = await self._program.prepare()
        if self._stopping:
            raise ChildFailed(f"{self._program.name} was stopped before it was started")
        self._ready_at = None
        child = Child(self._program.name, self._reactor, self._program.level)
        child.spawn(command)
        self._child = child
        child.when_ended().addCallback(self._ended, child).addErrback(
            lambda failure: log.failure("{name} is not supervised", failure, name=self._program.name)
        )
        try:
            self._write_pid_file(child)
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
            fault = await self._why_not_ready()
            if fault is None:
                return
            if self._reactor.seconds() > deadline:
                raise ChildFailed(
                    f"{self._program.name} was not ready after {self._program.start_seconds:.0f} s: {fault}\n"
                    f"{child.tail}"
                )
            await deferLater(self._reactor, READY_POLL_SECONDS)

    async def _why_not_ready(self) -> Exception | None:
        not_yet: tuple[type[Exception], ...] = (TimeoutError, *self._program.not_yet)
        checking = start(self._program.ready())
        try:
            await with_timeout(
                self._reactor, READY_CHECK_SECONDS, checking, lambda: TimeoutError("no answer")
            )
        except not_yet as fault:
            log.debug(
                "{name} is not ready yet: {kind} {fault}",
                name=self._program.name,
                kind=type(fault).__name__,
                fault=str(fault),
            )
            return fault
        return None

    def _write_pid_file(self, child: Child) -> None:
        identity = identify(child.pid)
        if identity is not None:
            files.write_json(self._program.pid_file, attrs.asdict(identity))

    def _ended(self, _: None, child: Child) -> None:
        self._child = None
        try:
            self._program.cleanup()
            self._program.pid_file.unlink(missing_ok=True)
        except OSError as fault:
            # For instance a full disk. The next start deals with whatever is there.
            log.warn("what {name} left cannot be removed: {why}", name=self._program.name, why=str(fault))
        if self._stopping or self._ready_at is None:
            return
        log.error(
            "{name} died ({end}); its last output:\n{tail}",
            name=self._program.name,
            end=child.end,
            tail=child.tail,
        )
        if self._reactor.seconds() - self._ready_at >= STEADY_SECONDS:
            self._backoff.succeeded()
        self._restart_later()

    def _restart_later(self) -> None:
        pause = self._backoff.failed()
        log.info("{name} starts again in {pause} s", name=self._program.name, pause=pause)
        self._restart = self._reactor.callLater(
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
                log.error("{name} did not start again: {why}", name=self._program.name, why=why)
                self._restart_later()
        else:
            log.info("{name} is up again", name=self._program.name)
