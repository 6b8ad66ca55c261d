"""An answer of the store whose body is still arriving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocol
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone

from project_service.storage.s3.body import Pour

if TYPE_CHECKING:
    from project_service.storage.s3.connection import Connection
    from project_service.storage.s3.response_parser import ResponseParser

DONE = Failure(ResponseDone())


class StoreResponse:
    """The answer, and at the same time the transport of the protocol that reads its body.

    Pausing it pauses the connection to the store. What arrives before the body has a reader is kept here; the
    connection is paused then, so that it is no more than one read.

    ``headers`` have names in lower case. ``length`` is None where it is not known before the end.
    """

    __slots__ = (
        "_connection",
        "_ended",
        "_paused",
        "_reader",
        "_waiting",
        "code",
        "headers",
        "length",
    )

    def __init__(self, connection: Connection, head: ResponseParser) -> None:
        self.code = head.code
        self.length = head.length
        self.headers = head.headers
        self._connection: Connection | None = connection
        self._reader: IProtocol | None = None
        self._waiting: list[bytes] = []
        self._ended: Failure | None = None
        self._paused = False

    def deliverBody(self, protocol: IProtocol) -> None:
        if self._reader is not None:
            raise RuntimeError("the body has a reader already")
        self._reader = protocol
        protocol.makeConnection(self)  # type: ignore[arg-type]  # as Twisted's own, it is a transport for reading only
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            protocol.dataReceived(data)
        if self._ended is not None:
            protocol.connectionLost(self._ended)
        elif not self._paused:
            self.resumeProducing()

    def whole(self) -> bytes | None:
        """The body, if all of it has arrived and it has no reader; else None."""
        if self._ended is not DONE or self._reader is not None:
            return None
        return b"".join(self._waiting)

    # The connection's side.

    @property
    def has_reader(self) -> bool:
        """Whether the body has a reader (which pauses the connection itself when it wants to)."""
        return self._reader is not None

    def detach(self) -> None:
        """The body is complete, and the connection may serve another request. Pausing no longer reaches it."""
        self._connection = None

    def take(self, source: int, most: int) -> int:
        """As ``Pour.take``, where that is the reader."""
        return self._reader.take(source, most) if isinstance(self._reader, Pour) else 0

    def received(self, data: bytes) -> None:
        if self._reader is None:
            self._waiting.append(data)
        else:
            self._reader.dataReceived(data)

    def ended(self, reason: Failure = DONE) -> None:
        """Nothing more will come."""
        self._connection = None
        self._ended = reason
        if self._reader is not None:
            self._reader.connectionLost(reason)

    # The reader's side.

    def pauseProducing(self) -> None:
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resumeProducing(self) -> None:
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def loseConnection(self) -> None:
        """Give up the rest of the body, and with it the connection."""
        if self._connection is not None:
            self._connection.abort()
