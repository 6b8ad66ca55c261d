"""The output of a service in the foreground, for whose reader nobody waits for long: a pager that is not scrolled, a
terminal that has been stopped, a collector that hangs."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import TextIO

# So long a reader may take nothing before lines are lost, and so long it is not waited for again then.
PATIENCE_SECONDS = 1.0
IMPATIENT_SECONDS = 60.0
# What a pipe takes at once where it takes anything (pipe(7), PIPE_BUF).
PIECE_BYTES = 4096


class Output:
    """Writes to the descriptor of ``out``, past its buffer; ``lost`` is told of how many lines once others follow.

    Raises ``OSError`` where nothing can be written, also for an ``out`` without a descriptor.
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
        self._room = select.poll()
        self._room.register(self._descriptor, select.POLLOUT)

    def write(self, text: str) -> int:
        whole = ("\n" if self._torn else "") + text
        left = memoryview(whole.encode(self._encoding, "backslashreplace"))
        until = self._seconds()
        if until >= self._patient_from:
            until += PATIENCE_SECONDS
        while left:
            if not self._takes_more(until):
                self._patient_from = self._seconds() + IMPATIENT_SECONDS
                self._lost += text.count("\n")
                return 0
            written = os.write(self._descriptor, left[:PIECE_BYTES])
            self._torn = left[written - 1] != ord("\n")
            left = left[written:]
        lost, self._lost = self._lost, 0
        if lost:
            self._tell_lost(lost)
        return len(text)

    def _takes_more(self, until: float) -> bool:
        return bool(self._room.poll(max(0.0, until - self._seconds()) * 1000))

    def flush(self) -> None:
        """Nothing is kept."""
