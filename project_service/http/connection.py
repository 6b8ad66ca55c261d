"""One HTTP/1.1 connection with llhttp as its parser: queueing, flow control, timeouts."""

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
from project_service.http.exchange import Dispatch, Exchange, IdleTimeout
from project_service.http.head import KeptHead, RequestHead, RequestParser
from project_service.http.limits import LARGE_BYTES, AcceptThrottle, ConnectionLimit, UnsentLimit
from project_service.http.response import Producer
from project_service.lifecycle import cancel
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

# What a connection that is served and one that is rejected share: who the client is, and how it is closed.


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


HEAD_END = b"\r\n\r\n"
# Bytes parsed at a time outside bodies. Small, since what follows an unanswered request has to stay unparsed.
HEAD_SLICE = 4096
CHUNKS_SLICE = 8 * 1024
WIDE_BYTES = 128 * 1024  # read from the socket at a time, for long bodies
# Bytes read ahead while an answer is under way: reading has to go on, or the client's leaving would not be noticed.
EAGER_BYTES = 16 * 1024
# Of pipelined requests so many begin in one turn of the reactor; then other connections have theirs.
TURN = 16
CHUNKS_TURN = 1000  # likewise for the chunks of a body, which may be of one byte each


@implementer(IPushProducer, IHalfCloseableProtocol)
class LeanChannel(BaseChannel, Protocol):
    """One connection. ``factory`` is told of its beginning and end."""

    def __init__(self, factory: Any, dispatch: Dispatch, clock: IReactorTime, idle_seconds: float) -> None:
        super().__init__(clock, idle_seconds)
        self.factory = factory
        self.dispatch = dispatch
        self._parser: RequestParser | None = RequestParser(self)
        self._unparsed: deque[bytes] = deque()
        self._unparsed_bytes = 0
        # Requests whose head has been parsed, in order. The first is being answered, or will be next.
        self._exchanges: deque[Exchange] = deque()
        self._receiving: Exchange | None = None
        self._refusal: tuple[ApiError, bytes] | None = None  # and as much of the target as has come
        self._answering = self._working = False
        self._to_begin = TURN
        self._later: IDelayedCall | None = None
        self._producer: Producer | None = None
        self._reading = True
        self._body_paused = self._blocked = self._closing = self._input_ended = False
        self._since = 0.0
        self._idle_call: IDelayedCall | None = None
        self._secure = False
        # The last head that may come again, and the first one in what is being parsed.
        self._kept: KeptHead | None = None
        self._parsed: RequestHead | None = None

    # The transport's side.

    def connectionMade(self) -> None:
        self.factory.opened(self)
        self._secure = self.secure
        tune(self.transport)
        self.transport.registerProducer(self, True)
        self._since = self.clock.seconds()
        self._idle_call = self.clock.callLater(self.idle_seconds, self._check_idle)

    def dataReceived(self, data: bytes) -> None:
        if self._parser is None:
            # Closing. What still comes is read and dropped, so that the client gets to see its answer.
            return
        if self._kept is not None and not (
            self._exchanges or self._unparsed or self._parser.begun or self._blocked or self._closing
        ):
            again = self._kept.again(data)
            if again is not None:
                self._since = self.clock.seconds()
                exchange = Exchange(self, self.clock, self.idle_seconds, *again)
                self._exchanges.append(exchange)
                self._answering = True
                self.dispatch.begin(exchange, self._peer or self.who(), self._secure)
                return
        self._unparsed.append(data)
        self._unparsed_bytes += len(data)
        self._work()

    def readConnectionLost(self) -> None:
        """The client sends nothing more. Its whole requests are answered before the connection closes."""
        self._input_ended = True
        if self._closing:
            self._close()
            return
        if self._answering:
            self._exchanges[0].input_ended()
        self._work()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._closing = True
        self.is_gone()
        cancel(self._idle_call)
        cancel(self._later)
        self._stop_parsing()
        exchanges, self._exchanges = self._exchanges, deque()
        for exchange in exchanges:
            exchange.connection_lost()
        self.factory.gone(self)

    def pauseProducing(self) -> None:
        """The client takes less than it is sent: reading from it stops, and a stream to it is paused."""
        self._blocked = True
        self._set_reading()
        if self._producer is not None:
            self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        self._blocked = False
        self._since = self.clock.seconds()
        if self._producer is not None:
            self._producer.resumeProducing()
        self._work()

    def stopProducing(self) -> None:
        """The connection is going down; ``connectionLost`` follows."""

    # Parsing and answering take turns in one loop, so that neither ever runs inside the other.

    def _work(self) -> None:
        """Do all that can be done now. Called from within itself it returns at once: the loop sees to it."""
        if self._working:
            return
        cancel(self._later)
        self._later, self._working, self._to_begin = None, True, TURN
        try:
            while not self._closing and self._step():
                pass
        finally:
            self._working = False
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
            self.transport.write(self.dispatch.refusal(self._refusal[0], self.who(), self._refusal[1]))
        if self._parser is None or (self._input_ended and not self._unparsed):
            self.loseConnection()
        return False

    def _begin(self, exchange: Exchange) -> bool:
        if not self._to_begin:
            self._later = self.clock.callLater(0, self._work)
            return False
        self._to_begin -= 1
        self._answering = True
        exchange.input_over = self._input_ended
        self.dispatch.begin(exchange, self.who(), self._secure)
        return True

    def _full(self) -> bool:
        """Whether nothing more is to be parsed: a whole request is unanswered, or the client takes no answers."""
        return self._receiving is None and (bool(self._exchanges) or self._blocked)

    def _parse(self, data: bytes) -> bool:
        """Parse some of ``data`` and put the rest back. False where that is enough for this turn."""
        assert self._parser is not None
        most = HEAD_SLICE
        if self._receiving is not None:
            self._since = self.clock.seconds()
            most = CHUNKS_SLICE if self._receiving.body.length is None else len(data)
        if len(data) > most:
            self._unparsed.appendleft(data[most:])
            data = data[:most]
        self._unparsed_bytes -= len(data)
        # What may be kept has to have come in one piece.
        whole = b"" if self._parser.begun else data[: data.find(HEAD_END) + len(HEAD_END)]
        self._parsed = None
        try:
            self._parser.feed(data)
        except ApiError as fault:
            self._refuse(fault)
        self._keep(whole)
        if self._parser is None or self._parser.chunks < CHUNKS_TURN:
            return True
        self._parser.chunks = 0
        self._later = self.clock.callLater(0, self._work)
        return False

    def _keep(self, data: bytes) -> None:
        """Keep the head that has been parsed of ``data``, if it may come again."""
        if self._parsed is not None and data.endswith(HEAD_END):
            self._kept = KeptHead.of(self._parsed, data)

    def _refuse(self, fault: ApiError) -> None:
        """The input cannot be parsed: the connection ends once the requests before it are answered."""
        if self._receiving is not None:
            # In mid-body the handler, which reads it, makes the answer.
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
        self._since = self.clock.seconds()

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

    # What an exchange asks of its connection (wire.Connection).

    def exchange_done(self, keep_alive: bool) -> None:
        self._exchanges.popleft()
        self._answering = False
        self._since = self.clock.seconds()
        if not keep_alive or self._closing:
            self.loseConnection()
        elif (
            self._exchanges
            or self._unparsed
            or self._input_ended
            or self._parser is None
            or not self._reading
        ):
            self._work()

    def pause_reading(self) -> None:
        # Only called from within ``_work``, which pauses the transport at its end.
        self._body_paused = True

    def resume_reading(self) -> None:
        if self._body_paused:
            self._body_paused = False
            self._since = self.clock.seconds()
            self._set_reading()

    def register_producer(self, producer: Producer) -> None:
        self._producer = producer
        if self._blocked:
            producer.pauseProducing()

    def unregister_producer(self) -> None:
        self._producer = None

    # What ``ConnectionLimit`` asks when there are too many connections (limits.LimitedConnection).

    @property
    def idle_since(self) -> float | None:
        if self.lingers:
            return LONG_AGO
        return None if self._exchanges or self._closing else self._since

    def sent(self, now: float) -> tuple[int, float] | None:
        return self._exchanges[0].sent(now) if self._exchanges else None

    def time_out(self) -> None:
        if self.lingers:
            self.stop_lingering()
        elif self._receiving is not None and not self._body_paused:
            self._refuse(errors.request_timeout())
            self._work()
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

    # Time.

    def _check_idle(self) -> None:
        """Within ``idle_seconds`` a head has to arrive whole, a body has to move, and the next request has to begin
        (it cannot while the client does not take its answers)."""
        left = self._since + self.idle_seconds - self.clock.seconds()
        kept_waiting = self._answering and self._receiving is not None and self._receiving.kept_waiting
        if left <= 0:
            if not kept_waiting:
                self.time_out()
            left = self.idle_seconds
        if not self._closing:
            self._idle_call = self.clock.callLater(left, self._check_idle)

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
        self.hang_up(more_may_come=behind and not self._input_ended)


