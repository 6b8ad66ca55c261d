"""What a connection that is served and one that is rejected share: who the client is, and how it is closed."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime, ISSLTransport

from project_service.deferreds import cancel
from project_service.http.idle_timeout import IdleTimeout
from project_service.http.limits import LARGE_BYTES
from project_service.network.sockets import forget_unsent, is_reset, socket_progress, unsent, write_now

# For how long what a client still sends after its last answer is read and thrown away.
LINGER_SECONDS = 5.0
LONG_AGO = float("-inf")


class BaseChannel:
    """A base class of channels. Twisted sets ``transport``.

    Once the connection is closing, a client that takes nothing for ``idle_seconds`` is cut off by ``_idle``.
    """

    transport: Any
    factory: Any
    _peer: IAddress | None = None
    _lingering: IDelayedCall | None = None

    def __init__(self, clock: IReactorTime, idle_seconds: float) -> None:
        super().__init__()
        self.clock = clock
        self.idle_seconds = idle_seconds
        self._idle = IdleTimeout(clock, idle_seconds, self.progress, self.abort)

    def who(self) -> IAddress:
        """The client's address. To be called only after bytes have come, since a PROXY header may have to name it."""
        if self._peer is None:
            self._peer = self.transport.getPeer()
        return self._peer

    def write(self, data: bytes) -> None:
        write_now(self.transport, data)
        if len(data) > LARGE_BYTES:
            self.factory.wrote_much(self)

    def take(self, source: int, most: int) -> int:
        """As ``wire.Connection.take``."""
        return int(self.factory.splicing.move(source, self.transport, most))

    @property
    def unsent_bytes(self) -> int:
        """As ``limits.Reader``."""
        return unsent(self.transport)

    def abort(self) -> None:
        self.transport.abortConnection()

    def abort_if_reset(self) -> None:
        """As ``wire.Connection.abort_if_reset``."""
        if is_reset(self.transport):
            self.abort()

    def writeConnectionLost(self) -> None:
        """Our direction has been closed (twisted's ``IHalfCloseableProtocol``); nothing depends on it."""

    def progress(self) -> object:
        """As ``wire.Connection.progress``."""
        return socket_progress(self.transport)

    @property
    def secure(self) -> bool:
        return ISSLTransport(self.transport, None) is not None

    def hang_up(self, more_may_come: bool) -> None:
        """Close the connection once everything is written.

        The kernel resets a connection that is closed while bytes are unread or still arriving. A client that has not
        read its answer by then loses it. So where ``more_may_come``, only our direction is closed at first, and for
        ``LINGER_SECONDS`` whatever arrives is thrown away (RFC 9112 section 9.6). Over TLS our close_notify is sent,
        and the client's is not waited for beyond that time (RFC 8446 section 6.1).
        """
        self._idle.watch()
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
        """Whether it has been closed in our direction, and is only read from until its client closes it too."""
        return self._lingering is not None

    def stop_lingering(self) -> None:
        cancel(self._lingering)
        self._close()

    def _close(self) -> None:
        """Close both directions. Over TLS also the connection beneath, as TLS would wait for the client's end."""
        self.transport.loseConnection()
        if self.secure:
            self.transport.transport.loseConnection()

    def is_gone(self) -> None:
        """To be called when the connection has been lost."""
        forget_unsent(self.transport)
        self._idle.stop()
        cancel(self._lingering)
