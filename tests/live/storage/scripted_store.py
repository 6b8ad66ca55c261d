"""A store that misbehaves on purpose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import md5
from typing import Any

from twisted.internet.protocol import Factory, Protocol

from project_service.settings.model import Secret, Store
from project_service.storage.s3.client import S3Store
from tests.live.services import store_client
from tests.live.waiting import until

Answer = Callable[["Scripted", str, dict[str, str], bytes], None]


class Scripted(Protocol):
    """The protocol of an HTTP server that answers each request with the next entry of its factory's script."""

    factory: Script

    def connectionMade(self) -> None:
        self.buffer = b""
        self.factory.connections += 1
        self.factory.open.append(self)

    def connectionLost(self, reason: Any = None) -> None:
        self.factory.open.remove(self)

    def dataReceived(self, data: bytes) -> None:
        self.buffer += data
        head, blank, rest = self.buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        self.factory.requests.append((first, headers, rest[:length]))
        self.factory.script.pop(0)(self, first, headers, rest[:length])

    def answer(self, status: str, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.write("\r\n".join([*lines, "", ""]).encode() + body)

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def close(self) -> None:
        assert self.transport is not None
        self.transport.loseConnection()


class Script(Factory):
    protocol = Scripted  # type: ignore[assignment]  # Factory's own type knows no factory attribute

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.open: list[Scripted] = []


def fine(status: str = "200 OK", body: bytes = b"", **headers: str) -> Answer:
    return lambda server, first, sent, payload: server.answer(status, body, **headers)


def stored(server: Scripted, first: str, sent: dict[str, str], payload: bytes) -> None:
    server.answer("200 OK", ETag=f'"{md5(payload).hexdigest()}"')


def hang_up(server: Scripted, first: str, sent: dict[str, str], payload: bytes) -> None:
    server.close()


def silence(server: Scripted, first: str, sent: dict[str, str], payload: bytes) -> None:
    """Nothing."""


async def against(
    script: Script,
    work: Callable[[S3Store], Awaitable[None]],
    context: Any = None,
    ca_file: str | None = None,
    idle_seconds: float = 30.0,
) -> None:
    """Runs ``work`` with a client of the scripted server. The time limit is long enough for a busy machine."""
    from twisted.internet import reactor as running

    reactor: Any = running
    if context is None:
        listen = reactor.listenTCP(0, script, interface="127.0.0.1")
    else:
        listen = reactor.listenSSL(0, script, context, interface="127.0.0.1")
    scheme = "http" if context is None else "https"
    settings = Store(
        endpoint_url=f"{scheme}://127.0.0.1:{listen.getHost().port}",
        bucket="bucket",
        access_key_id="AKIDVISIBLE",
        secret_access_key=Secret("very-secret"),
        idle_timeout_seconds=idle_seconds,
        connect_timeout_seconds=10.0,
        ca_file=ca_file,
    )
    store = store_client(settings)
    try:
        await work(store)
    finally:
        await store.close()
        stopping = listen.stopListening()
        if stopping is not None:
            await stopping
        for server in list(script.open):
            server.close()
        await until(lambda: not script.open)
