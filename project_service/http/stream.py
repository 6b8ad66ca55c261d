"""The client's side of a streamed response: paused and resumed by the socket, aborted when the client stalls."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from project_service.http.body import ClientGone
from project_service.http.idle_timeout import IdleTimeout
from project_service.http.outbound import Producer
from project_service.http.protocol import wire


class Answering(Protocol):
    """What a stream needs of its exchange."""

    gone: bool

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...


class Stream:
    """The ``Sink`` of a streamed response, and the producer that the connection pauses and resumes."""

    def __init__(
        self, exchange: Answering, connection: wire.Connection, clock: IReactorTime, idle_seconds: float
    ) -> None:
        self._exchange = exchange
        self._connection = connection
        self._paused = False
        self._producer: Producer | None = None
        self._waiting: Deferred[None] | None = None
        self._idle = IdleTimeout(clock, idle_seconds, connection.progress, exchange.abort)
        connection.register_producer(self)

    def write(self, data: bytes) -> None:
        self._exchange.write(data)

    async def drained(self) -> None:
        if self._exchange.gone:
            raise ClientGone
        if not self._paused:
            return
        self._waiting = Deferred()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def register_producer(self, producer: Producer) -> None:
        self._producer = producer
        if self._exchange.gone:
            producer.stopProducing()
        elif self._paused:
            producer.pauseProducing()

    def unregister_producer(self) -> None:
        self._producer = None

    def close(self) -> None:
        """The response is complete."""
        self._idle.stop()
        self._producer = None
        self._connection.unregister_producer()

    def lost(self) -> None:
        """The client has left: the producer is stopped, and ``drained`` raises ``ClientGone``."""
        self._idle.stop()
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()
        self._fire(ClientGone())

    # What the connection calls.

    def pauseProducing(self) -> None:
        if self._paused:
            return
        self._paused = True
        self._idle.watch()
        if self._producer is not None:
            self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        self._idle.stop()
        if self._producer is not None:
            self._producer.resumeProducing()
        self._fire(None)

    def stopProducing(self) -> None:
        """The connection is going down; ``connection_lost`` follows."""

    def _fire(self, failure: Exception | None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            if failure is None:
                waiting.callback(None)
            else:
                waiting.errback(failure)
