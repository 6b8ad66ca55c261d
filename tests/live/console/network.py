"""A network between a browser and a service, as slow or as broken as a test wants it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from threading import Thread
from time import sleep
from urllib.parse import urlsplit

from attrs import define, evolve, field

from tests.live.console.browsing import Running

_CHUNK = 16 * 1024


@define(eq=False)
class Network:
    """``speed`` is how many bytes a second go towards the service, and ``room`` how many in all until the rest waits.
    While it is ``broken`` no connection lasts."""

    target: tuple[str, int]
    speed: int
    room: float = field(default=inf, init=False)
    _broken: bool = field(default=False, init=False)
    _open: list[socket.socket] = field(factory=list, init=False)

    @property
    def broken(self) -> bool:
        return self._broken

    @broken.setter
    def broken(self, broken: bool) -> None:
        self._broken = broken
        if broken:
            self.cut()

    def cut(self) -> None:
        while self._open:
            with suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                if self._broken:
                    client.close()
                    continue
                server = socket.create_connection(self.target)
                self._open += [client, server]
                Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()
                Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, slowly: bool) -> None:
        with suppress(OSError):
            while received := source.recv(_CHUNK):
                if slowly:
                    sleep(len(received) / self.speed)
                    while self.room <= 0 and not self._broken:
                        sleep(0.01)
                    self.room -= len(received)
                to.sendall(received)
        for one in (source, to):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def network_to(running: Running, speed: int) -> Iterator[tuple[Network, Running]]:
    """The network, and the service as it is reached through it."""
    address = urlsplit(running.url)
    assert address.hostname is not None
    assert address.port is not None
    network = Network((address.hostname, address.port), speed)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=network.accept, args=(listening,), daemon=True).start()
        yield network, evolve(running, url=f"http://127.0.0.1:{listening.getsockname()[1]}")
        listening.shutdown(socket.SHUT_RDWR)
    network.cut()
