"""A TCP proxy that misbehaves: it refuses, stays silent, resets in the middle of a body, sends byte by byte, or
answers in place of the server."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater

from tests.live.waiting import until


@frozen
class Manners:
    """How connections are treated; by default everything is passed on. *Up* is towards the server.

    Bytes are counted from the moment when these manners were set. After ``times`` resets everything is passed on.
    """

    refuse: bool = False
    silent: bool = False
    answer: bytes | None = None  # to each thing the client sends, in place of the server
    times: int | None = None  # for ``answer`` and the resets; None: for ever
    reset_up_after: int | None = None
    reset_down_after: int | None = None
    dribble_down_after: int | None = None  # from then on a byte a second


BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class RudeProxy(Factory):
    """``manners`` may be set at any time, also for open connections. ``target`` is a client endpoint."""

    noisy = False

    def __init__(self, reactor: Any, target: str) -> None:
        self.reactor = reactor
        self.endpoint = clientFromString(reactor, target)
        self.open: list[_Client] = []
        self.done = 0
        self._manners = Manners()

    @property
    def manners(self) -> Manners:
        return self._manners

    @manners.setter
    def manners(self, manners: Manners) -> None:
        self._manners = manners
        self.done = 0
        for client in list(self.open):
            client.up = client.down = 0
            if manners.refuse:
                client.reset()
            elif manners == Manners():
                client.catch_up()

    def worn_out(self) -> bool:
        """Whether as much has been done as was asked for; if not, this counts as one more."""
        if self._manners.times is not None and self.done >= self._manners.times:
            return True
        self.done += 1
        return False

    def buildProtocol(self, addr: Any) -> _Client:
        return _Client(self)


class _Client(Protocol):
    """The connection from the client."""

    def __init__(self, proxy: RudeProxy) -> None:
        self.proxy = proxy
        self.server: _Server | None = None
        self.up = self.down = 0
        self.waiting_up = b""
        self.waiting_down = b""
        self.dribbling: IDelayedCall | None = None

    @property
    def manners(self) -> Manners:
        return self.proxy.manners

    def connectionMade(self) -> None:
        self.proxy.open.append(self)
        if self.manners.refuse:
            self.reset()
            return
        connecting: Deferred[Any] = self.proxy.endpoint.connect(Factory.forProtocol(lambda: _Server(self)))
        connecting.addCallbacks(self._connected, lambda _: self.reset())

    def _connected(self, server: _Server) -> None:
        if self not in self.proxy.open:
            server.close()
            return
        self.server = server
        self.catch_up()

    def dataReceived(self, data: bytes) -> None:
        self.waiting_up += data
        self.catch_up()

    def from_server(self, data: bytes) -> None:
        self.waiting_down += data
        self.catch_up()

    def catch_up(self) -> None:
        """Pass on what waits, as far as manners allow."""
        manners = self.manners
        if manners.silent or self.server is None:
            return
        if manners.answer is not None and self.waiting_up and not self.proxy.worn_out():
            self.waiting_up = b""
            self._write_down(manners.answer)
            self._transport.loseConnection()
            return
        self.up += len(self.waiting_up)
        if manners.reset_up_after is not None and self.up > manners.reset_up_after and not self._spared():
            self.reset()
            return
        waiting, self.waiting_up = self.waiting_up, b""
        self.server.write(waiting)
        self._down(manners)

    def _down(self, manners: Manners) -> None:
        if manners.dribble_down_after is not None and self.down >= manners.dribble_down_after:
            if self.waiting_down and self.dribbling is None:
                self.dribbling = self.proxy.reactor.callLater(1.0, self._dribble)
            return
        waiting, self.waiting_down = self.waiting_down, b""
        if manners.dribble_down_after is not None:
            room = manners.dribble_down_after - self.down
            waiting, self.waiting_down = waiting[:room], waiting[room:]
        self.down += len(waiting)
        self._write_down(waiting)
        if (
            manners.reset_down_after is not None
            and self.down > manners.reset_down_after
            and not self._spared()
        ):
            self.reset()
        elif self.waiting_down:
            self._down(manners)

    def _dribble(self) -> None:
        self.dribbling = None
        byte, self.waiting_down = self.waiting_down[:1], self.waiting_down[1:]
        self._write_down(byte)
        self.catch_up()

    def _spared(self) -> bool:
        self.up = self.down = 0
        return self.proxy.worn_out()

    @property
    def _transport(self) -> Any:
        assert self.transport is not None
        return self.transport

    def _write_down(self, data: bytes) -> None:
        if data:
            self._transport.write(data)

    def reset(self) -> None:
        """RST to the client, as from a server that was switched off; the server is left alone."""
        handle = self._transport.getHandle()
        if handle is not None and handle.fileno() >= 0:
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abortConnection()

    def connectionLost(self, reason: Any = None) -> None:
        self.proxy.open.remove(self)
        if self.dribbling is not None:
            self.dribbling.cancel()
            self.dribbling = None
        if self.server is not None:
            self.server.close()


class _Server(Protocol):
    """The connection to the server."""

    def __init__(self, client: _Client) -> None:
        self.client = client

    def write(self, data: bytes) -> None:
        if data and self.transport is not None:
            self.transport.write(data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]  # a TCP one has it

    def dataReceived(self, data: bytes) -> None:
        self.client.from_server(data)

    def connectionLost(self, reason: Any = None) -> None:
        if self.client in self.client.proxy.open:
            self.client._transport.loseConnection()


@asynccontextmanager
async def rude_proxy(target: str) -> AsyncIterator[tuple[RudeProxy, int]]:
    """A proxy and its port on loopback. At the end of the block all its connections are closed."""
    from twisted.internet import reactor as running

    reactor: Any = running
    proxy = RudeProxy(reactor, target)
    port = reactor.listenTCP(0, proxy, interface="127.0.0.1")
    try:
        yield proxy, port.getHost().port
    finally:
        await port.stopListening()
        for client in list(proxy.open):
            client._transport.abortConnection()
        await until(lambda: not proxy.open)
        # Those to the server report it in the next turn.
        await deferLater(reactor, 0, lambda: None)
