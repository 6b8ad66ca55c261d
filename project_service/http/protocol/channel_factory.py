"""Makes a channel for each connection and knows which are open."""

from __future__ import annotations

from collections.abc import Collection

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IProtocolNegotiationFactory, IReactorTime
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from project_service.http.limits import AcceptThrottle, ConnectionLimit, UnsentLimit
from project_service.http.protocol.base_channel import LINGER_SECONDS, BaseChannel
from project_service.http.protocol.dispatch import Dispatch
from project_service.http.protocol.lean_channel import LeanChannel
from project_service.network.splicing import Splicing


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

    def buildProtocol(self, addr: IAddress | None) -> LeanChannel | TurnedAway:
        if not self._limit.for_one_more():
            self.throttle.rejected()
            return TurnedAway(self._dispatch, self._clock)
        return LeanChannel(self, self._dispatch, self._clock, self._idle_seconds)


class TurnedAway(BaseChannel, Protocol):
    """The protocol for a connection too many: it is answered 503 and closed.

    That also ends connections over TLS whose client never makes the handshake.
    """

    def __init__(self, dispatch: Dispatch, clock: IReactorTime) -> None:
        super().__init__(clock, LINGER_SECONDS)
        self._dispatch = dispatch

    def connectionMade(self) -> None:
        self.transport.write(self._dispatch.turned_away())
        self.hang_up(more_may_come=True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_gone()
