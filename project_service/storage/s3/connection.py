"""Keep-alive HTTP/1.1 connections to the store: one request at a time on each, no pipelining.

Purpose: a request to the store is most of what a small object costs, and twisted.web's client took half of it.

Plan: ``ConnectionPool`` keeps connections open. A ``Connection`` sends a head that is ready and a ``MemoryBody`` that
is not copied, and reads the response with httptools (``ResponseParser``). A small response is complete before anybody
asks for its body; a large one is piped: its reader pauses and resumes the store's socket, and where neither side has
TLS the bytes pass from socket to socket (``splicing``).

Cost: this module, and what ``requests`` hides from treq.

Figure: a small download takes a third of the CPU time that it took with twisted.web's client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IAddress,
    IConsumer,
    IDelayedCall,
    IPullProducer,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.tcp import Connection as TcpConnection
from twisted.python.failure import Failure
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from project_service.lifecycle import IdleTimer
from project_service.network import read_widely, tune, write_now
from project_service.splicing import ask_first, ask_no_more
from project_service.storage.s3.errors import BrokenRead, BrokenResponse, ReaderLeft, kind_of

Payload = bytes | bytearray | memoryview

# Eight times what Twisted usually reads at a time. A buffer of 1 MiB would be mapped anew by the system for each read
# (see process.LARGE_BLOCK_BYTES).
READ_BYTES = 512 * 1024
# How long a connection is kept without being used.
IDLE_CONNECTION_SECONDS = 60.0
MAX_HEAD_BYTES = 64 * 1024
_HEAD_END = b"\r\n\r\n"
# RFC 9112 section 6.3: these have no body, whatever their headers say.
_BODILESS = frozenset({204, 304})


class _Fields(dict[bytes, bytes]):
    """What llhttp finds in one head. It sets each header by itself: for most heads one call of ours runs."""

    code = 0
    keep_alive = with_body = False
    parser: HttpResponseParser | None = None
    on_header = dict.__setitem__

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        # llhttp knows neither any more at the end of a response without a body.
        self.code = self.parser.get_status_code()
        self.keep_alive = self.parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self.with_body = True


class ResponseParser:
    """Parses the response to one request as it arrives; ``bodiless`` where that was a HEAD. Source: RFC 9112.

    Bytes go in, and bytes of the body come out. httptools (llhttp, strict) parses the head and chunks; a body with
    Content-Length is only counted, and not copied.

    ``code`` and ``headers`` are set once ``begun``. Names of headers are in lower case; of several with one name the
    last one counts. ``length`` is None where it is not known before the end. ``left`` is how many bytes of the body
    are still to come, as announced; 0 where none was, or the head is not there.
    """

    __slots__ = (
        "_bodiless",
        "_buffer",
        "_parser",
        "_pieces",
        "begun",
        "code",
        "complete",
        "headers",
        "keep_alive",
        "left",
        "length",
    )

    def __init__(self, bodiless: bool = False) -> None:
        self.begun = False
        self.complete = False
        self.keep_alive = False
        self.code = 0
        self.headers: dict[bytes, bytes] = {}
        self.length: int | None = None
        self._bodiless = bodiless
        self._buffer = b""
        self.left = 0
        self._pieces: list[bytes] = []
        self._parser: HttpResponseParser | None = None

    def feed(self, data: bytes) -> bytes:
        """The part of ``data`` that belongs to the body.

        Raises ``BrokenResponse`` for what is not HTTP, and for bytes after the end of the response.
        """
        if self.left:
            self.left -= len(data)
            if self.left <= 0:
                if self.left < 0:
                    raise BrokenResponse("more than was announced")
                self.complete = True
            return data
        if not self.begun:
            return self._head(data)
        if self.complete:
            raise BrokenResponse("more than the answer")
        # There is a parser for chunked bodies only. Without it, all data is body until the connection ends.
        return data if self._parser is None else self._parsed(data)

    def skip(self, count: int) -> None:
        """Count bytes of the body that do not come this way; fewer than ``left``."""
        self.left -= count

    def end(self) -> None:
        """Call this at the end of the connection; raises ``BrokenResponse`` if the response is incomplete."""
        until_close = self.begun and self.length is None and self._parser is None
        if not self.complete and not until_close:
            raise BrokenResponse("less than the answer")
        self.complete = True

    def _head(self, data: bytes) -> bytes:
        # What has been searched already need not be searched again.
        begin = max(0, len(self._buffer) - len(_HEAD_END) + 1)
        rest = self._buffer + data if self._buffer else data
        while not self.begun:
            end = rest.find(_HEAD_END, begin) + len(_HEAD_END)
            begin = 0
            complete = end >= len(_HEAD_END)
            if (end if complete else len(rest)) > MAX_HEAD_BYTES:
                raise BrokenResponse("a head without end")
            if not complete:
                self._buffer = rest
                return b""
            head, rest = rest[:end], rest[end:]
            self._read(head)
            # RFC 9110 section 15.2: an interim response is followed by the final one.
            self.begun = self.code >= 200
        self._buffer = b""
        return self.feed(rest) if rest else b""

    def _read(self, head: bytes) -> None:
        fields = _Fields()
        fields.parser = parser = HttpResponseParser(fields)
        try:
            parser.feed_data(head)
        except (HttpParserError, HttpParserUpgrade):
            raise BrokenResponse("not HTTP/1.1") from None
        finally:
            fields.parser = None  # otherwise a reference cycle
        self.code = fields.code
        if not self.code or fields.with_body:
            raise BrokenResponse("not a head")
        self.keep_alive = fields.keep_alive
        self.headers = dict(zip(map(bytes.lower, fields), fields.values(), strict=True))
        if self.code < 200:
            return
        # How the body is delimited (RFC 9112 section 6.3). llhttp has already refused contradicting lengths, and a
        # length beside a transfer coding.
        coding, length = self.headers.get(b"transfer-encoding"), self.headers.get(b"content-length")
        if self._bodiless or self.code in _BODILESS:
            self.length, self.complete = 0, True
        elif coding is not None:
            if coding.lower() != b"chunked" or head.lower().count(b"\r\ntransfer-encoding") != 1:
                raise BrokenResponse("a transfer coding that nobody asked for")
            # It reads the head again, and from there on the chunks.
            self._parser = HttpResponseParser(self)
            self._parsed(head)
        elif length is not None:
            self.length = self.left = int(length)
            self.complete = not self.left

    def _parsed(self, data: bytes) -> bytes:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            raise BrokenResponse("not HTTP/1.1") from None
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # Called by the parser of chunks.

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_begin(self) -> None:
        if self.begun:
            raise BrokenResponse("more than the answer")

    def on_message_complete(self) -> None:
        self.complete = True


# How much of a body is copied for the transport at a time, and how often the socket is written to directly in one
# turn.
SLICE = 64 * 1024
AT_ONCE = 16


@implementer(IBodyProducer, IPullProducer)
class MemoryBody:
    """A request body that is already in memory, so that it can be sent again. ``progress`` is called as it is sent.

    One of up to ``SLICE`` bytes is sent with the head of its request. Of a larger one, whenever the transport has
    nothing left to send, it asks for more, and as much as the socket takes is sent directly from this memory. Next to
    nothing of it is copied.
    """

    def __init__(self, payload: Payload, progress: Callable[[], None] = lambda: None) -> None:
        self.length = len(payload)
        self.progress = progress
        self._left = memoryview(payload)
        self._asked = False
        self._consumer: Any = None
        self._done: Deferred[None]

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        self._consumer = consumer
        done = self._done = Deferred()
        consumer.registerProducer(self, False)
        return done

    def resumeProducing(self) -> None:
        self.progress()
        # Not at the first call, which comes from registerProducer while the request's head still waits to be sent.
        if self._asked and isinstance(self._consumer, TcpConnection):
            self._send_now(self._consumer)
        self._asked = True
        # Through the transport, so that it asks again when the socket has taken this.
        self._hand_over(SLICE)
        if not self._left:
            consumer, self._consumer = self._consumer, None
            consumer.unregisterProducer()
            self._done.callback(None)

    def behind(self, head: bytes) -> bytes:
        """``head`` and the whole body."""
        return b"".join((head, self._left))

    def pauseProducing(self) -> None:
        """Nothing to do: a pull producer sends only what it is asked for."""

    def stopProducing(self) -> None:
        """Let go of the memory. Twisted's objects refer to each other in a cycle and would keep it for long."""
        self._consumer = None
        self._left = memoryview(b"")

    def _send_now(self, transport: TcpConnection) -> None:
        for _ in range(AT_ONCE):
            # An error shows again when the transport itself writes, which handles it.
            sent: Any = transport.writeSomeData(self._left)  # type: ignore[arg-type]  # any buffer will do
            if isinstance(sent, Exception) or not sent:
                return
            self._left = self._left[sent:]

    def _hand_over(self, size: int) -> None:
        piece, self._left = bytes(self._left[:size]), self._left[size:]
        if piece:
            self._consumer.write(piece)
        if not self._left:
            # Even an empty view of the payload would keep all of it in memory.
            self._left = memoryview(b"")


