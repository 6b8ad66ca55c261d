"""The protocol for one run of a program: its output goes to our log, and its end to those who wait for it."""

from __future__ import annotations

import contextlib
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

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
