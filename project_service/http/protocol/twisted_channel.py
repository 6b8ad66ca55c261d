"""twisted.web's HTTP/1.1 parser, made to hand over a request at the end of its headers.

What is ours: the body is streamed, ``100 Continue`` waits until somebody reads, the whole head has to arrive within
the idle timeout, and a request that cannot be parsed gets a proper response.
"""

from __future__ import annotations

import re
from typing import Any

from twisted.internet.interfaces import IHalfCloseableProtocol, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, _ChunkedTransferDecoder
from twisted.web.iweb import INonQueuedRequestFactory
from zope.interface import directlyProvides, implementer

from project_service import errors
from project_service.errors import ApiError
from project_service.http.exchange import Exchange
from project_service.http.headers import HeaderView
from project_service.http.outbound import Producer
from project_service.http.protocol import fields
from project_service.http.protocol.base_channel import LONG_AGO, BaseChannel
from project_service.http.protocol.dispatch import Dispatch
from project_service.http.protocol.framing import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_LINE_BYTES,
    MAX_TARGET_BYTES,
    header_too_long,
    request_head,
    too_many_headers,
)
from project_service.http.protocol.strict_chunks import StrictChunks
from project_service.network.sockets import tune

# No body is longer; and Python refuses to read numbers of thousands of digits.
MAX_LENGTH_DIGITS = 19
_CONTROL = re.compile(f"[{fields.CONTROL}]".encode())


