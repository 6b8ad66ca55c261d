"""A lean HTTP/1.1 load generator: keep-alive connections on one epoll loop, so that it takes little CPU itself."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable


class Connection:
    """One request after the other on one socket. ``make`` returns the next request's bytes."""

    def __init__(self, host: str, port: int, make: Callable[[], bytes]) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._make = make
        self._buffer = b""
        self._left = -1
        self.statuses: dict[int, int] = {}

    def send(self) -> None:
        self._buffer, self._left = b"", -1
        self.socket.sendall(self._make())

    def receive(self) -> bool:
        """True when a response is complete."""
        data = self.socket.recv(262144)
        if not data:
            raise ConnectionError("the service closed the connection")
        if self._left >= 0:
            self._left -= len(data)
            return self._left <= 0
        self._buffer += data
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return False
        status = int(head[9:12])
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self._left = _length(head) - len(rest)
        return self._left <= 0


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":", 1)[1])
    return 0


def run(
    host: str, port: int, make: Callable[[], bytes], clients: int, seconds: float
) -> tuple[float, dict[int, int]]:
    """Requests per second by so many clients, and how often each status came."""
    selector = selectors.DefaultSelector()
    connections = [Connection(host, port, make) for _ in range(clients)]
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send()
    done = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for key, _ in selector.select(1):
            if key.data.receive():
                done += 1
                key.data.send()
    statuses: dict[int, int] = {}
    for connection in connections:
        connection.socket.close()
        for status, count in connection.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    return done / elapsed, statuses
