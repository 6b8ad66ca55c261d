"""The description of a program to start (arguments, directory, user), and a way to run one to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

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


async def run(reactor: Any, command: Command) -> bytes:
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
