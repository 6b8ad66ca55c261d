"""Connections to one store, kept open between requests."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.web.iweb import IBodyProducer

from project_service.storage.s3.connection import Connection
from project_service.storage.s3.response import StoreResponse

# How long a connection is kept without being used.
KEPT_SECONDS = 60.0


class ConnectionPool(Factory):
    """Keeps up to ``max_idle`` idle connections. More may be open while they are needed.

    With a hard limit slow readers, each of whom holds a connection, could stop everybody else. The pool never repeats
    a request: one that is sent just as the store closes the connection fails, and the caller knows whether it may be
    sent again.
    """

    noisy = False

    def __init__(self, clock: IReactorTime, endpoint: IStreamClientEndpoint, max_idle: int) -> None:
        self._clock = clock
        self._endpoint = endpoint
        self._max_idle = max_idle
        # The one used last is used next, so that surplus connections grow old and are closed.
        self._idle: list[Connection] = []
        self._look: IDelayedCall | None = None
        self._closing: set[Connection] = set()
        self._closed: Deferred[None] | None = None

    def request(self, method: bytes, head: bytes, body: IBodyProducer | None) -> Deferred[StoreResponse]:
        """Send ``head`` (request line and headers) and ``body``; the answer, once its head is there.

        Fails with ``BrokenAnswer``, or with what connecting fails with. Cancelling closes the connection.
        """
        if self._idle:
            return self._idle.pop().send(method, head, body)
        connecting: Deferred[Any] = self._endpoint.connect(self)
        return connecting.addCallback(lambda connection: connection.send(method, head, body))

    def close(self) -> Deferred[None]:
        """Close the idle connections; fires when they are closed."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self._closing.update(self._idle)
        if not self._closing:
            return succeed(None)
        closed: Deferred[None] = Deferred()
        self._closed = closed
        while self._idle:
            self._idle.pop().close()
        return closed

    # What Twisted and the connections call.

    def buildProtocol(self, addr: IAddress | None) -> Connection:
        return Connection(self)

    def free(self, connection: Connection) -> None:
        if len(self._idle) >= self._max_idle:
            connection.close()
            return
        connection.free_since = self._clock.seconds()
        self._idle.append(connection)
        if self._look is None:
            self._look = self._clock.callLater(KEPT_SECONDS, self._close_old)

    def gone(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self._closing.discard(connection)
        if not self._closing and self._closed is not None:
            closed, self._closed = self._closed, None
            closed.callback(None)

    def _close_old(self) -> None:
        self._look = None
        oldest = self._clock.seconds() - KEPT_SECONDS
        while self._idle and self._idle[0].free_since <= oldest:
            self._idle.pop(0).close()
        if self._idle:
            wait = self._idle[0].free_since - oldest
            self._look = self._clock.callLater(wait, self._close_old)
