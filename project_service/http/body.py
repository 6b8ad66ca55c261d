"""A request's body as it arrives, pulled by its reader.

The socket is read only as fast as chunks are asked for. Up to ``HIGH_WATER`` bytes that have not been asked for are
buffered; beyond that the connection is paused.
"""

from __future__ import annotations

from collections import deque

from twisted.internet.defer import Deferred

from project_service import errors
from project_service.errors import ApiError

# About two reads of a socket: enough to keep the reader busy, little enough for thousands of connections.
HIGH_WATER = 128 * 1024
# What a piece takes in memory besides its bytes. It counts, because a body may come in chunks of two bytes.
PIECE_BYTES = 64


class ClientGone(Exception):
    """The connection was lost while the request or its response was on its way."""


class Source:
    """What a body asks of the connection it arrives on. This one belongs to a request that is over."""

    def send_continue(self) -> None:
        """Send ``100 Continue``."""

    def pause_body(self) -> None:
        """Stop reading."""

    def resume_body(self) -> None:
        """Read again."""

    def watch_client(self) -> None:
        """See ``Request.end_with_client``."""

    def body_awaited(self, waiting: bool) -> None:
        """A reader begins (True) to wait for the client to send more, or goes on (False)."""


OVER = Source()


class Body:
    """``length`` is the Content-Length, None for a chunked body, 0 if there is none. ``whole`` is all of the body, if
    it has come already. ``complete``: every byte has arrived, read or not. ``awaits_continue`` while the client waits
    for ``100 Continue`` before it sends its body."""

    __slots__ = (
        "_buffered",
        "_chunks",
        "_failure",
        "_paused",
        "_waiting",
        "awaits_continue",
        "complete",
        "length",
        "received",
        "source",
    )

    def __init__(
        self, source: Source, length: int | None, expects_continue: bool, whole: bytes | None = None
    ) -> None:
        self.length = length
        self.received = 0
        self.source = source
        self.awaits_continue = expects_continue
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self.complete = length == 0 or whole is not None
        self._failure: Exception | None = None
        self._paused = False
        self._waiting: Deferred[None] | None = None
        if whole:
            self.received = len(whole)
            self._chunks.append(whole)
            self._buffered = len(whole) + PIECE_BYTES

    @property
    def awaited(self) -> bool:
        """True while a reader waits for the client to send more."""
        return self._waiting is not None

    async def next_chunk(self) -> bytes:
        """The next bytes, or ``b""`` at the end.

        The first call sends ``100 Continue`` if the client waits for one. Raises ``ClientGone`` if the connection is
        lost before the end, ``ApiError`` if the framing turns out to be broken.
        """
        if self.awaits_continue or not (self._chunks or self.complete):
            await self._wait()
            self.source.body_awaited(False)
        return self._take()

    async def _wait(self) -> None:
        """Until there is a chunk, or no more will come."""
        if self.awaits_continue:
            self.awaits_continue = False
            self.source.send_continue()
        while not self._chunks and not self.complete:
            if self._failure is not None:
                raise self._failure
            self._resume()
            self._waiting = Deferred()
            self.source.body_awaited(True)
            try:
                await self._waiting
            finally:
                self._waiting = None

    def _take(self) -> bytes:
        """The next chunk, or ``b""`` where there is none."""
        if not self._chunks:
            return b""
        chunk = self._chunks.popleft()
        self._buffered -= len(chunk) + PIECE_BYTES
        if self._paused and self._buffered < HIGH_WATER // 2:
            self._resume()
        return chunk

    async def read(self, limit: int) -> bytes:
        """The whole body; raises ``payload_too_large`` as soon as it is known to be longer than ``limit``.

        The caller decides when to go on, so ``body_awaited`` is not called when the wait is over.
        """
        if self.length is not None and self.length > limit:
            raise errors.payload_too_large(limit)
        if self.complete and not self.awaits_continue:
            body, self._buffered = b"".join(self._chunks), 0
            self._chunks.clear()
            if self._paused:
                self._resume()
            if len(body) > limit:
                raise errors.payload_too_large(limit)
            return body
        chunks: list[bytes] = []
        size = 0
        while True:
            if self.awaits_continue or not (self._chunks or self.complete):
                await self._wait()
            chunk = self._take()
            if not chunk:
                break
            size += len(chunk)
            if size > limit:
                raise errors.payload_too_large(limit)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # What the exchange calls.

    def feed(self, data: bytes) -> None:
        self.received += len(data)
        self._chunks.append(data)
        self._buffered += len(data) + PIECE_BYTES
        if self._buffered >= HIGH_WATER and not self._paused:
            self._paused = True
            self.source.pause_body()
        self._wake()

    def finish(self) -> None:
        self.complete = True
        self._wake()

    def fail(self, failure: ClientGone | ApiError) -> None:
        """No more will come. Does nothing once the body is complete."""
        if not self.complete and self._failure is None:
            self._failure = failure
            self._wake()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self.source.resume_body()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)


# The body of each request that has none.
EMPTY = Body(OVER, 0, False)