class ByteSink(Protocol):
    """What an object is piped into."""

    def write(self, data: bytes) -> None: ...
    def take(self, source: int, limit: int) -> int:
        """Take up to ``limit`` bytes from the socket with the descriptor ``source``; returns how many. 0 if they have
        to be read and written."""

    def register_producer(self, producer: Any) -> None: ...
    def unregister_producer(self) -> None: ...


class ObjectStream(Protocol):
    """An object, or a range of one, whose bytes wait at the store."""

    def buffered(self) -> bytes | None:
        """All bytes, where they have arrived already; else None. There is nothing to pipe then."""

    async def pipe_to(self, sink: ByteSink) -> None:
        """Write every byte into ``sink``, as fast as its reader takes them. Raises ``BrokenRead`` or
        ``ReaderLeft``."""

    def close(self) -> None:
        """Close without reading."""


class BodyReader(Protocol):
    """What reads the body of a response."""

    def take(self, source: int, limit: int) -> int:
        """As ``ByteSink.take``."""

    def received(self, data: bytes) -> None: ...
    def ended(self, complete: bool) -> None:
        """The store has sent all that it will. A body without a length ends with the connection (RFC 9112 section
        6.3); it counts as complete where that was closed in order."""


class Pipe:
    """Pipes the body of a response into a sink. The sink's reader pauses and resumes the store's own socket.

    ``length`` bytes have to come. ``finished`` fails with ``BrokenRead`` when the store ends early, sends too much or
    falls silent for ``idle_seconds``, and with ``ReaderLeft`` when the reader goes away. The idle time does not run
    while the reader pauses.
    """

    def __init__(
        self, response: StoreResponse, sink: ByteSink, length: int, clock: IReactorTime, idle_seconds: float
    ) -> None:
        self.finished: Deferred[None] = Deferred(lambda _: self._stop(CancelledError()))
        self._response = response
        self._sink = sink
        self._left = length
        self._timer = IdleTimer(clock, idle_seconds, self._silent)
        self._paused = False
        self._over = False
        sink.register_producer(self)
        response.deliver(self)
        if not self._over and not self._paused:
            self._timer.start()

    def received(self, data: bytes) -> None:
        if self._over:
            return
        self._left -= len(data)
        if self._left < 0:
            self._stop(BrokenRead("the store sent more than the object's size"))
            return
        self._timer.touch()
        self._sink.write(data)

    def take(self, source: int, limit: int) -> int:
        taken = 0 if self._over else self._sink.take(source, min(limit, self._left))
        self._left -= taken
        if taken:
            self._timer.touch()
        return taken

    def ended(self, complete: bool) -> None:
        self._end(BrokenRead(f"the store stopped {self._left} bytes early") if self._left else None)

    # The producer that the reader's socket pauses and resumes.

    def pauseProducing(self) -> None:
        self._paused = True
        if not self._over:
            self._timer.stop()
            self._response.pause()

    def resumeProducing(self) -> None:
        self._paused = False
        if not self._over:
            self._timer.start()
            self._response.resume()

    def stopProducing(self) -> None:
        self._stop(ReaderLeft())

    def _silent(self) -> None:
        self._stop(BrokenRead("the store fell silent"))

    def _stop(self, problem: Exception) -> None:
        """End with ``problem`` and close the store's connection."""
        self._end(problem)
        self._response.close()

    def _end(self, problem: Exception | None) -> None:
        if self._over:
            return
        self._over = True
        self._timer.stop()
        del self._timer  # otherwise a reference cycle
        self._sink.unregister_producer()
        if problem is None:
            self.finished.callback(None)
        else:
            self.finished.errback(problem)