# Makes a channel for each connection and knows which are open.


@implementer(IProtocolNegotiationFactory)
class ChannelFactory(Factory):
    """``dispatch`` gets every request. ``idle_seconds`` is how long a client may do nothing.

    With ``most`` connections open, each new one takes the place of an idle connection or of one whose body hardly
    moves (see ``ConnectionLimit``). Where there is no such connection, the new one is answered 503 and closed.
    """

    noisy = False

    def __init__(self, dispatch: Dispatch, clock: IReactorTime, idle_seconds: float, most: int) -> None:
        self._dispatch = dispatch
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._limit: ConnectionLimit[LeanChannel] = ConnectionLimit(most, clock.seconds)
        self._unsent = UnsentLimit(clock.seconds)
        # Its ``ports`` are set by whoever opens them.
        self.throttle = AcceptThrottle(clock)
        self.splicing = Splicing()
        self._empty: Deferred[None] | None = None

    @property
    def connections(self) -> Collection[LeanChannel]:
        """The open connections; the collection is live."""
        return self._limit.connections

    def opened(self, channel: LeanChannel) -> None:
        self._limit.enter(channel)

    def wrote_much(self, channel: LeanChannel) -> None:
        self._unsent.wrote(channel)

    def gone(self, channel: LeanChannel) -> None:
        self._limit.leave(channel)
        self._unsent.leave(channel)
        if not self._limit.connections and self._empty is not None:
            empty, self._empty = self._empty, None
            empty.callback(None)

    def close_all(self) -> Deferred[None]:
        """Close each connection once what was written to it has been taken; fires when none is left."""
        empty: Deferred[None] = Deferred()
        self._empty = empty
        for channel in list(self._limit.connections):
            channel.loseConnection()
        if not self._limit.connections and self._empty is not None:
            self._empty = None
            empty.callback(None)
        return empty

    def abort_all(self) -> None:
        for channel in list(self._limit.connections):
            channel.abort()

    def acceptableProtocols(self) -> list[bytes]:
        """The protocols for ALPN (RFC 7301). Twisted 26 aborts the handshake with clients that offer only others than
        these, and ``curl -0`` offers only HTTP/1.0."""
        return [b"http/1.1", b"http/1.0"]

    def buildProtocol(self, addr: IAddress | None) -> LeanChannel | RejectedConnection:
        if not self._limit.for_one_more():
            self.throttle.rejected()
            return RejectedConnection(self._dispatch, self._clock)
        return LeanChannel(self, self._dispatch, self._clock, self._idle_seconds)


class RejectedConnection(BaseChannel, Protocol):
    """The protocol for a connection too many: it is answered 503 and closed.

    That also ends connections over TLS whose client never makes the handshake.
    """

    def __init__(self, dispatch: Dispatch, clock: IReactorTime) -> None:
        super().__init__(clock, LINGER_SECONDS)
        self._dispatch = dispatch

    def connectionMade(self) -> None:
        self.transport.write(self._dispatch.rejection())
        self.hang_up(more_may_come=True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_gone()
