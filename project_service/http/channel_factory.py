"""Makes a channel for each connection and knows which are open."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IProtocolNegotiationFactory, IReactorTime
from twisted.internet.protocol import Factory
from zope.interface import implementer

from project_service.http.channel import Channel, Dispatch


@implementer(IProtocolNegotiationFactory)
class ChannelFactory(Factory):
    """``dispatch`` gets every request; ``idle_seconds`` is the limit for clients that do nothing."""

    noisy = False

    def __init__(self, dispatch: Dispatch, clock: IReactorTime, idle_seconds: float) -> None:
        self._dispatch = dispatch
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._channels: set[Channel] = set()
        self._empty: Deferred[None] | None = None

    def opened(self, channel: Channel) -> None:
        self._channels.add(channel)

    def gone(self, channel: Channel) -> None:
        self._channels.discard(channel)
        if not self._channels and self._empty is not None:
            empty, self._empty = self._empty, None
            empty.callback(None)

    def close_all(self) -> Deferred[None]:
        """Close each connection once what was written to it has been taken; fires when none is left."""
        empty: Deferred[None] = Deferred()
        self._empty = empty
        for channel in list(self._channels):
            channel.loseConnection()
        if not self._channels and self._empty is not None:
            self._empty = None
            empty.callback(None)
        return empty

    def abort_all(self) -> None:
        for channel in list(self._channels):
            channel.abort()

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