class Gather:
    """Gathers a short body. One of more than ``limit`` bytes is broken off, and ``finished`` fails with
    ``BrokenRead``. ``progress`` is called as bytes come."""

    def __init__(self, response: StoreResponse, limit: int) -> None:
        self.finished: Deferred[bytes] = Deferred(lambda _: response.close())
        self.progress: Callable[[], None] = lambda: None
        self._response = response
        self._limit = limit
        self._body: list[bytes] = []
        self._size = 0
        response.deliver(self)

    def take(self, source: int, limit: int) -> int:
        return 0

    def received(self, data: bytes) -> None:
        self.progress()
        self._size += len(data)
        if self._size > self._limit:
            self._response.close()
        else:
            self._body.append(data)

    def ended(self, complete: bool) -> None:
        if self.finished.called:
            return
        if complete and self._size <= self._limit:
            self.finished.callback(b"".join(self._body))
        else:
            self.finished.errback(BrokenRead("the store's answer broke off"))


class StoreResponse:
    """A response whose body may still be arriving.

    What arrives before the body has a reader is buffered here; the connection is paused then, so that it is no more
    than one read. ``headers`` have names in lower case. ``length`` is None where it is not known before the end.
    ``body`` is for whoever has gathered it.
    """

    __slots__ = (
        "_buffered",
        "_complete",
        "_connection",
        "_paused",
        "_reader",
        "body",
        "code",
        "headers",
        "length",
    )

    def __init__(self, connection: Connection | None, head: ResponseParser, body: bytes = b"") -> None:
        """``body`` is what has come of it. Without ``connection`` that is all."""
        self.code = head.code
        self.length = head.length
        self.headers = head.headers
        self.body = b""
        self._connection = connection
        self._reader: BodyReader | None = None
        self._buffered = [body] if body else []
        # None as long as more may come.
        self._complete: bool | None = True if connection is None else None
        self._paused = False

    def header(self, name: str) -> str:
        """The last value of ``name``, which is in lower case, or ""."""
        return self.headers.get(name.encode("ascii"), b"").decode("utf-8", "replace")

    def buffered(self) -> bytes | None:
        """The body, if all of it has arrived and it has no reader; else None."""
        return b"".join(self._buffered) if self._complete and self._reader is None else None

    def deliver(self, reader: BodyReader) -> None:
        """Hand the body to ``reader``, beginning with what is buffered."""
        if self._reader is not None:
            raise RuntimeError("the body has a reader already")
        self._reader = reader
        buffered, self._buffered = self._buffered, []
        for data in buffered:
            reader.received(data)
        if self._complete is not None:
            reader.ended(self._complete)
        elif not self._paused:
            self.resume()

    def pause(self) -> None:
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def close(self) -> None:
        """Give up the rest of the body, and with it the connection."""
        if self._connection is not None:
            self._connection.abort()

    # The connection's side.

    @property
    def has_reader(self) -> bool:
        """Whether the body has a reader (which pauses the connection itself when it wants to)."""
        return self._reader is not None

    def detach(self) -> None:
        """The body is complete, and the connection may serve another request. Pausing no longer reaches it."""
        self._connection = None

    def take(self, source: int, limit: int) -> int:
        return 0 if self._reader is None else self._reader.take(source, limit)

    def received(self, data: bytes) -> None:
        if self._reader is None:
            self._buffered.append(data)
        else:
            self._reader.received(data)

    def ended(self, complete: bool) -> None:
        self._connection = None
        self._complete = complete
        if self._reader is not None:
            self._reader.ended(complete)


