"""A server of HTTP on loopback that does whatever a test says, byte by byte."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from attrs import define, field
from twisted.internet.protocol import Factory, Protocol

# What is done with one request: its bytes, and the transport to answer by.
Answer = Callable[[bytes, Any], None]


def answers(text: bytes) -> Answer:
    """Sends ``text`` and closes the connection."""

    def answer(request: bytes, transport: Any) -> None:
        transport.write(text)
        transport.loseConnection()

    return answer


def ok(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def hangs(request: bytes, transport: Any) -> None:
    """Never answers."""


@define(eq=False)
class Server:
    """``requests`` has the bytes of each, ``opened`` and ``lost`` count connections."""

    answer: Answer
    port: int = 0
    requests: list[bytes] = field(factory=list)
    opened: int = 0
    lost: int = 0

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"


class _Connection(Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.received = b""

    def connectionMade(self) -> None:
        self.server.opened += 1

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        lengths = [
            int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        ]
        if end and len(body) >= (lengths or [0])[0]:
            request, self.received = self.received, b""
            self.server.requests.append(request)
            self.server.answer(request, self.transport)

    def connectionLost(self, reason: Any = None) -> None:
        self.server.lost += 1


@asynccontextmanager
async def outgoing_server(answer: Answer, tls: Any = None) -> AsyncIterator[Server]:
    """A server that answers each request by ``answer``; with ``tls``, a context factory, by https."""
    from twisted.internet import reactor

    server = Server(answer)
    factory = Factory.forProtocol(lambda: _Connection(server))
    where: Any = reactor
    if tls is None:
        port = where.listenTCP(0, factory, interface="127.0.0.1")
    else:
        port = where.listenSSL(0, factory, tls, interface="127.0.0.1")
    server.port = port.getHost().port
    try:
        yield server
    finally:
        await port.stopListening()
