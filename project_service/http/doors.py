"""Under overload new connections are accepted more slowly: accepting one only to refuse its request costs too.

Where a refused client's connection closes, the client comes again on a new one. Those wait in the kernel's queue for
a moment, where they cost nothing, and another process that shares the port may accept them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from project_service.http.admission import REFUSALS_PER_SECOND, Pauses

LONGEST_SECONDS = 0.5
# Accepted at once afterwards: a few, so that not all of them are there before the first is refused.
FIRST_ACCEPTS = 10


class Port(Protocol):
    """What is needed of a ``twisted.internet.tcp.Port``."""

    connected: bool
    numberAccepts: int

    def stopReading(self) -> None: ...
    def startReading(self) -> None: ...


class Doors:
    """Of the ``ports`` that clients come in by."""

    def __init__(self, ports: Sequence[Port], clock: IReactorTime) -> None:
        self._ports = ports
        self._clock = clock
        self._pauses = Pauses(0.0, LONGEST_SECONDS)
        self._opens_at = 0.0
        self._call: IDelayedCall | None = None

    def refused(self, spacing: float = 1 / REFUSALS_PER_SECOND) -> None:
        """A client was, and its connection closes. ``spacing`` as of ``Pauses``."""
        now = self._clock.seconds()
        self._opens_at = now + self._pauses.after(now, spacing)
        if self._call is None:
            for port in self._ports:
                if port.connected:
                    port.stopReading()
            self._wait()

    def _wait(self) -> None:
        self._call = self._clock.callLater(max(0.0, self._opens_at - self._clock.seconds()), self._open)

    def _open(self) -> None:
        self._call = None
        if self._opens_at > self._clock.seconds():
            self._wait()
            return
        for port in self._ports:
            # It may have been closed for good meanwhile.
            if port.connected:
                port.numberAccepts = FIRST_ACCEPTS
                port.startReading()