class Connection(TwistedProtocol):
    """``send`` may be called once, and again each time that the connection has called ``pool.free``."""

    transport: Any

    def __init__(self, pool: ConnectionPool) -> None:
        self.free_since = 0.0
        self._pool = pool
        self._incoming: ResponseParser | None = None
        self._responding: Deferred[StoreResponse] | None = None
        self._response: StoreResponse | None = None
        self._sending = self._paused = False

    def connectionMade(self) -> None:
        tune(self.transport)
        read_widely(self.transport, READ_BYTES)
        # For small responses too, although they never pass: without the moment that it takes, the head is read before
        # its body has come more often, and such a response has to be piped.
        ask_first(self.transport, self.passed_on)

    def send(self, method: bytes, head: bytes, body: MemoryBody | None) -> Deferred[StoreResponse]:
        """Send a request; fires with the response once its head is there. Cancelling closes the connection.

        Fails with ``BrokenResponse`` if no response comes, or something else than one.
        """
        self._incoming = ResponseParser(bodiless=method == b"HEAD")
        responding: Deferred[StoreResponse] = Deferred(self._cancelled)
        self._responding = responding
        if body is None or body.length <= SLICE:
            write_now(self.transport, head if body is None else body.behind(head))
        else:
            self.transport.write(head)
            self._sending = True
            body.startProducing(self.transport).addCallbacks(self._sent, lambda _: self.abort())
        return responding

    def abort(self) -> None:
        """Close at once. What is awaited fails when the connection is closed."""
        self.transport.abortConnection()

    def close(self) -> None:
        """Close an idle connection."""
        self.transport.loseConnection()

    def pause(self) -> None:
        self._paused = True
        self.transport.pauseProducing()

    def resume(self) -> None:
        self._paused = False
        self.transport.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        incoming = self._incoming
        if incoming is None:
            # The store sent something without a request.
            self.abort()
            return
        try:
            body = incoming.feed(data)
        except BrokenResponse as fault:
            self._fail(fault)
            self.abort()
            return
        if self._response is not None:
            self._received(self._response, incoming, body)
        elif incoming.begun:
            self._begin(incoming, body)

    def passed_on(self, source: int) -> bool:
        """Whether the body's reader took what has arrived. Only its length is counted: the bytes never come here."""
        incoming, response = self._incoming, self._response
        # The end of a body comes as data: a store that sends more than it announced is noticed there.
        if incoming is None or response is None or incoming.left <= READ_BYTES:
            return False
        taken = response.take(source, READ_BYTES)
        incoming.skip(taken)
        return taken > 0

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        ask_no_more(self.transport)
        incoming = self._incoming
        if incoming is not None:
            try:
                incoming.end()
            except BrokenResponse:
                self._fail(BrokenResponse(kind_of(reason.value)))
            else:
                response, self._response, self._incoming = self._response, None, None
                assert response is not None
                # Beyond this only the document, or the object's size, can tell whether it is complete.
                response.ended(reason.check(ConnectionDone) is not None)
        self._pool.gone(self)

    def _begin(self, incoming: ResponseParser, body: bytes) -> None:
        responding, self._responding = self._responding, None
        assert responding is not None
        if incoming.complete:
            # A small response comes whole with its head, so the connection is free before anybody reads the body.
            self._release(incoming)
            responding.callback(StoreResponse(None, incoming, body))
            return
        response = self._response = StoreResponse(self, incoming, body)
        responding.callback(response)
        if self._response is response and not response.has_reader:
            self.pause()

    def _received(self, response: StoreResponse, incoming: ResponseParser, body: bytes) -> None:
        if incoming.complete:
            response.detach()
            self._release(incoming)
        if body:
            response.received(body)
        if incoming.complete:
            response.ended(True)

    def _release(self, incoming: ResponseParser) -> None:
        self._incoming = self._response = None
        if self._paused:
            self.resume()
        if self._sending:
            # The store responded before it had the whole request, so it will not read the rest of it.
            self.abort()
        elif incoming.keep_alive:
            self._pool.free(self)
        else:
            self.close()

    def _fail(self, fault: BrokenResponse) -> None:
        self._incoming = None
        responding, self._responding = self._responding, None
        response, self._response = self._response, None
        if responding is not None:
            responding.errback(fault)
        if response is not None:
            response.ended(False)

    def _cancelled(self, _: object) -> None:
        self._responding = self._incoming = None
        self.abort()

    def _sent(self, _: object) -> None:
        self._sending = False


