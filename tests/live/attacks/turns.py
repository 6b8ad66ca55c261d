"""How long the reactor's turns are, and a client that sends bytes in any pieces from a thread of its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from attrs import define
from twisted.internet.threads import deferToThread


@define
class Turns:
    """``longest`` is the CPU time that the reactor's thread spent in its longest turn, in seconds; what other
    processes and threads take meanwhile does not count."""

    longest: float = 0.0
    _began: float | None = None

    def next(self) -> None:
        now = time.thread_time()
        if self._began is not None:
            self.longest = max(self.longest, now - self._began)
        self._began = now


@contextmanager
def measured_turns() -> Iterator[Turns]:
    from twisted.internet import reactor

    turns, run = Turns(), reactor.runUntilCurrent  # type: ignore[attr-defined]

    def run_until_current() -> None:
        turns.next()
        run()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reactor, "runUntilCurrent", run_until_current)
        yield turns


async def send(port: int, pieces: Sequence[bytes]) -> bytes:
    """Send a request in pieces, and return the response."""

    def run() -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for piece in pieces:
                    client.sendall(piece)
            except OSError:
                pass  # refused before the end
            received = []
            try:
                while data := client.recv(65536):
                    received.append(data)
            except OSError:
                pass
        return b"".join(received)

    response: bytes = await deferToThread(run)
    return response
