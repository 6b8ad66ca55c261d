"""The client's end of a connection: the same whichever parser reads what comes from there."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime, ISSLTransport

from project_service.deferreds import cancel
from project_service.http.stall import Stall
from project_service.sockets import socket_progress

# For so long is read, and thrown away, what a client still sends after its last answer.
LINGER_SECONDS = 5.0
LONG_AGO = float("-inf")


class FarEnd:
    """Of a channel, which is given its ``transport``. A client that takes nothing for ``idle_seconds`` of what it is
    waited for to take is cut off by ``_stall``."""

    transport: Any
    _peer: IAddress | None = None
    _lingering: IDelayedCall | None = None

    def __init__(self, clock: IReactorTime, idle_seconds: float) -> None:
        super().__init__()
        self.clock = clock
        self.idle_seconds = idle_seconds
        self._stall = Stall(clock, idle_seconds, self.progress, self.abort)

    def who(self) -> IAddress:
        """To be asked once bytes have come: only then a PROXY header has said who it is."""
        if self._peer is None:
            self._peer = self.transport.getPeer()
        return self._peer

    def abort(self) -> None:
        self.transport.abortConnection()

    def progress(self) -> object:
        """As ``wire.Connection.progress``."""
        return socket_progress(self.transport)

    @property
    def secure(self) -> bool:
        return ISSLTransport(self.transport, None) is not None

    def hang_up(self, more_may_come: bool) -> None:
        """Close once everything is written.

        The kernel resets a connection that is closed with bytes unread, or whose client sends more, and who has not
        read its answer by then may never: where ``more_may_come`` only our side is closed at first, and what the
        channel then gets is thrown away (RFC 9112 section 9.6). Over TLS our side's end is said, and the client's is
        not waited for any longer than that: who waits for nothing does not read ours (RFC 8446 section 6.1).
        """
        self._stall.watch()
        if not more_may_come:
            self._close()
            return
        if self.secure:
            self.transport.loseConnection()
        else:
            self.transport.loseWriteConnection()
        self._lingering = self.clock.callLater(LINGER_SECONDS, self.stop_lingering)

    @property
    def lingers(self) -> bool:
        """Everything has been said to it."""
        return self._lingering is not None

    def stop_lingering(self) -> None:
        cancel(self._lingering)
        self._close()

    def _close(self) -> None:
        """TLS by itself would wait for the client's end."""
        self.transport.loseConnection()
        if self.secure:
            self.transport.transport.loseConnection()

    def is_gone(self) -> None:
        """To be told of the connection's end."""
        self._stall.stop()
        cancel(self._lingering)
