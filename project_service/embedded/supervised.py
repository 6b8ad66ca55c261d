"""Supervises a child program: starts it, watches it, starts it again when it dies, and stops it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen
from twisted.internet.defer import CancelledError, Deferred, DeferredLock, succeed
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import deferLater
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from project_service import files
from project_service.lifecycle import (
    CHILD_PAUSES,
    STEADY_SECONDS,
    Backoff,
    all_of,
    background,
    cancel,
    start,
    with_timeout,
)

# The protocol for one run of a program: its output goes to our log, and its end to those who wait for it.


TAIL_LINES = 20
LONGEST_LINE = 2000
# How long to wait for the last lines after the program's end. Its own children may hold the pipes open longer.
LAST_WORDS_SECONDS = 0.1


class Child(ProcessProtocol):
    """``name`` is what the log calls it; ``level`` returns the log level for a line of its output.

    ``pid`` is 0 until the program has been started. ``end`` says in words how it ended.
    """

    log = Logger()

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
        if len(rest) > LONGEST_LINE:
            lines.append(rest)
            rest = b""
        self._partial[childFD] = rest
        for line in lines:
            self._say(line)

    def processExited(self, reason: Failure) -> None:
        assert self.transport is not None
        self._reactor.callLater(LAST_WORDS_SECONDS, self.transport.loseConnection)

    def processEnded(self, reason: Failure) -> None:
        for rest in self._partial.values():
            self._say(rest)
        self.end = _described(reason)
        self.ended = True
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(None)

    def _say(self, line: bytes) -> None:
        text = line[:LONGEST_LINE].decode("utf-8", "replace").rstrip()
        if text:
            self._lines.append(text)
            self.log.emit(
                LogLevel.levelWithName(self._level(text)), "{child}: {line}", child=self._name, line=text
            )


def _described(reason: Failure) -> str:
    fault = reason.value
    if isinstance(fault, ProcessDone):
        return "exit code 0"
    if isinstance(fault, ProcessTerminated) and fault.signal:
        return f"signal {signal.Signals(fault.signal).name}"
    return f"exit code {getattr(fault, 'exitCode', None)}"


# The description of a program to start (arguments, directory, user), and a way to run one to its end.


LAUNCHER = Path(__file__).with_name("launcher.py")


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
    ``parent_death_signal`` is what the kernel sends to the program when the service dies. ``most_bytes`` is how much
    memory each of its processes may take, not counting what they share; 0 sets no limit."""

    argv: tuple[str, ...]
    cwd: Path
    environ: Mapping[str, str] = field(repr=False, factory=dict)
    account: Account | None = None
    parent_death_signal: int = signal.SIGTERM
    most_bytes: int = 0

    def launched(self, parent: int) -> list[str]:
        """The arguments to start it by the launcher; ``parent`` is the pid of this process."""
        uid, gid = (self.account.uid, self.account.gid) if self.account else (-1, -1)
        options = [str(one) for one in (parent, int(self.parent_death_signal), uid, gid, self.most_bytes)]
        return [sys.executable, "-I", "-S", str(LAUNCHER), *options, *self.argv]


async def run_command(reactor: Any, command: Command) -> bytes:
    """Run a program to its end and return its standard output. Raises ``ChildFailed``.

    If this is cancelled, the program and everything that it started are killed first.
    """
    argv = command.launched(os.getpid())
    name = Path(command.argv[0]).name
    running = _Run()
    reactor.spawnProcess(running, argv[0], argv, env=dict(command.environ), path=str(command.cwd))
    try:
        end = await running.when_ended()
    except CancelledError:
        running.kill()
        await running.when_ended()
        raise
    if isinstance(end, ProcessDone):
        return bytes(running.out)
    if end.signal is not None:
        raise ChildFailed(f"{name} was killed")
    text = (running.err or running.out).decode("utf-8", "replace").strip()
    raise ChildFailed(f"{name} ended with exit code {end.exitCode}:\n{text}")


