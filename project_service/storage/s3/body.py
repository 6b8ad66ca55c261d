"""Request bodies from memory, response bodies into a sink: both with back-pressure and an idle timeout."""

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
# Tells the sweeper that an upload is at work; raises where it has given it up.
KeepAlive = Callable[[], Awaitable[None]]

# What is copied for a transport at a time, and how often its socket is given something directly in one turn.
SLICE = 64 * 1024
AT_ONCE = 16


class IdleTimer:
    """Calls ``expire`` once when nobody called ``touch`` for ``seconds``. Cheap to touch."""

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
    """A body that is already in memory, so that it can be sent again. ``progress`` is called as it leaves.

    The transport asks for more whenever it has nothing left to send, and is then given the memory itself: next to
    nothing of a large body is copied.
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
        # The first time is while registering, and the request's head waits to be sent before this.
        if self._asked and isinstance(self._consumer, Connection):
            self._send_now(self._consumer)
        self._asked = True
        # What the socket did not take, so that the transport asks again once it does.
        self._hand_over(SLICE)
        if not self._left:
            consumer, self._consumer = self._consumer, None
            consumer.unregisterProducer()
            self._done.callback(None)

    def pauseProducing(self) -> None:
        """Nothing comes unasked."""

    def stopProducing(self) -> None:
        """Twisted's objects refer to each other in a ring: what they hold stays until it is collected."""
        self._consumer = None
        self._left = memoryview(b"")

    def _send_now(self, transport: Connection) -> None:
        for _ in range(AT_ONCE):
            # An error shows up again, and in the right place, when the transport itself writes.
            sent: Any = transport.writeSomeData(self._left)  # type: ignore[arg-type]  # any buffer will do
            if isinstance(sent, Exception) or not sent:
                return
            self._left = self._left[sent:]

    def _hand_over(self, size: int) -> None:
        piece, self._left = bytes(self._left[:size]), self._left[size:]
        if piece:
            self._consumer.write(piece)
        if not self._left:
            # An empty view would still hold all of it.
            self._left = memoryview(b"")


class ByteSink(Protocol):
    """What a response is poured into."""

    def write(self, data: bytes) -> None: ...
    def register_producer(self, producer: Any) -> None: ...
    def unregister_producer(self) -> None: ...


class Pour(TwistedProtocol):
    """Delivers a response to a sink. The sink's reader pauses and resumes the store's own transport.

    While the reader pauses, the store is not to blame for silence, so its idle time does not run.
    ``finished`` fails with ``BrokenRead`` when the store ends early, sends too much or falls silent, and with
    ``ReaderLeft`` when the reader goes away.
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
        """From now on the store must not fall silent; of a small object all may be there already."""
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

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._left == 0:
            self._end(None)
        else:
            self._end(Failure(BrokenRead(f"the store stopped {self._left} bytes early")))

    # The producer that the reader's socket governs.

    def pauseProducing(self) -> None:
        self._paused = True
        self._stop_timer()
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        self._start_timer()
        self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """The reader has left: so does the read."""
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
    """A short answer, whole. Longer than ``limit`` it is dropped. ``progress`` is called as it comes."""

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
