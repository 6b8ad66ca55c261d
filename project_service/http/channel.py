"""twisted.web's HTTP/1.1 parser, made to hand over a request at the end of its headers.

What is ours (traps 5 and 8): the body is streamed, ``100 Continue`` waits until somebody reads, a head must arrive
within the idle timeout as a whole, and a request that cannot be parsed gets a proper response.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from typing import Any, Protocol

from twisted.internet.interfaces import IAddress, IProtocolNegotiationFactory, IReactorTime
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel
from twisted.web.iweb import INonQueuedRequestFactory
from zope.interface import directlyProvides, implementer

from project_service import errors
from project_service.errors import ApiError
from project_service.http import wire
from project_service.http.exchange import Exchange
from project_service.http.headers import HeaderView
from project_service.http.outbound import Producer

MAX_TARGET_BYTES = 32 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200


class Dispatch(Protocol):
    """What a channel hands its exchanges to."""

    def begin(self, exchange: Exchange, peer: IAddress, secure: bool) -> None: ...


class _Pending:
    """A request whose head is still arriving; becomes an ``Exchange`` at the end of the headers.

    Named as ``HTTPChannel`` calls it.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.requestHeaders = self
        self.pairs: list[tuple[bytes, bytes]] = []
        self.exchange: Exchange | None = None

    def addRawHeader(self, name: bytes, value: bytes) -> None:
        self.pairs.append((name, value))

    def handleContentChunk(self, data: bytes) -> None:
        if data and self.exchange is not None:
            self.exchange.feed(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        if self.exchange is not None:
            self.exchange.request_complete()

    def connectionLost(self, reason: Failure) -> None:
        if self.exchange is not None:
            self.exchange.connection_lost()


directlyProvides(_Pending, INonQueuedRequestFactory)


class Channel(HTTPChannel):
    """One connection. The factory sets ``dispatch``, ``clock``, ``idle_seconds`` and ``timeOut``."""

    transport: Any
    timeOut: Any
    requestFactory: Any = _Pending
    MAX_LENGTH = MAX_TARGET_BYTES + 32
    maxHeaders = MAX_HEADERS
    totalHeadersSize = MAX_HEAD_BYTES
    dispatch: Dispatch
    clock: IReactorTime
    idle_seconds: float

    def __init__(self) -> None:
        super().__init__()
        self._in_head = False
        self._reading_paused = False
        self._closing = False

    # Parsing.

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            return
        # A head trickling in byte by byte does not win time with each byte.
        if not self._in_head:
            self.resetTimeout()
            self._in_head = not self.requests
        super(HTTPChannel, self).dataReceived(data)

    def lineReceived(self, line: bytes) -> None:
        if self._closing:
            return
        if self._receivedHeaderSize + len(line) > MAX_HEAD_BYTES:
            self.refuse(errors.headers_too_large(MAX_HEAD_BYTES))
            return
        super().lineReceived(line)

    def lineLengthExceeded(self, line: bytes) -> None:
        if self.requests:
            self.refuse(errors.headers_too_large(MAX_HEAD_BYTES))
        else:
            self.refuse(errors.uri_too_long(MAX_TARGET_BYTES))

    def headerReceived(self, line: bytes) -> bool:
        if self._receivedHeaderCount >= MAX_HEADERS:
            self.refuse(errors.headers_too_large(MAX_HEAD_BYTES))
            return False
        return bool(super().headerReceived(line))

    def allHeadersReceived(self) -> None:
        pending: _Pending = self.requests[-1]
        headers = HeaderView(pending.pairs)
        self._in_head = False
        fault = _head_fault(self._version, headers)
        if fault is not None:
            self.refuse(fault)
            return
        exchange = Exchange(
            self,
            self.clock,
            self.idle_seconds,
            self._command.decode("ascii", "replace"),
            self._path,
            self._version,
            headers,
            self.length,
            keep_alive=_persistent(self._version, headers),
        )
        pending.exchange = exchange
        self.dispatch.begin(exchange, self.transport.getPeer(), self.isSecure())

    def allContentReceived(self) -> None:
        if not self._closing:
            super().allContentReceived()

    def rawDataReceived(self, data: bytes) -> None:
        if not self._closing:
            super().rawDataReceived(data)

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.refuse(errors.bad_request("bad_request", "The request is not valid HTTP/1.1."))

    def refuse(self, error: ApiError) -> None:
        """Answer what could not be parsed, and close. In mid-body the handler answers instead."""
        if self._closing:
            return
        self._closing = True
        self.persistent = False
        exchange = self.requests[-1].exchange if self.requests else None
        if exchange is not None:
            exchange.fail_body(error)
            return
        body = error.body()
        headers = [
            ("Content-Type", error.content_type),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *error.headers,
        ]
        self.write(wire.head(error.status, headers) + body)
        self.loseConnection()

    def timeoutConnection(self) -> None:
        exchange = self.requests[-1].exchange if self.requests else None
        if exchange is not None and not exchange.body.complete:
            self.refuse(errors.request_timeout())
        else:
            self.loseConnection()

    def loseConnection(self) -> None:
        """Close once everything is written; a client that takes nothing any more is cut off."""
        self._closing = True
        if self._abortingCall is None:
            self.setTimeout(None)
            self._abortingCall = self.clock.callLater(self.idle_seconds, self._look_again, self.progress())
            super().loseConnection()

    def _look_again(self, seen: object) -> None:
        now = self.progress()
        if now == seen:
            self._abortingCall = None
            self.transport.abortConnection()
        else:
            self._abortingCall = self.clock.callLater(self.idle_seconds, self._look_again, now)

    # What an exchange asks of its connection (wire.Connection).

    def pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self.setTimeout(None)
            self._networkProducer.pauseProducing()

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            if not self._handlingRequest:
                self.setTimeout(self.idle_seconds)
            if not self._waitingForTransport:
                self._networkProducer.resumeProducing()

    def resumeProducing(self) -> None:
        if self._reading_paused:
            self._waitingForTransport = False
            if self._requestProducer is not None:
                self._requestProducer.resumeProducing()
            return
        super().resumeProducing()

    def register_producer(self, producer: Producer) -> None:
        self.registerProducer(producer, True)
        if self._waitingForTransport:
            producer.pauseProducing()

    def unregister_producer(self) -> None:
        self.unregisterProducer()

    def exchange_done(self, keep_alive: bool) -> None:
        self._in_head = False
        self._reading_paused = False
        self._savedTimeOut = self.idle_seconds
        self.persistent = keep_alive and not self._closing
        # What is still to come of this request, or after it, is not looked at.
        self._closing = not self.persistent
        self.requestDone(self.requests[0])

    def abort(self) -> None:
        self.transport.abortConnection()

    def progress(self) -> object:
        """Bytes not yet taken by the client: in our buffers and in the kernel's."""
        transport = self.transport
        while getattr(transport, "transport", None) is not None:
            transport = transport.transport
        handle = getattr(transport, "socket", None)
        if handle is None:
            return None
        queued = struct.unpack("i", fcntl.ioctl(handle.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
        return (queued, len(transport.dataBuffer) - transport.offset, transport._tempDataLen)


def _head_fault(version: bytes, headers: HeaderView) -> ApiError | None:
    """RFC 9112 section 3.2 (exactly one Host) and section 6.1 (no transfer coding before HTTP/1.1)."""
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        return ApiError(505, "http_version_not_supported", "This service speaks HTTP/1.1.")
    hosts = len(headers.all(b"host"))
    if hosts > 1 or (hosts == 0 and version == b"HTTP/1.1"):
        return errors.bad_request("bad_request", "The request needs exactly one Host header.")
    codings = headers.all(b"transfer-encoding")
    if codings and (version == b"HTTP/1.0" or [c.lower() for c in codings] != [b"chunked"]):
        return errors.bad_request("bad_request", "The transfer coding is not supported.")
    return None


def _persistent(version: bytes, headers: HeaderView) -> bool:
    """RFC 9112 section 9.3; an HTTP/1.0 connection is always closed."""
    tokens = b",".join(headers.all(b"connection")).lower().split(b",")
    return version == b"HTTP/1.1" and b"close" not in [token.strip() for token in tokens]


@implementer(IProtocolNegotiationFactory)
class ChannelFactory(Factory):
    """Makes a channel for each connection."""

    noisy = False

    def __init__(self, dispatch: Dispatch, clock: IReactorTime, idle_seconds: float) -> None:
        self._dispatch = dispatch
        self._clock = clock
        self._idle_seconds = idle_seconds

    def acceptableProtocols(self) -> list[bytes]:
        """For ALPN (RFC 7301). Without an answer Twisted 26 breaks off with clients that ask, and most do."""
        return [b"http/1.1"]

    def buildProtocol(self, addr: IAddress | None) -> Channel:
        channel = Channel()
        channel.factory = self
        channel.dispatch = self._dispatch
        channel.clock = self._clock
        channel.timeOut = channel.idle_seconds = self._idle_seconds
        channel.__dict__["callLater"] = self._clock.callLater
        return channel
