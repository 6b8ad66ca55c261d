"""Exchanges on raw sockets, and what is written down of their replies."""

from __future__ import annotations

import hashlib
import re
import socket
import time
from collections.abc import Sequence
from typing import Literal

from attrs import define, field, frozen

SECONDS = 20.0
# After a reply with "Connection: close". Refused clients are not cut off at once, so that they can read why.
_CLOSING_SECONDS = 0.5
_KEPT_BYTES = 20_000
_BETWEEN_PIECES = 0.002

# What has to differ from run to run: times, and values that come from chance.
_MASKS = [
    (re.compile(pattern), mask)
    for pattern, mask in (
        (rb"(?m)^(Date|Last-Modified): .*?(?=\r?$)", rb"\1: <time>"),
        (rb"(?m)^X-Request-Id: [0-9a-f]{32}(?=\r?$)", rb"X-Request-Id: <made>"),
        (rb"(?m)^(Retry-After): \d+(?=\r?$)", rb"\1: <seconds>"),
        # What is left of a link that works for an hour.
        (rb"(?m)^(Cache-Control: private, max-age)=3[56]\d\d(?=\r?$)", rb"\1=<seconds>"),
        (rb"\bdur=[0-9.]+", rb"dur=<ms>"),
        (rb"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", rb"<time>"),
        (rb'(\\?"(?:iat|exp|nbf|expires_at)\\?": ?)\d{10}\b', rb"\1<time>"),
        (rb"\b(?!00000000-)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", rb"<uuid>"),
        (rb"\beyJ[\w-]+\.[\w-]+\.[\w-]*", rb"<jwt>"),
        (rb'("(?:refresh_token|next_cursor|kid|x|y)": ?)"[\w=-]{20,}"', rb'\1"<random>"'),
        (rb"\btoken=[\w-]{43}\b", rb"token=<random>"),
        (rb"\bpsk_(anon|service)_[\w-]{49}", rb"<key>"),
    )
]


@frozen
class Exchange:
    """What is sent on one connection, and the replies that are read from it.

    ``sent`` are pieces with a short pause between them. ``methods`` are those of the requests, one for each reply.
    ``connection`` names a kept-alive connection; None is a new one, which is read to its end. ``keep`` is a name, and
    a pattern for the value in the replies that is to be known by that name from then on.
    """

    name: str
    sent: tuple[bytes, ...]
    methods: tuple[str, ...]
    connection: str | None = "first"
    keep: tuple[str, bytes] | None = None


@frozen
class Reply:
    head: bytes
    body: bytes


def shown(text: bytes) -> str:
    """``text`` with what differs from run to run masked; of a long one, which has nothing of that, the digest."""
    if len(text) > _KEPT_BYTES:
        digest = hashlib.sha256(text).hexdigest().encode()
        text = b"%b\n... %d bytes, SHA-256 %b ...\n%b" % (text[:500], len(text), digest, text[-500:])
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text.decode("utf-8", "surrogateescape")


# open: another request may follow. closed: the server says so, or does it. silent: a reply did not come in time.
Then = Literal["open", "closed", "silent"]


@frozen
class Answered:
    replies: tuple[Reply, ...]
    then: Then


class Ended(Exception):
    """The server has closed the connection, or says nothing more (``then``)."""

    def __init__(self, then: Then) -> None:
        super().__init__(then)
        self.then = then


