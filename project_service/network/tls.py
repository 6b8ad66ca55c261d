"""TLS of which a client may close its own direction alone, as it may over plain TCP."""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer


@implementer(IHalfCloseableProtocol)
class HalfClosingTls(BufferingTLSTransport):
    """Twisted's TLS closes both directions when the client's ``close_notify`` comes. RFC 8446 section 6.1: it ends
    only what the client sends. A protocol that is an ``IHalfCloseableProtocol`` is told, and closes when it is done.

    The end of the TCP connection alone may be an attacker's (section 6.1 too), and ends both directions as before.
    """

    _notified = False

    def _tlsShutdownFinished(self, reason: Failure | None) -> None:
        if reason is None and not self.disconnecting and self._half_closing is not None:
            # Ends the loop in which Twisted reads; ``_flushReceiveBIO`` takes it back.
            self._notified = self._lostTLSConnection = True
        else:
            super()._tlsShutdownFinished(reason)

    def _shutdownTLS(self) -> None:
        # Twisted calls this for an answer to ``close_notify`` as well, after which nothing can be sent.
        if self.disconnecting or self._half_closing is None:
            super()._shutdownTLS()

    def _flushReceiveBIO(self) -> None:
        if self._notified:
            self._flushSendBIO()
            return
        super()._flushReceiveBIO()
        self._tell()

    def _tell(self) -> None:
        if self._notified and self._half_closing is not None:
            self._lostTLSConnection = False
            self._half_closing.readConnectionLost()

    def readConnectionLost(self) -> None:
        if not self._notified:
            socket: Any = self.transport
            socket.connectionLost(Failure(ConnectionLost()))

    def writeConnectionLost(self) -> None:
        """Nothing depends on it."""

    @property
    def _half_closing(self) -> Any:
        return IHalfCloseableProtocol(self.wrappedProtocol, None)


def let_clients_half_close(port: Any) -> None:
    """Where ``port`` is one of TLS, serve its connections by ``HalfClosingTls``."""
    if isinstance(factory := getattr(port, "factory", None), TLSMemoryBIOFactory):
        factory.protocol = HalfClosingTls
