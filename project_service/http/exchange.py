"""One request and its response on a connection: framing, early responses, streaming, the end.

It knows neither routes nor twisted.web. ``HttpConnection`` makes an ``Exchange`` of each head and feeds it with the
body; a ``Dispatch`` (the edge) answers it. What an exchange needs of the connection is ``Connection``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime

from project_service.errors import ApiError
from project_service.http.admission import Slot
from project_service.http.body import EMPTY, OVER, Body, ClientGone, Source
from project_service.http.head import RequestHead
from project_service.http.response import Producer, Reply, head_bytes
from project_service.lifecycle import IdleTimer, cancel

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

# After a response that came before the whole body, the rest of the body is read and thrown away for so long, and as
# long as it does not stall. A client or proxy that is still sending then reads the response instead of a reset.
DRAIN_SECONDS = 30.0
DRAIN_IDLE_SECONDS = 5.0
# A client that has left answers by a reset within this time.
RESET_SECONDS = 0.5
# RFC 9110 section 6.4.1: these have neither a body nor its length.
_BODILESS = (204, 304)
# A rest of up to this size is read so that the connection can be used again.
SHORT_REST = 1024 * 1024


class Connection(Protocol):
    """One client connection."""

    def write(self, data: bytes) -> None: ...
    def take(self, source: int, max_bytes: int) -> int:
        """As ``Splicing.move``, to the client."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def register_producer(self, producer: Producer) -> None: ...
    def unregister_producer(self) -> None: ...
    def exchange_done(self, keep_alive: bool) -> None:
        """The response is written and the request read; without ``keep_alive`` the connection closes."""

    def abort(self) -> None: ...
    def abort_if_reset(self) -> None:
        """Abort if the client has refused what it was sent, because nobody is there any more."""

    def progress(self) -> object:
        """A value that changes whenever the client has taken bytes."""


class BadLength(Exception):
    """A streamed body is longer or shorter than its Content-Length: the client would misread what follows."""