class ConnectionPool(Factory):
    """Keeps up to ``max_idle`` idle connections to one store. More may be open while they are needed.

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
        self._closing_old: IDelayedCall | None = None
        self._closing: set[Connection] = set()
        self._closed: Deferred[None] | None = None

    def request(self, method: bytes, head: bytes, body: MemoryBody | None) -> Deferred[StoreResponse]:
        """Send ``head`` (request line and headers) and ``body``; fires with the response once its head is there.

        Fails with ``BrokenResponse``, or with what connecting fails with. Cancelling closes the connection.
        """
        if self._idle:
            return self._idle.pop().send(method, head, body)
        connecting: Deferred[Any] = self._endpoint.connect(self)
        return connecting.addCallback(lambda connection: connection.send(method, head, body))

    def close(self) -> Deferred[None]:
        """Close the idle connections; fires when they are closed."""
        if self._closing_old is not None:
            self._closing_old.cancel()
            self._closing_old = None
        self._closing.update(self._idle)
        if not self._closing:
            return succeed(None)
        closed: Deferred[None] = Deferred()
        self._closed = closed
        while self._idle:
            self._idle.pop().close()
        return closed

    def buildProtocol(self, addr: IAddress | None) -> Connection:
        return Connection(self)

    def free(self, connection: Connection) -> None:
        """Called by a connection that can take another request."""
        if len(self._idle) >= self._max_idle:
            connection.close()
            return
        connection.free_since = self._clock.seconds()
        self._idle.append(connection)
        if self._closing_old is None:
            self._closing_old = self._clock.callLater(IDLE_CONNECTION_SECONDS, self._close_old)

    def gone(self, connection: Connection) -> None:
        """Called by a connection that is closed."""
        if connection in self._idle:
            self._idle.remove(connection)
        self._closing.discard(connection)
        if not self._closing and self._closed is not None:
            closed, self._closed = self._closed, None
            closed.callback(None)

    def _close_old(self) -> None:
        self._closing_old = None
        oldest = self._clock.seconds() - IDLE_CONNECTION_SECONDS
        while self._idle and self._idle[0].free_since <= oldest:
            self._idle.pop(0).close()
        if self._idle:
            wait = self._idle[0].free_since - oldest
            self._closing_old = self._clock.callLater(wait, self._close_old)
