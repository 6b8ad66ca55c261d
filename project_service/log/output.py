"""The log of a service in the foreground, written without ever waiting long for its reader.

The reader may be a pager that nobody scrolls, a terminal that was stopped, or a log collector that hangs. Lines are
dropped then, because a blocking write would stop the reactor.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Protocol, TextIO

# How long to wait for a reader that takes nothing before lines are dropped, and for how long after that lines are
# dropped without any waiting.
PATIENCE_SECONDS = 1.0
IMPATIENT_SECONDS = 60.0
# poll() reports a pipe as writable when it takes at least this much (pipe(7), PIPE_BUF).
PIECE_BYTES = 4096


class LogOutput(Protocol):
    """Where lines of the log are written: a text stream, or something of ours around one."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class Output:
    """Writes to the descriptor of ``out``, bypassing its buffer.

    When lines were dropped, ``lost`` is called with their number as soon as others have been written again. Making
    one raises ``OSError`` for an ``out`` without a descriptor; ``write`` raises it where nothing can be written.
    """

    def __init__(
        self, out: TextIO, lost: Callable[[int], None], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._descriptor = out.fileno()
        self._encoding = out.encoding or "utf-8"
        self._tell_lost = lost
        self._seconds = seconds
        self._patient_from = seconds()
        self._lost = 0
        self._torn = False
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    def write(self, text: str) -> None:
        whole = ("\n" if self._torn else "") + text
        left = memoryview(whole.encode(self._encoding, "backslashreplace"))
        until = self._seconds()
        if until >= self._patient_from:
            until += PATIENCE_SECONDS
        while left:
            if not self._takes_more(until):
                self._patient_from = self._seconds() + IMPATIENT_SECONDS
                self._lost += text.count("\n")
                return
            written = os.write(self._descriptor, left[:PIECE_BYTES])
            self._torn = left[written - 1] != ord("\n")
            left = left[written:]
        lost, self._lost = self._lost, 0
        if lost:
            self._tell_lost(lost)

    def _takes_more(self, until: float) -> bool:
        return bool(self._poll.poll(max(0.0, until - self._seconds()) * 1000))

    def flush(self) -> None:
        """Does nothing: ``write`` keeps nothing back."""
