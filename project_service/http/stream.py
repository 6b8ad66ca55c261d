"""The body of a streamed response: paused and resumed by the socket, aborted when the client stalls."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from project_service.http.body import ClientGone
from project_service.http.idle_timeout import IdleTimeout
from project_service.http.outbound import Producer
from project_service.http.protocol import wire


class BadLength(Exception):
    """A streamed body is longer or shorter than its Content-Length: the client would misread what follows."""


class Stream:
    """The ``Sink`` of a streamed response, and the producer that the connection pauses and resumes.

    ``length`` is the body's Content-Length, None where it has none. If ``chunked``, every piece is sent as a chunk.
    """

    def __init__(
        self,
        connection: wire.Connection,
        clock: IReactorTime,
        idle_seconds: float,
        length: int | None,
        chunked: bool,
    ) -> None:
        self.sent_bytes = 0
        self._connection = connection
        self._left = length
        self._chunked = chunked
        self._gone = False
        self._paused = False
        self._producer: Producer | None = None
        self._waiting: Deferred[None] | None = None
        self._idle = IdleTimeout(clock, idle_seconds, connection.progress, connection.abort)
        connection.register_producer(self)

    def write(self, data: bytes) -> None:
        """As ``Sink.write``; raises ``BadLength`` where that is more than was announced."""
        if self._gone or not data:
            return
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise BadLength
        self.sent_bytes += len(data)
        self._connection.write(wire.chunk(data) if self._chunked else data)

    def take(self, source: int, most: int) -> int:
        """As ``Sink.take``."""
        if self._gone or self._chunked:
            return 0
        taken = self._connection.take(source, most if self._left is None else min(most, self._left))
        if self._left is not None:
            self._left -= taken
        self.sent_bytes += taken
        return taken

    async def drained(self) -> None:
        if self._gone:
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
        if self._gone:
            producer.stopProducing()
        elif self._paused:
            producer.pauseProducing()

    def unregister_producer(self) -> None:
        self._producer = None

    def end(self) -> None:
        """The body is complete; raises ``BadLength`` where it is shorter than announced."""
        if self._left:
            raise BadLength
        self._idle.stop()
        self._producer = None
        self._connection.unregister_producer()
        if self._chunked:
            self._connection.write(wire.LAST_CHUNK)

    def lost(self) -> None:
        """The client has left: the producer is stopped, and ``drained`` raises ``ClientGone``."""
        self._gone = True
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