class _Run(ProcessProtocol):
    """One run. It ends when the program and all processes that share its output have ended."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self._end: ProcessDone | ProcessTerminated | None = None
        self._waiting: Deferred[ProcessDone | ProcessTerminated] | None = None

    def when_ended(self) -> Deferred[ProcessDone | ProcessTerminated]:
        """Only one caller may wait at a time."""
        if self._end is not None:
            return succeed(self._end)
        self._waiting = Deferred(lambda _: self._forget())
        return self._waiting

    def kill(self) -> None:
        assert self.transport is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.transport.pid, signal.SIGKILL)
        # The launcher may not have put it in a session of its own yet, so it gets the signal directly as well.
        with contextlib.suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")

    def outReceived(self, data: bytes) -> None:
        self.out += data

    def errReceived(self, data: bytes) -> None:
        self.err += data

    def processEnded(self, reason: Failure) -> None:
        assert isinstance(reason.value, ProcessDone | ProcessTerminated)
        self._end = reason.value
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(self._end)

    def _forget(self) -> None:
        self._waiting = None


# The identity of a process, so that another process that later gets the same pid is left alone.


PROC = Path("/proc")


@frozen
class Identity:
    """A pid and what makes it unique: the clock tick at which it started, and the id of the boot that ticks are
    counted from."""

    pid: int
    started: int
    boot: str


def identify(pid: int, proc: Path = PROC) -> Identity | None:
    """The process that has this pid now; None if there is none, or only a zombie."""
    try:
        stat = (proc / str(pid) / "stat").read_text("utf-8", "replace")
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    parsed = _parse_stat(stat)
    if parsed is None or parsed[0] in "ZX":
        return None
    return Identity(pid, parsed[1], boot)


def alive(identity: Identity, proc: Path = PROC) -> bool:
    return identify(identity.pid, proc) == identity


def works_on(pid: int, directory: Path, proc: Path = PROC) -> bool:
    """Whether ``directory`` is among the process's arguments, or is its working directory."""
    home = proc / str(pid)
    try:
        arguments = (home / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    wanted = os.fsencode(directory)
    if any(one == wanted or one.endswith(b"=" + wanted) for one in arguments):
        return True
    try:
        return (home / "cwd").readlink() == directory
    except OSError:
        return False


def processes_of(program: Path, directory: Path) -> list[Identity]:
    """The processes of ``program`` whose working directory is ``directory``."""
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fits = (entry / "exe").readlink() == program and (entry / "cwd").readlink() == directory
        except OSError:
            continue  # it ended while we looked, or is none of ours
        identity = identify(int(entry.name)) if fits else None
        if identity is not None:
            found.append(identity)
    return found


def _parse_stat(stat: str) -> tuple[str, int] | None:
    """State and start time (fields 3 and 22 of proc_pid_stat(5)). The name before them, in brackets, may contain
    anything, even brackets."""
    fields = stat.rpartition(")")[2].split()
    try:
        return fields[0], int(fields[19])
    except (IndexError, ValueError):
        return None


# Removes what a killed service left behind: children that still run, and stale pid files.


log = Logger()

# Signals to send one after the other, each followed by a wait of up to its number of seconds.
Stops = tuple[tuple[signal.Signals, float], ...]
Sleep = Callable[[float], Awaitable[None]]

END_POLL_SECONDS = 0.05


async def stop_leftover(pid_file: Path, directory: Path, stops: Stops, sleep: Sleep) -> None:
    """Stop the process that ``pid_file`` names, if it is still that process and works on ``directory``.

    Returns when the process is gone; raises ``RuntimeError`` if it does not end.
    """
    identity = remembered(pid_file)
    if identity is not None and alive(identity) and works_on(identity.pid, directory):
        log.info(
            "stopping what a killed service left: pid {pid} on {where}",
            pid=identity.pid,
            where=str(directory),
        )
        await _stop(identity, stops, sleep)
    pid_file.unlink(missing_ok=True)  # noqa: ASYNC240  # one system call on a local disk


async def _stop(identity: Identity, stops: Stops, sleep: Sleep) -> None:
    for number, seconds in stops:
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, number)
        for _ in range(max(1, int(seconds / END_POLL_SECONDS))):
            if not alive(identity):
                return
            await sleep(END_POLL_SECONDS)
    if alive(identity):
        raise RuntimeError(f"process {identity.pid} does not end, not even by SIGKILL")


def remembered(pid_file: Path) -> Identity | None:
    """The identity in a pid file; None if there is no file or it is not one of ours."""
    try:
        value = files.read_json(pid_file)
        return Identity(int(value["pid"]), int(value["started"]), str(value["boot"])) if value else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def drop_stale_pid_files(files: tuple[Path, ...], directory: Path) -> None:
    """Remove PostgreSQL's own lock files if their pid now belongs to a process that does not work on ``directory``.

    PostgreSQL takes any living process with that pid for another server and refuses to start. After a crash in a
    container this is likely, because pids there are small and soon used again. The pid may also still be that of the
    server that was killed, if nobody reaps it. A lock file whose process is gone PostgreSQL removes itself.
    """
    for file in files:
        try:
            pid = int(file.read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            continue
        if (PROC / str(pid)).exists() and not works_on(pid, directory):
            log.info("removing the stale lock file {file}", file=str(file))
            file.unlink(missing_ok=True)


async def stop_postmaster(data: Path, stops: Stops, sleep: Sleep) -> None:
    """Stop the server that PostgreSQL's own ``postmaster.pid`` in ``data`` names, if it works on ``data``. Otherwise
    as ``stop_leftover``."""
    try:
        identity = identify(int((data / "postmaster.pid").read_text().split("\n", 1)[0]))
    except (OSError, ValueError):
        return
    if identity is not None and works_on(identity.pid, data):
        log.info("stopping a PostgreSQL that still runs on {data}", data=str(data))
        await _stop(identity, stops, sleep)


async def stop_orphans(program: Path, data: Path, stops: Stops, sleep: Sleep) -> None:
    """Stop the processes that a killed PostgreSQL server left behind. Call it when that server is gone.

    They would end by themselves as soon as they are done with what they are doing. But until then they hold the
    shared memory, and a new server would refuse to start. One that was stopped (SIGSTOP) takes seconds; so they are
    stopped side by side.
    """
    orphans = processes_of(program, data)
    if orphans:
        log.info(
            "stopping {count} processes that a killed PostgreSQL left on {data}",
            count=len(orphans),
            data=str(data),
        )
    await all_of(_stop(identity, stops, sleep) for identity in orphans)


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
    """A ``Component``: ``start`` returns when the program is ready, ``stop`` when it is gone.

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
            files.write_json(self._program.pid_file, attrs.asdict(identity))

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
