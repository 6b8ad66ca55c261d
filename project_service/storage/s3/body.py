"""Bodies of requests, sent from memory, and of responses, poured into a sink; both with back-pressure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IConsumer, IPullProducer, IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from project_service.deferreds import cancel
from project_service.storage.s3.errors import BrokenRead, ReaderLeft

Payload = bytes | bytearray | memoryview
# Records that an upload is at work, for the sweeper; raises where the sweeper has given it up.
KeepAlive = Callable[[], Awaitable[None]]

# How much of a body is copied for the transport at a time, and how often the socket is written to directly in one
# turn.
SLICE = 64 * 1024
AT_ONCE = 16


class IdleTimer:
    """Calls ``expire`` once, when ``touch`` was not called for ``seconds``. ``touch`` is cheap."""

    __slots__ = ("_call", "_clock", "_expire", "_last", "_seconds", "expired")

    def __init__(self, clock: IReactorTime, seconds: float, expire: Callable[[], object]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._expire = expire
        self._last = clock.seconds()
        self.expired = False
        self._call = clock.callLater(seconds, self._check)

    def touch(self) -> None:
        self._last = self._clock.seconds()

    def stop(self) -> None:
        cancel(self._call)

    def _check(self) -> None:
        left = self._last + self._seconds - self._clock.seconds()
        if left > 0:
            self._call = self._clock.callLater(left, self._check)
        else:
            self.expired = True
            self._expire()


@implementer(IBodyProducer, IPullProducer)
class MemoryBody:
    """A request body that is already in memory, so that it can be sent again. ``progress`` is called as it is sent.

    Whenever the transport has nothing left to send, it asks for more, and as much as the socket takes is sent
    directly from this memory. Next to nothing of a large body is copied.
    """

    def __init__(self, payload: Payload, progress: Callable[[], None] = lambda: None) -> None:
        self.length = len(payload)
        self._left = memoryview(payload)
        self._progress = progress
        self._asked = False
        self._consumer: Any = None
        self._done: Deferred[None]

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        self._consumer = consumer
        if self.length <= SLICE:
            self._hand_over(self.length)
            return succeed(None)
        done = self._done = Deferred()
        consumer.registerProducer(self, False)
        return done

    def resumeProducing(self) -> None:
        self._progress()
        # Not at the first call, which comes from registerProducer while the request's head still waits to be sent.
        if self._asked and isinstance(self._consumer, Connection):
            self._send_now(self._consumer)
        self._asked = True
        # Through the transport, so that it asks again when the socket has taken this.
        self._hand_over(SLICE)
        if not self._left:
            consumer, self._consumer = self._consumer, None
            consumer.unregisterProducer()
            self._done.callback(None)

    def pauseProducing(self) -> None:
        """Nothing to do: a pull producer sends only what it is asked for."""

    def stopProducing(self) -> None:
        """Let go of the memory. Twisted's objects refer to each other in a cycle and would keep it for long."""
        self._consumer = None
        self._left = memoryview(b"")

    def _send_now(self, transport: Connection) -> None:
        for _ in range(AT_ONCE):
            # An error will show again, in the right place, when the transport itself writes.
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
    """What a response is poured into."""

    def write(self, data: bytes) -> None: ...
    def take(self, source: int, most: int) -> int:
        """Take up to ``most`` bytes from the socket with the descriptor ``source``; how many were taken. 0 where they
        have to be read and written."""

    def register_producer(self, producer: Any) -> None: ...
    def unregister_producer(self) -> None: ...


class Pour(TwistedProtocol):
    """Delivers a response to a sink. The sink's reader pauses and resumes the store's own transport.

    ``length`` bytes have to come. ``finished`` fails with ``BrokenRead`` when the store ends early, sends too much or
    falls silent for ``idle_seconds``, and with ``ReaderLeft`` when the reader goes away. The idle time does not run
    while the reader pauses.
    """

    transport: Any

    def __init__(self, sink: ByteSink, length: int, clock: IReactorTime, idle_seconds: float) -> None:
        self.finished: Deferred[None] = Deferred(lambda _: self._forget())
        self._sink = sink
        self._left = length
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._timer: IdleTimer | None = None
        self._paused = False
        self._over = False

    def connectionMade(self) -> None:
        self._sink.register_producer(self)

    def watch(self) -> None:
        """Begin to watch for silence, unless everything has arrived already."""
        if not self._over and not self._paused:
            self._start_timer()

    def dataReceived(self, data: bytes) -> None:
        if self._over:
            return
        self._left -= len(data)
        if self._left < 0:
            self._end(Failure(BrokenRead("the store sent more than the object's size")))
            self.transport.loseConnection()
            return
        if self._timer is not None:
            self._timer.touch()
        self._sink.write(data)

    def take(self, source: int, most: int) -> int:
        """Have the sink take up to ``most`` bytes from the store's own socket; how many it took."""
        taken = 0 if self._over else self._sink.take(source, min(most, self._left))
        self._left -= taken
        if taken and self._timer is not None:
            self._timer.touch()
        return taken

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._left == 0:
            self._end(None)
        else:
            self._end(Failure(BrokenRead(f"the store stopped {self._left} bytes early")))

    # The producer that the reader's socket pauses and resumes.

    def pauseProducing(self) -> None:
        self._paused = True
        self._stop_timer()
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        self._start_timer()
        self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """The reader has left, so the store's connection is closed."""
        self._end(Failure(ReaderLeft()))
        self.transport.loseConnection()

    def _forget(self) -> None:
        self._over = True
        self._stop_timer()
        self._sink.unregister_producer()
        self.transport.loseConnection()

    def _silent(self) -> None:
        self._end(Failure(BrokenRead("the store fell silent")))
        self.transport.loseConnection()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = IdleTimer(self._clock, self._idle_seconds, self._silent)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def _end(self, failure: Failure | None) -> None:
        if self._over:
            return
        self._over = True
        self._stop_timer()
        self._sink.unregister_producer()
        if failure is None:
            self.finished.callback(None)
        else:
            self.finished.errback(failure)


class Gather(TwistedProtocol):
    """Gathers a short answer. One of more than ``limit`` bytes is broken off, and ``finished`` fails.

    ``progress`` is called as bytes come.
    """

    transport: Any

    def __init__(self, limit: int) -> None:
        self.finished: Deferred[bytes] = Deferred(lambda _: self.transport.loseConnection())
        self.progress: Callable[[], None] = lambda: None
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def dataReceived(self, data: bytes) -> None:
        self.progress()
        self._size += len(data)
        if self._size > self._limit:
            self.transport.loseConnection()
        else:
            self._parts.append(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.finished.called:
            return
        if self._size <= self._limit and reason.check(ResponseDone):
            self.finished.callback(b"".join(self._parts))
        else:
            self.finished.errback(Failure(BrokenRead("the store's answer broke off")))