class Stream:
    """The ``Sink`` of a streamed response, and the producer that the connection pauses and resumes. A client that
    takes nothing for ``idle_seconds`` is cut off.

    ``length`` is the body's Content-Length, None if it has none. If ``chunked``, every piece is sent as a chunk.
    """

    def __init__(
        self,
        connection: Connection,
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
        self._unread = IdleTimer(clock, idle_seconds, connection.abort, connection.progress)
        connection.register_producer(self)

    def write(self, data: bytes) -> None:
        """As ``Sink.write``; raises ``BadLength`` for more than was announced."""
        if self._gone or not data:
            return
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise BadLength
        self.sent_bytes += len(data)
        # RFC 9112 section 7.1
        self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def take(self, source: int, max_bytes: int) -> int:
        if self._gone or self._chunked:
            return 0
        limit = max_bytes if self._left is None else min(max_bytes, self._left)
        taken = self._connection.take(source, limit)
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
        self._unread.stop()
        self._producer = None
        self._connection.unregister_producer()
        if self._chunked:
            self._connection.write(LAST_CHUNK)

    def lost(self) -> None:
        """The client has left: the producer is stopped, and ``drained`` raises ``ClientGone``."""
        self._gone = True
        self._unread.stop()
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()
        self._fire(ClientGone())

    # What the connection calls.

    def pauseProducing(self) -> None:
        if self._paused:
            return
        self._paused = True
        self._unread.start()
        if self._producer is not None:
            self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        self._unread.stop()
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


class Exchange(Source):
    """One request and its response.

    ``on_gone`` is called when the connection is lost before the answer is out. ``slot`` is None until it is the
    request's turn. It is released while the handler waits for the client to send more of the body. ``body`` is the
    whole body where it came together with the head.
    """

    def __init__(
        self,
        connection: Connection,
        clock: IReactorTime,
        idle_seconds: float,
        head: RequestHead,
        body: bytes | None = None,
    ) -> None:
        self.method = head.method
        self.target = head.target
        self.headers = head.headers
        self.status = 0
        self.on_gone: Callable[[], None] | None = None
        self.slot: Slot | None = None
        self._connection = connection
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._version = head.version
        self._keep_alive = head.keep_alive
        # How much of the response's body has been written, if it is not streamed.
        self.sent_bytes = 0
        self._gone = False
        self._answered = False
        self._received = body is not None
        self._closed = False
        self._close_call: IDelayedCall | None = None
        self.stream: Stream | None = None
        self._draining: IdleTimer | None = None
        # Since when the client may send its body, without the time in which the connection was not read.
        self._asked_at: float | None = None
        # Whether the client sends nothing more, so that the rest of a body need not be waited for.
        self.input_over = False
        self._watched = False
        self._held_at = 0.0
        self._invited_at = float("-inf")
        if body is not None:
            self.body = Body(self, head.length, False, body) if body else EMPTY
            return
        expected = head.headers.get(b"expect") or b""
        continues = head.version == b"HTTP/1.1" and expected.lower() == b"100-continue" and head.length != 0
        self.body = Body(self, head.length, continues)

    # What the body calls (``body.Source``).

    def send_continue(self) -> None:
        self._invited_at = self._clock.seconds()
        if not self._gone:
            self._connection.write(CONTINUE)

    def pause_body(self) -> None:
        self._held_at = self._clock.seconds()
        self._connection.pause_reading()

    def resume_body(self) -> None:
        if self._asked_at is not None:
            self._asked_at += self._clock.seconds() - self._held_at
        if not self._received:
            self._connection.resume_reading()

    def body_awaited(self, waiting: bool) -> None:
        if waiting and self._asked_at is None:
            self._asked_at = self._clock.seconds()
        if self.slot is not None:
            if waiting:
                self.slot.release()
            else:
                self.slot.retake()

    def watch_client(self) -> None:
        self._watched = True
        if self.input_over:
            self._ask_client()

    # What the connection calls.

    def feed(self, data: bytes) -> None:
        if not self._answered:
            self.body.feed(data)
            return
        self.body.received += len(data)

    def request_complete(self) -> None:
        """The connection has read the request to its end and could take the next one."""
        # Whoever pauses reading from now on does so for the next request.
        self._connection.resume_reading()
        self._received = True
        self.body.finish()
        if self._answered:
            self._close()

    def fail_body(self, failure: ApiError) -> None:
        """The rest of the body cannot be read, so the connection cannot be used again."""
        self._keep_alive = False
        self.body.fail(failure)

    def sent(self, now: float) -> tuple[int, float] | None:
        """As ``limits.LimitedConnection.sent``; a body that is being thrown away counts as one that is waited for."""
        waiting = self.body.awaited or self._draining is not None
        if not waiting or self._asked_at is None:
            return None
        return self.body.received, now - self._asked_at

    @property
    def kept_waiting(self) -> bool:
        """Whether the client cannot be late with its body yet: it waits for ``100 Continue``, or got it only just."""
        late = self._clock.seconds() - self._invited_at >= self._idle_seconds
        return self.body.awaits_continue or not late

    def input_ended(self) -> None:
        """The client sends nothing more: it may wait for its answer, or have left.

        A request that waits for its turn would then take it from others.
        """
        self.input_over = True
        if self._draining is not None:
            self._close()
        elif self.slot is None or self._watched:
            self._ask_client()

    def _ask_client(self) -> None:
        """Find out whether the client is there. What one that has left is sent, is answered by a reset; and each
        client of HTTP/1.1 takes a ``100 Continue`` (RFC 9110 section 15.2)."""
        if self._version == b"HTTP/1.1" and self._close_call is None and not self.status:
            self._connection.write(CONTINUE)
            self._close_call = self._clock.callLater(RESET_SECONDS, self._look_for_reset)

    def _look_for_reset(self) -> None:
        # A watched request is slow, and its client may be far away.
        again = self._watched and not self.status
        self._close_call = self._clock.callLater(RESET_SECONDS, self._look_for_reset) if again else None
        self._connection.abort_if_reset()

    def connection_lost(self) -> None:
        self._gone = True
        self._closed = True
        self._stop_waiting()
        self.body.fail(ClientGone())
        self.body.source = OVER  # otherwise a reference cycle
        if self.stream is not None:
            self.stream.lost()
        if self.on_gone is not None:
            self.on_gone()

    # What the edge calls.

    def close_after(self) -> None:
        """The connection closes when this response is out."""
        self._keep_alive = False

    def is_bodiless(self, status: int) -> bool:
        """Whether the response must have no body, whatever the handler made (RFC 9110 section 6.4.1)."""
        return self.method == "HEAD" or status in _BODILESS

    def send(self, reply: Reply, headers: list[tuple[str, str]]) -> None:
        """Write a whole response. ``headers`` are complete but for framing."""
        if self._gone:
            return
        status, body = reply.status, reply.body
        if status not in _BODILESS:
            headers.append(("Content-Length", str(len(body))))
        if self.method == "HEAD" or status in _BODILESS:
            body = b""
        self._begin(status, headers, body, reply.reason)
        self.end()

    def start(self, status: int, headers: list[tuple[str, str]], length: int | None) -> Stream:
        """Write the head of a streamed response; the sink writes the body, ``end`` ends it."""
        chunked, bodiless = False, self.is_bodiless(status)
        if length is not None and status != 204:
            headers.append(("Content-Length", str(length)))
        elif not bodiless and self._version == b"HTTP/1.1":
            headers.append(("Transfer-Encoding", "chunked"))
            chunked = True
        elif not bodiless:
            self._keep_alive = False
        self._begin(status, headers, b"")
        announced = None if bodiless else length
        self.stream = Stream(self._connection, self._clock, self._idle_seconds, announced, chunked)
        if self._gone:
            self.stream.lost()
        return self.stream

    def end(self) -> None:
        """The response is whole. Raises ``BadLength`` for a streamed one that is shorter than announced."""
        if self._gone:
            return
        if self.stream is not None:
            self.stream.end()
        self._answered = True
        if self._received:
            self._close()
        elif not self.body.complete:
            self._drain()

    def _drain(self) -> None:
        """Read the rest of the body and throw it away (see ``DRAIN_SECONDS``)."""
        if self.input_over:
            self._close()
            return
        self._asked_at = self._clock.seconds()
        self._close_call = self._clock.callLater(DRAIN_SECONDS, self._close)
        self._draining = IdleTimer(self._clock, DRAIN_IDLE_SECONDS, self._close, lambda: self.body.received)
        self._draining.start()
        self._connection.resume_reading()

    def abort(self) -> None:
        if not self._gone:
            self._connection.abort()

    def _begin(
        self, status: int, headers: list[tuple[str, str]], body: bytes, reason: str | None = None
    ) -> None:
        self.status = status
        left = not self._received and not self.body.complete
        if left and (self.body.awaits_continue or not self._short_rest()):
            self._keep_alive = False
        if not self._keep_alive:
            headers.append(("Connection", "close"))
        self.sent_bytes = len(body)
        self._connection.write(head_bytes(status, headers, reason) + body)

    def _short_rest(self) -> bool:
        length = self.body.length
        return length is not None and length - self.body.received <= SHORT_REST

    def _stop_waiting(self) -> None:
        cancel(self._close_call)
        if self._draining is not None:
            self._draining.stop()
            self._draining = None

    def _close(self) -> None:
        if self._closed:
            return
        if self._close_call is not None or self._draining is not None:
            self._stop_waiting()
        self._closed = True
        self.body.source = OVER  # otherwise a reference cycle
        self._connection.exchange_done(self._keep_alive and self._received)


class Dispatch(Protocol):
    """What a connection hands its requests to. Implemented by ``edge.Edge``."""

    def begin(self, exchange: Exchange, peer: IAddress, secure: bool) -> None:
        """Start answering. May answer before it returns."""

    def refusal(self, error: ApiError, peer: IAddress, target: bytes) -> bytes:
        """The whole response to a request that could not be parsed; the connection closes after it.

        ``target`` is as much of the request's target as could be read.
        """

    def rejection(self) -> bytes:
        """The whole response to a connection for which there is no room."""
