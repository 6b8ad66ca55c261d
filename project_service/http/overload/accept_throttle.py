"""Accepts new connections more slowly while there is no room for them, since accepting one only to refuse it has its
cost.

A client whose connection was refused comes back on a new one. Such connections are left in the kernel's queue for a
moment, where they cost nothing, and where another process that shares the port may accept them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

# Each refusal stops accepting for its share of a second, up to so long altogether.
REFUSALS_PER_SECOND = 500.0
LONGEST_SECONDS = 0.5
# How many connections to accept in the first turn afterwards; Twisted would accept a hundred before it refuses one.
FIRST_ACCEPTS = 10


class Port(Protocol):
    """The part of a ``twisted.internet.tcp.Port`` that is used here."""

    connected: bool
    numberAccepts: int

    def stopReading(self) -> None: ...
    def startReading(self) -> None: ...


class AcceptThrottle:
    """Stops accepting on ``ports`` for a while whenever a connection was refused."""

    def __init__(self, ports: Sequence[Port], clock: IReactorTime) -> None:
        self._ports = ports
        self._clock = clock
        self._opens_at = 0.0
        self._call: IDelayedCall | None = None

    def refused(self) -> None:
        """To be called for each connection that is refused."""
        now = self._clock.seconds()
        self._opens_at = min(max(self._opens_at, now) + 1 / REFUSALS_PER_SECOND, now + LONGEST_SECONDS)
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
            # The port may have been closed for good meanwhile.
            if port.connected:
                port.numberAccepts = FIRST_ACCEPTS
                port.startReading()
