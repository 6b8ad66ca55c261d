"""One HTTP/1.1 connection: queueing of pipelined requests, flow control, timeouts, and the end.

``HttpConnection`` feeds bytes to a ``head.RequestParser`` and gets back heads and bodies, of which it makes an
``Exchange`` each. One exchange at a time is handed to ``exchange.Dispatch``; the others wait. ``ConnectionFactory``
makes a connection for each client, and knows which are open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IHalfCloseableProtocol,
    IProtocolNegotiationFactory,
    IPushProducer,
    IReactorTime,
    ISSLTransport,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from project_service import errors
from project_service.errors import ApiError
from project_service.http.exchange import Dispatch, Exchange
from project_service.http.head import CachedHead, RequestHead, RequestParser
from project_service.http.limits import LARGE_BYTES, AcceptThrottle, ConnectionLimit, UnsentLimit
from project_service.http.response import Producer
from project_service.lifecycle import IdleTimer, cancel
from project_service.network import (
    forget_unsent,
    is_reset,
    read_widely,
    socket_progress,
    tune,
    unsent,
    write_now,
)
from project_service.splicing import Splicing

# For how long what a client still sends after its last response is read and thrown away.
LINGER_SECONDS = 5.0
LONG_AGO = float("-inf")

HEAD_END = b"\r\n\r\n"
# Bytes parsed at a time outside bodies. Small, since what follows an unanswered request has to stay unparsed.
HEAD_SLICE = 4096
CHUNKS_SLICE = 8 * 1024
WIDE_BYTES = 128 * 1024  # read from the socket at a time, for long bodies
# Bytes read ahead while a request is being answered: reading has to go on, or the client's leaving would not be
# noticed.
EAGER_BYTES = 16 * 1024
# Of pipelined requests so many begin in one turn of the reactor; then other connections have theirs.
TURN = 16
CHUNKS_TURN = 1000  # likewise for the chunks of a body, which may be of one byte each


class BaseConnection:
    """Closes a connection so that its client gets to read the last response. Twisted sets ``transport``.

    Once the connection is closing, a client that takes nothing for ``idle_seconds`` is cut off.
    """

    transport: Any

    def __init__(self, clock: IReactorTime, idle_seconds: float) -> None:
        super().__init__()
        self.clock = clock
        self.idle_seconds = idle_seconds
        self._unread = IdleTimer(clock, idle_seconds, self.abort, self.progress)
        self._linger_call: IDelayedCall | None = None

    def abort(self) -> None:
        self.transport.abortConnection()

    def progress(self) -> object:
        return socket_progress(self.transport)

    def writeConnectionLost(self) -> None:
        """Our direction has been closed (Twisted's ``IHalfCloseableProtocol``), which needs no answer."""

    @property
    def secure(self) -> bool:
        return ISSLTransport(self.transport, None) is not None

    def close(self, more_may_come: bool) -> None:
        """Close the connection once everything is written.

        The kernel resets a connection that is closed while bytes are unread or still arriving. A client that has not
        read its response by then loses it. So where ``more_may_come``, only our direction is closed at first, and for
        ``LINGER_SECONDS`` whatever arrives is thrown away (RFC 9112 section 9.6). Over TLS our close_notify is sent,
        and the client's is not waited for beyond that time (RFC 8446 section 6.1).
        """
        self._unread.start()
        if not more_may_come:
            self._close_both()
            return
        if self.secure:
            self.transport.loseConnection()
        else:
            self.transport.loseWriteConnection()
        self._linger_call = self.clock.callLater(LINGER_SECONDS, self.stop_lingering)

    @property
    def lingers(self) -> bool:
        """Whether our direction of the connection is closed, and it is only read from until its client closes it
        too."""
        return self._linger_call is not None

    def stop_lingering(self) -> None:
        cancel(self._linger_call)
        self._close_both()

    def _close_both(self) -> None:
        """Close both directions. Over TLS also the connection beneath, as TLS would wait for the client's end."""
        self.transport.loseConnection()
        if self.secure:
            self.transport.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        forget_unsent(self.transport)
        self._unread.stop()
        cancel(self._linger_call)


@implementer(IPushProducer, IHalfCloseableProtocol)
class HttpConnection(BaseConnection, Protocol):
    """The connection of one client. Parsing and answering take turns in one loop, so that neither ever runs inside
    the other."""

    def __init__(
        self, factory: ConnectionFactory, dispatch: Dispatch, clock: IReactorTime, idle_seconds: float
    ) -> None:
        super().__init__(clock, idle_seconds)
        self._connections = factory
        self.dispatch = dispatch
        self._parser: RequestParser | None = RequestParser(self)
        self._unparsed: deque[bytes] = deque()
        self._unparsed_bytes = 0
        # Requests whose head has been parsed, in order. The first is being answered, or will be next.
        self._exchanges: deque[Exchange] = deque()
        self._receiving: Exchange | None = None
        # The input cannot be parsed: why, and as much of the target as has come.
        self._refusal: tuple[ApiError, bytes] | None = None
        self._answering = self._proceeding = False
        self._to_begin = TURN
        self._later: IDelayedCall | None = None
        self._producer: Producer | None = None
        self._reading = True
        self._body_paused = self._blocked = self._closing = self._input_ended = False
        # Within ``idle_seconds`` a head has to arrive whole, a body has to move, and the next request has to begin.
        self._idle = IdleTimer(clock, idle_seconds, self._idle_too_long)
        self._peer: IAddress | None = None
        self._secure = False
        # The last head that may come again, and the first one in what is being parsed.
        self._cached_head: CachedHead | None = None
        self._parsed: RequestHead | None = None

    # What the transport calls.

    def connectionMade(self) -> None:
        self._connections.made(self)
        self._secure = self.secure
        tune(self.transport)
        self.transport.registerProducer(self, True)
        self._idle.start()

    def dataReceived(self, data: bytes) -> None:
        if self._parser is None:
            # Closing. What still comes is read and dropped, so that the client gets to see its response.
            return
        if self._cached_head is not None and not (
            self._exchanges or self._unparsed or self._parser.begun or self._blocked or self._closing
        ):
            again = self._cached_head.again(data)
            if again is not None:
                exchange = Exchange(self, self.clock, self.idle_seconds, *again)
                self._exchanges.append(exchange)
                self._answering = True
                self.dispatch.begin(exchange, self._peer or self.peer(), self._secure)
                return
        self._unparsed.append(data)
        self._unparsed_bytes += len(data)
        self._proceed()

    def readConnectionLost(self) -> None:
        """The client sends nothing more. Its whole requests are answered before the connection closes."""
        self._input_ended = True
        if self._closing:
            self._close_both()
            return
        if self._answering:
            self._exchanges[0].input_ended()
        self._proceed()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._closing = True
        super().connectionLost(reason)
        self._idle.stop()
        cancel(self._later)
        self._stop_parsing()
        exchanges, self._exchanges = self._exchanges, deque()
        for exchange in exchanges:
            exchange.connection_lost()
        self._connections.lost(self)

    def pauseProducing(self) -> None:
        """The client takes less than it is sent: reading from it stops, and a stream to it is paused."""
        self._blocked = True
        self._set_reading()
        if self._producer is not None:
            self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        self._blocked = False
        self._idle.touch()
        if self._producer is not None:
            self._producer.resumeProducing()
        self._proceed()

    def stopProducing(self) -> None:
        """The connection is going down; ``connectionLost`` follows."""

    # The loop.

    def _proceed(self) -> None:
        """Do all that can be done now. Called from within itself it returns at once: the loop sees to it."""
        if self._proceeding:
            return
        cancel(self._later)
        self._later, self._proceeding, self._to_begin = None, True, TURN
        try:
            while not self._closing and self._step():
                pass
        finally:
            self._proceeding = False
        self._set_reading()

    def _step(self) -> bool:
        if self._exchanges and not self._answering and not self._blocked:
            return self._begin(self._exchanges[0])
        if self._unparsed and not self._full():
            return self._parse(self._unparsed.popleft())
        if self._exchanges:
            if self._input_ended and self._receiving is not None:
                self.loseConnection()  # its body will never be whole
            return False
        if self._refusal is not None:
            self.transport.write(self.dispatch.refusal(self._refusal[0], self.peer(), self._refusal[1]))
        if self._parser is None or (self._input_ended and not self._unparsed):
            self.loseConnection()
        return False

    def _begin(self, exchange: Exchange) -> bool:
        if not self._to_begin:
            self._later = self.clock.callLater(0, self._proceed)
            return False
        self._to_begin -= 1
        self._answering = True
        exchange.input_over = self._input_ended
        self.dispatch.begin(exchange, self.peer(), self._secure)
        return True

    def peer(self) -> IAddress:
        """The client's address. To be called only after bytes have come, since a PROXY header may have to name it."""
        if self._peer is None:
            self._peer = self.transport.getPeer()
        return self._peer

    def _full(self) -> bool:
        """Whether nothing more is to be parsed: a whole request is unanswered, or the client takes no responses."""
        return self._receiving is None and (bool(self._exchanges) or self._blocked)

    def _parse(self, data: bytes) -> bool:
        """Parse some of ``data`` and put the rest back. False if that is enough for this turn."""
        assert self._parser is not None
        limit = HEAD_SLICE
        if self._receiving is not None:
            self._idle.touch()
            limit = CHUNKS_SLICE if self._receiving.body.length is None else len(data)
        if len(data) > limit:
            self._unparsed.appendleft(data[limit:])
            data = data[:limit]
        self._unparsed_bytes -= len(data)
        # A head can be cached only if it came in one piece.
        head = b"" if self._parser.begun else data[: data.find(HEAD_END) + len(HEAD_END)]
        self._parsed = None
        try:
            self._parser.feed(data)
        except ApiError as fault:
            self._refuse(fault)
        self._cache(head)
        if self._parser is None or self._parser.chunks < CHUNKS_TURN:
            return True
        self._parser.chunks = 0
        self._later = self.clock.callLater(0, self._proceed)
        return False

    def _cache(self, data: bytes) -> None:
        """Cache the head that has been parsed of ``data``, if it may come again."""
        if self._parsed is not None and data.endswith(HEAD_END):
            self._cached_head = CachedHead.of(self._parsed, data)

    def _refuse(self, fault: ApiError) -> None:
        """The input cannot be parsed: the connection ends once the requests before it are answered."""
        if self._receiving is not None:
            # In mid-body the handler, which reads it, makes the response.
            self._receiving.fail_body(fault)
            self._receiving = None
        elif self._parser is not None and self._parser.begun:
            # Only within a request: bytes after one that was the last (Connection: close) are ignored.
            self._refusal = fault, self._parser.target
        self._stop_parsing()

    def _stop_parsing(self) -> None:
        if self._parser is not None:
            self._parser.close()
            self._parser = None
        self._unparsed.clear()
        self._unparsed_bytes = 0

    # What the parser calls (``head.Requests``).

    def head_begun(self) -> None:
        self._idle.touch()

    def head_received(self, head: RequestHead) -> None:
        if head.length is None or head.length > WIDE_BYTES:
            read_widely(self.transport, WIDE_BYTES)
        if self._parsed is None:
            self._parsed = head
        self._receiving = Exchange(self, self.clock, self.idle_seconds, head)
        self._exchanges.append(self._receiving)

    def body_received(self, data: bytes) -> None:
        assert self._receiving is not None
        self._receiving.feed(data)

    def request_received(self) -> None:
        exchange, self._receiving = self._receiving, None
        assert exchange is not None
        exchange.request_complete()

    # What an exchange calls (``exchange.Connection``).

    def write(self, data: bytes) -> None:
        write_now(self.transport, data)
        if len(data) > LARGE_BYTES:
            self._connections.unsent.wrote(self)

    def take(self, source: int, max_bytes: int) -> int:
        return int(self._connections.splicing.move(source, self.transport, max_bytes))

    def exchange_done(self, keep_alive: bool) -> None:
        self._exchanges.popleft()
        self._answering = False
        self._idle.touch()
        if not keep_alive or self._closing:
            self.loseConnection()
        elif (
            self._exchanges
            or self._unparsed
            or self._input_ended
            or self._parser is None
            or not self._reading
        ):
            self._proceed()

    def abort_if_reset(self) -> None:
        if is_reset(self.transport):
            self.abort()

    def pause_reading(self) -> None:
        # Only called from within ``_proceed``, which pauses the transport at its end.
        self._body_paused = True

    def resume_reading(self) -> None:
        if self._body_paused:
            self._body_paused = False
            self._idle.touch()
            self._set_reading()

    def register_producer(self, producer: Producer) -> None:
        self._producer = producer
        if self._blocked:
            producer.pauseProducing()

    def unregister_producer(self) -> None:
        self._producer = None

    # What the limits ask when there are too many connections, or too many unsent bytes (``limits``).

    @property
    def idle_since(self) -> float | None:
        if self.lingers:
            return LONG_AGO
        return None if self._exchanges or self._closing else self._idle.touched_at

    def sent(self, now: float) -> tuple[int, float] | None:
        return self._exchanges[0].sent(now) if self._exchanges else None

    @property
    def unsent_bytes(self) -> int:
        return unsent(self.transport)

    def time_out(self) -> None:
        if self.lingers:
            self.stop_lingering()
        elif self._receiving is not None and not self._body_paused:
            self._refuse(errors.request_timeout())
            self._proceed()
        elif not self._answering:
            self.loseConnection()

    def _set_reading(self) -> None:
        wanted = not (self._body_paused or self._blocked or self._unparsed_bytes > EAGER_BYTES)
        if wanted != self._reading and not self._input_ended:
            self._reading = wanted
            if wanted:
                self.transport.resumeProducing()
            else:
                self.transport.pauseProducing()

    def _idle_too_long(self) -> None:
        kept_waiting = self._answering and self._receiving is not None and self._receiving.kept_waiting
        if not kept_waiting:
            self.time_out()
        if not self._closing:
            self._idle.start()

    def loseConnection(self) -> None:
        """Close once everything is written; a client that takes nothing any more is cut off."""
        if self._closing:
            return
        self._closing = True
        # After the last request, after something that was not one, or of a body that nobody waited for.
        behind = self._parser is None or bool(self._unparsed) or self._receiving is not None
        self._stop_parsing()
        self._body_paused = self._blocked = False
        self._set_reading()
        self.transport.unregisterProducer()
        self.close(more_may_come=behind and not self._input_ended)


@implementer(IProtocolNegotiationFactory)
class ConnectionFactory(Factory):
    """Makes a connection for each client. ``dispatch`` gets every request. ``idle_seconds`` is how long a client may
    do nothing.

    With ``max_connections`` open, each new one takes the place of an idle connection or of one whose body hardly
    moves (see ``ConnectionLimit``). Where there is no such connection, the new one is answered 503 and closed.
    """

    noisy = False

    def __init__(
        self, dispatch: Dispatch, clock: IReactorTime, idle_seconds: float, max_connections: int
    ) -> None:
        self._dispatch = dispatch
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._limit: ConnectionLimit[HttpConnection] = ConnectionLimit(max_connections, clock.seconds)
        self.unsent = UnsentLimit(clock.seconds)
        # Its ``ports`` are set when they are opened.
        self.throttle = AcceptThrottle(clock)
        self.splicing = Splicing()
        self._empty: Deferred[None] | None = None

    @property
    def connections(self) -> Collection[HttpConnection]:
        """The open connections; the collection is live."""
        return self._limit.connections

    def buildProtocol(self, addr: IAddress | None) -> HttpConnection | RejectedConnection:
        if not self._limit.for_one_more():
            self.throttle.rejected()
            return RejectedConnection(self._dispatch, self._clock)
        return HttpConnection(self, self._dispatch, self._clock, self._idle_seconds)

    def made(self, connection: HttpConnection) -> None:
        self._limit.enter(connection)

    def lost(self, connection: HttpConnection) -> None:
        self._limit.leave(connection)
        self.unsent.leave(connection)
        if not self._limit.connections and self._empty is not None:
            empty, self._empty = self._empty, None
            empty.callback(None)

    def close_all(self) -> Deferred[None]:
        """Close each connection once what was written to it has been taken; fires when none is left."""
        empty: Deferred[None] = Deferred()
        self._empty = empty
        for connection in list(self._limit.connections):
            connection.loseConnection()
        if not self._limit.connections and self._empty is not None:
            self._empty = None
            empty.callback(None)
        return empty

    def abort_all(self) -> None:
        for connection in list(self._limit.connections):
            connection.abort()

    def acceptableProtocols(self) -> list[bytes]:
        """The protocols for ALPN (RFC 7301). Twisted 26 aborts the handshake with clients that offer only others than
        these, and ``curl -0`` offers only HTTP/1.0."""
        return [b"http/1.1", b"http/1.0"]


class RejectedConnection(BaseConnection, Protocol):
    """A connection too many: it is answered 503 and closed.

    That also ends connections over TLS whose client never makes the handshake.
    """

    def __init__(self, dispatch: Dispatch, clock: IReactorTime) -> None:
        super().__init__(clock, LINGER_SECONDS)
        self._dispatch = dispatch

    def connectionMade(self) -> None:
        self.transport.write(self._dispatch.rejection())
        self.close(more_may_come=True)