class _Pending:
    """A request whose head is still arriving; becomes an ``Exchange`` at the end of the headers.

    Its attributes and methods are those that ``HTTPChannel`` uses of a request.
    """

    def __init__(self, channel: Any) -> None:
        self.requestHeaders = self
        self.pairs: list[tuple[bytes, bytes]] = []
        self.exchange: Exchange | None = None

    def addRawHeader(self, name: bytes, value: bytes) -> None:
        self.pairs.append((name.lower(), value))

    def handleContentChunk(self, data: bytes) -> None:
        assert self.exchange is not None
        self.exchange.feed(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        assert self.exchange is not None
        self.exchange.request_complete()

    def connectionLost(self, reason: Failure) -> None:
        if self.exchange is not None:
            self.exchange.connection_lost()


directlyProvides(_Pending, INonQueuedRequestFactory)


@implementer(IHalfCloseableProtocol)
class TwistedChannel(BaseChannel, HTTPChannel):
    """One connection. ``factory`` is told of its beginning and end."""

    transport: Any
    timeOut: Any
    requestFactory: Any = _Pending
    MAX_LENGTH = MAX_LINE_BYTES
    maxHeaders = MAX_HEADERS
    totalHeadersSize = MAX_HEAD_BYTES

    def __init__(self, factory: Any, dispatch: Dispatch, clock: IReactorTime, idle_seconds: float) -> None:
        super().__init__(clock, idle_seconds)
        self.factory = factory
        self.dispatch = dispatch
        self.timeOut = idle_seconds
        self.__dict__["callLater"] = clock.callLater
        self._reading_paused = False
        self._closing = self._refused = self._input_ended = False
        self._line = b""  # the request line
        self._waits_for_client = False
        self._since = clock.seconds()

    # Parsing.

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            return
        # Only before a head: one that trickles in must not win time with each byte.
        if not self._head_begun():
            self.resetTimeout()
        super(HTTPChannel, self).dataReceived(data)

    def _head_begun(self) -> bool:
        return self.requests[-1].exchange is None if self.requests else bool(self._buffer)

    def lineReceived(self, line: bytes) -> None:
        if self._receivedHeaderSize + len(line) > MAX_HEAD_BYTES:
            self.refuse(errors.headers_too_large(MAX_HEAD_BYTES))
            return
        if line[:1] in (b" ", b"\t"):
            # A folded header (RFC 9112 section 5.2), which proxies may read as a line of its own.
            self._respondToBadRequestAndDisconnect()
            return
        if not self.requests:
            self._line = line
            if len(self._target()) > MAX_TARGET_BYTES:
                self.refuse(errors.uri_too_long(MAX_TARGET_BYTES))
                return
        super().lineReceived(line)

    def _target(self) -> bytes:
        """As much of the request's target as has come."""
        return self._line.partition(b" ")[2].partition(b" ")[0]

    def lineLengthExceeded(self, line: bytes) -> None:
        if self.requests:
            self.refuse(header_too_long())
        else:
            self._line = line
            self.refuse(errors.uri_too_long(MAX_TARGET_BYTES))

    def headerReceived(self, line: bytes) -> bool:
        if self._receivedHeaderCount >= MAX_HEADERS:
            self.refuse(too_many_headers())
            return False
        name, _, value = line.partition(b":")
        digits = value.strip()
        is_length = name.lower() == b"content-length"
        if is_length and digits.isdigit():
            # twisted.web takes only as many digits as ``int`` does.
            digits = digits.lstrip(b"0") or b"0"
            line = name + b": " + digits
        too_long = is_length and len(digits) > MAX_LENGTH_DIGITS
        if too_long or _CONTROL.search(value):
            self._respondToBadRequestAndDisconnect()
            return False
        return bool(super().headerReceived(line))

    def _maybeChooseTransferDecoder(self, header: bytes, data: bytes) -> bool:
        chosen = bool(super()._maybeChooseTransferDecoder(header, data))
        if isinstance(self._transferDecoder, _ChunkedTransferDecoder):
            self._transferDecoder = StrictChunks(
                self.requests[-1].handleContentChunk, self._finishRequestBody
            )
        return chosen

    def allHeadersReceived(self) -> None:
        pending: _Pending = self.requests[-1]
        method = self._command.decode("ascii", "replace")
        try:
            head = request_head(method, self._path, self._version, HeaderView(pending.pairs))
        except ApiError as fault:
            self.refuse(fault)
            return
        pending.exchange = Exchange(self, self.clock, self.idle_seconds, head)
        self.dispatch.begin(pending.exchange, self.who(), self.isSecure())

    def allContentReceived(self) -> None:
        if not self._closing:
            super().allContentReceived()

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.refuse(errors.not_http())

    def refuse(self, error: ApiError) -> None:
        """Answer what could not be parsed, and close. In mid-body the handler answers instead."""
        if self._closing:
            return
        self._closing = self._refused = True
        self.persistent = False
        exchange = self.requests[-1].exchange if self.requests else None
        if exchange is not None:
            exchange.fail_body(error)
            return
        self.write(self.dispatch.refusal(error, self.who(), self._target()))
        self.loseConnection()

    def timeoutConnection(self) -> None:
        exchange = self.requests[-1].exchange if self.requests else None
        if exchange is not None and exchange.kept_waiting:
            self.setTimeout(self.idle_seconds)
        else:
            self.time_out()

    def loseConnection(self) -> None:
        """Close once everything is written; a client that takes nothing any more is cut off."""
        self._closing = True
        if not self._idle.watching:
            self.setTimeout(None)
            self._networkProducer.resumeProducing()
            self.transport.unregisterProducer()
            # Whatever comes now is ignored, also what has come already.
            behind = self.clearLineBuffer() or self._dataBuffer or self._transferDecoder
            more_may_come = self._refused or bool(behind)
            self.hang_up(more_may_come=more_may_come and not self._input_ended)

    # What an exchange asks of its connection (wire.Connection).

    def pause_reading(self) -> None:
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
        if self._waits_for_client:
            self._waits_for_client = self._waitingForTransport = False
            self._idle.stop()
            # The exchange that begins now pauses and resumes for itself.
            self.exchange_done(True)
            return
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
        if keep_alive and self._waitingForTransport and not self._closing:
            # The client has not taken this answer yet; the next request begins when it has.
            self._waits_for_client = True
            self._idle.watch()
            return
        self._reading_paused = False
        self._savedTimeOut = self.idle_seconds
        self.persistent = keep_alive and not self._closing
        self._since = self.clock.seconds()
        # Where it closes, what is still to come of this request or after it is ignored.
        self._closing = not self.persistent
        self.requestDone(self.requests[0])
        if self._input_ended and not self._closing:
            self._close_unless_answering()

    def connectionMade(self) -> None:
        self.factory.opened(self)
        super().connectionMade()
        tune(self.transport)

    def readConnectionLost(self) -> None:
        """As that of ``LeanChannel``."""
        self._input_ended = True
        if self._closing:
            self._close()
        else:
            self._close_unless_answering()

    def _close_unless_answering(self) -> None:
        exchange = self.requests[0].exchange if self.requests else None
        if exchange is None or not exchange.whole:
            self.loseConnection()
        else:
            exchange.input_ended()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_gone()
        self.factory.gone(self)
        super().connectionLost(reason)

    # What ``ConnectionLimit`` asks when there are too many connections (connection_limit.LimitedConnection).

    @property
    def idle_since(self) -> float | None:
        if self.lingers:
            return LONG_AGO
        serving = self._closing or any(pending.exchange is not None for pending in self.requests)
        return None if serving else self._since

    def sent(self, now: float) -> tuple[int, float] | None:
        exchange = self.requests[0].exchange if self.requests else None
        return None if exchange is None else exchange.sent(now)

    def time_out(self) -> None:
        exchange = self.requests[-1].exchange if self.requests else None
        if self.lingers:
            self.stop_lingering()
        elif exchange is not None and not exchange.body.complete:
            self.refuse(errors.request_timeout())
        else:
            self.loseConnection()
