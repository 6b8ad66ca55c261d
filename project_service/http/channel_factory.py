"""Makes a channel for each connection and knows which are open."""

from __future__ import annotations

from collections.abc import Collection

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IProtocolNegotiationFactory, IReactorTime
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from project_service.http.dispatch import Dispatch
from project_service.http.far_end import LINGER_SECONDS, FarEnd
from project_service.http.lean_channel import LeanChannel
from project_service.http.room import Room
from project_service.http.twisted_channel import TwistedChannel

Channel = LeanChannel | TwistedChannel
# By the name of the parser, as the setting ``server.http_parser`` has it.
CHANNELS: dict[str, type[Channel]] = {"httptools": LeanChannel, "twisted": TwistedChannel}

MOST_CONNECTIONS = 10_000


@implementer(IProtocolNegotiationFactory)
class ChannelFactory(Factory):
    """``dispatch`` gets every request; ``idle_seconds`` is the limit for clients that do nothing; ``parser`` is
    one of ``CHANNELS``.

    With ``most`` connections open, one that waits for its next request, or for a body that hardly moves, makes room
    for each new one (``Room``); where there is none of those, the new one is told 503 and closed.
    """

    noisy = False

    def __init__(
        self,
        dispatch: Dispatch,
        clock: IReactorTime,
        idle_seconds: float,
        parser: str = "httptools",
        most: int = MOST_CONNECTIONS,
    ) -> None:
        self._dispatch = dispatch
        self._channel = CHANNELS[parser]
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._room: Room[Channel] = Room(most, clock.seconds)
        self._empty: Deferred[None] | None = None

    @property
    def connections(self) -> Collection[Channel]:
        """Those that are open."""
        return self._room.connections

    def opened(self, channel: Channel) -> None:
        self._room.enter(channel)

    def gone(self, channel: Channel) -> None:
        self._room.leave(channel)
        if not self._room.connections and self._empty is not None:
            empty, self._empty = self._empty, None
            empty.callback(None)

    def close_all(self) -> Deferred[None]:
        """Close each connection once what was written to it has been taken; fires when none is left."""
        empty: Deferred[None] = Deferred()
        self._empty = empty
        for channel in list(self._room.connections):
            channel.loseConnection()
        if not self._room.connections and self._empty is not None:
            self._empty = None
            empty.callback(None)
        return empty

    def abort_all(self) -> None:
        for channel in list(self._room.connections):
            channel.abort()

    def acceptableProtocols(self) -> list[bytes]:
        """For ALPN (RFC 7301). Without an answer Twisted 26 breaks off with clients that ask, and most do:
        ``curl -0`` for HTTP/1.0."""
        return [b"http/1.1", b"http/1.0"]

    def buildProtocol(self, addr: IAddress | None) -> Channel | TurnedAway:
        if not self._room.for_one_more():
            return TurnedAway(self._dispatch, self._clock)
        return self._channel(self, self._dispatch, self._clock, self._idle_seconds)


class TurnedAway(FarEnd, Protocol):
    """A connection too many: told so and closed, also where its client does not shake hands for TLS."""

    def __init__(self, dispatch: Dispatch, clock: IReactorTime) -> None:
        super().__init__(clock, LINGER_SECONDS)
        self._dispatch = dispatch

    def connectionMade(self) -> None:
        self.transport.write(self._dispatch.turned_away())
        self.hang_up(more_may_come=True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_gone()