@define
class Connection:
    _socket: socket.socket
    _unread: bytearray = field(factory=bytearray)
    _active_at: float = 0.0
    _closing: bool = False

    @classmethod
    def to(cls, address: tuple[str, int]) -> Connection:
        made = socket.create_connection(address, timeout=SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(made)

    def close(self) -> None:
        self._socket.close()

    def send(self, pieces: Sequence[bytes]) -> None:
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(_BETWEEN_PIECES)
            try:
                self._socket.sendall(piece)
            except OSError:
                break  # The server has closed the connection; what it wrote before can still be read.
        self._active_at = time.monotonic()

    def receive(self, methods: Sequence[str], to_the_end: bool) -> Answered:
        """The replies to ``methods``; with ``to_the_end``, whatever else comes before the server closes."""
        replies: list[Reply] = []
        try:
            for method in methods:
                reply = self._reply(method)
                while reply.head.startswith(b"HTTP/1.1 1"):
                    replies.append(reply)
                    reply = self._reply(method)
                replies.append(reply)
            if not to_the_end and not self._closing:
                return Answered(tuple(replies), "open")
            while True:
                replies.append(self._reply("GET"))
        except Ended as end:
            return Answered(tuple(replies), "closed" if self._closing else end.then)

    def _reply(self, method: str) -> Reply:
        head = self._until(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        headers = head.lower() + b"\r\n"
        self._closing = b"\r\nconnection: close\r\n" in headers
        if method == "HEAD" or status < 200 or status in {204, 304}:
            return Reply(head, b"")
        if b"\r\ntransfer-encoding: chunked\r\n" in headers:
            return Reply(head, self._chunks())
        length = re.search(rb"\r\ncontent-length: (\d+)\r\n", headers)
        return Reply(head, self._exactly(int(length[1])) if length else self._rest())

    def _chunks(self) -> bytes:
        """Without their framing: how a stream is cut depends on how fast it is read."""
        body = b""
        while size := int(self._until(b"\r\n"), 16):
            body += self._exactly(size)
            if self._exactly(2) != b"\r\n":
                raise ValueError("a chunk does not end where it should")
        self._until(b"\r\n")
        return body

    def _until(self, end: bytes) -> bytes:
        while (at := self._unread.find(end)) < 0:
            self._more()
        taken = bytes(self._unread[:at])
        del self._unread[: at + len(end)]
        return taken

    def _exactly(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._more()
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken

    def _rest(self) -> bytes:
        try:
            while True:
                self._more()
        except Ended:
            return self._exactly(len(self._unread))

    def _more(self) -> None:
        # Not since this was called, so that many silent connections do not cost many times as much.
        deadline = self._active_at + (_CLOSING_SECONDS if self._closing else SECONDS)
        self._socket.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            raise Ended("silent") from None
        except ConnectionError:
            raise Ended("closed") from None
        if not data:
            raise Ended("closed")
        self._unread.extend(data)
        self._active_at = time.monotonic()


@frozen
class Client:
    """Plays exchanges with the service at ``address``, and puts what they keep into ``known``."""

    address: tuple[str, int]
    known: dict[str, bytes]
    _connections: dict[str, Connection] = field(factory=dict)

    def play(self, exchanges: Sequence[Exchange]) -> list[Answered]:
        """All are sent, each on a connection of its own, before any reply is read."""
        connections = [self._connection(exchange) for exchange in exchanges]
        for exchange, connection in zip(exchanges, connections, strict=True):
            connection.send(exchange.sent)
        answers = []
        for exchange, connection in zip(exchanges, connections, strict=True):
            answered = connection.receive(exchange.methods, exchange.connection is None)
            if answered.then != "open":
                connection.close()
                self._connections.pop(exchange.connection or "", None)
            self._keep(exchange, answered)
            answers.append(answered)
        return answers

    def _connection(self, exchange: Exchange) -> Connection:
        if exchange.connection is None:
            return Connection.to(self.address)
        if exchange.connection not in self._connections:
            self._connections[exchange.connection] = Connection.to(self.address)
        return self._connections[exchange.connection]

    def _keep(self, exchange: Exchange, answered: Answered) -> None:
        if exchange.keep is not None:
            name, pattern = exchange.keep
            value = re.search(pattern, b"".join(reply.body for reply in answered.replies))
            if value is None:
                raise SystemExit(f"{exchange.name}: no {name} in {answered}")
            self.known[name] = value[1]
