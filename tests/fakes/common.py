"""Fakes that work in memory and that several tests share."""

from __future__ import annotations

from typing import Any

from attrs import define, field
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from project_service import errors
from project_service.http.caller import BY_SERVICE, Callers, Claims, KeyKind, KeyUse
from project_service.http.connection import ConnectionFactory
from project_service.http.edge import Edge, EdgeSettings
from project_service.http.head import parse_networks
from project_service.http.metrics import Metrics
from project_service.http.routing import Router

ANON_KEY = "anon-key"
SERVICE_KEY = "service-key"


class FakeKeys:
    """A key ring with two keys, or with those that a test names."""

    def __init__(self, kinds: dict[str, KeyKind] | None = None) -> None:
        self.kinds: dict[str, KeyKind] = kinds or {ANON_KEY: "anon", SERVICE_KEY: "service"}

    @property
    def active(self) -> object:
        # A test may change ``kinds`` in place, so nothing may be kept.
        return object()

    def kind_of(self, presented: str) -> KeyKind | None:
        return self.kinds.get(presented)

    def use_of(self, presented: str) -> KeyUse:
        return KeyUse()

    def mistyped(self, presented: str) -> bool:
        return False


class FakeRevocations:
    """Revocations that are current, until a test says otherwise; then catching up waits for the test."""

    def __init__(self) -> None:
        self.current = True
        self.waiting: list[Deferred[None]] = []

    async def catch_up(self) -> None:
        await held(self.waiting)


class FakeTokens:
    """A verifier of tokens for which ``user:<id>`` is a valid token of that user, and ``as:<id>`` one by which an
    operator sees what that user sees; until ``expired``."""

    expired = False

    def verify(self, token: str) -> Claims:
        kind, _, user = token.partition(":")
        if kind not in ("user", "as") or self.expired:
            raise errors.invalid_token()
        email = f"{user}@example.test"
        raw: dict[str, Any] = {"sub": user, "role": "authenticated"}
        if kind == "as":
            raw = {**raw, "act": BY_SERVICE}
        return Claims(sub=user, email=email, role="authenticated", sid="s", exp=2**40, raw=raw)


class MemoryTransport(StringTransport):
    """A client's socket. It keeps what is written, and can stop reading and hang up."""

    def __init__(self, host: str = "192.0.2.7") -> None:
        super().__init__(peerAddress=IPv4Address("TCP", host, 50000))
        self.aborted = False
        self.full = False
        self.closed = self.shut = False

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.full and self.producer is not None:
            self.producer.pauseProducing()

    def drain(self) -> None:
        """The client reads what was written."""
        self.full = False
        if self.producer is not None:
            self.producer.resumeProducing()

    def resumeProducing(self) -> None:
        """Does nothing after the end, as a socket."""
        if not self.closed:
            self.producerState = "producing"

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing to set."""

    def loseWriteConnection(self) -> None:
        """Ends what is sent to the client; what the client sends is still read."""
        self.shut = True

    @property
    def ended(self) -> bool:
        """Whether the connection has ended for the client, or soon will."""
        return self.shut or self.disconnecting

    def loseConnection(self) -> None:
        self.closed = self.disconnecting = True

    def abortConnection(self) -> None:
        self.aborted = True
        self.disconnecting = True


@define
class Response:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        for key, value in self.headers:
            if key.lower() == name.lower():
                return value
        return None


@define
class Client:
    """One connection to an app in memory: bytes in, bytes out."""

    connection: Any
    transport: MemoryTransport
    clock: Clock
    _seen: int = field(default=0)

    def send(self, raw: bytes) -> None:
        self.connection.dataReceived(raw)
        # Runs what was scheduled for the reactor's next turn.
        self.clock.advance(0)

    def received(self) -> bytes:
        """What was written to the client since the last call."""
        data: bytes = self.transport.value()
        fresh, self._seen = data[self._seen :], len(data)
        return fresh

    def half_close(self) -> None:
        """The client sends nothing more, and reads."""
        self.connection.readConnectionLost()

    def hang_up(self) -> None:
        from twisted.internet.error import ConnectionLost
        from twisted.python.failure import Failure

        self.connection.connectionLost(Failure(ConnectionLost()))

    def request(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        """Send a request, and return the one response that there must be."""
        self.send(raw_request(method, target, headers or {}, body))
        return parse_response(self.received(), method)


def raw_request(method: str, target: str, headers: dict[str, str], body: bytes | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: api.example.test"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def parse_response(raw: bytes, method: str = "GET") -> Response:
    """Parses exactly one complete response; fails for anything more or less."""
    head, separator, rest = raw.partition(b"\r\n\r\n")
    assert separator, f"no whole response head in {raw!r}"
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    response = Response(int(status_line.split(" ")[1]), headers, b"")
    if response.header("transfer-encoding") == "chunked" and method != "HEAD":
        response.body, rest = _dechunk(rest)
    elif method != "HEAD":
        length = int(response.header("content-length") or 0)
        response.body, rest = rest[:length], rest[length:]
        assert len(response.body) == length, f"{len(response.body)} of {length} bytes"
    assert not rest, f"more than one response: {rest!r}"
    return response


def _dechunk(raw: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, raw = raw.partition(b"\r\n")
        length = int(size, 16)
        body, raw = body + raw[:length], raw[length + 2 :]
        if length == 0:
            return body, raw


class App:
    """A router behind the real edge and a real HTTP channel, all in memory."""

    def __init__(self, router: Router, **settings: Any) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        self.failures: list[BaseException] = []
        trusted = parse_networks(settings.pop("trusted_proxies", ()))
        max_connections = settings.pop("connections", 10_000)
        limits = settings.pop("limits", {})
        log_later = self.clock.callLater if settings.pop("gathers_log", False) else None
        defaults: dict[str, Any] = {
            "public_url": None,
            "cors_origins": ("*",),
            "trusted": trusted,
            "max_json_bytes": 1 << 20,
        }
        self.keys: Any = settings.pop("keys", None) or FakeKeys()
        self.tokens: Any = settings.pop("tokens", None) or FakeTokens()
        self.revocations: Any = settings.pop("revocations", None) or FakeRevocations()
        self.edge = Edge(
            router,
            Callers(self.keys, self.tokens, self.revocations),
            EdgeSettings(**{**defaults, **settings}),
            self.clock,
            lambda: "made-here",
            self.metrics,
            lambda failure: None,
            lambda: "Sat, 21 Nov 2026 00:00:00 GMT",
            limits,
            log_later,
        )
        self._factory = ConnectionFactory(self.edge, self.clock, 60.0, max_connections)

    def connect(self, host: str = "192.0.2.7", transport: MemoryTransport | None = None) -> Client:
        transport = transport or MemoryTransport(host)
        connection = self._factory.buildProtocol(None)
        connection.makeConnection(transport)
        return Client(connection, transport, self.clock)

    def close_connections(self) -> Deferred[None]:
        return self._factory.close_all()

    def request(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        return self.connect().request(method, target, headers, body)


async def held(gates: list[Deferred[None]]) -> None:
    """Waits until a test fires the Deferred that is appended to ``gates``."""
    gate: Deferred[None] = Deferred()
    gates.append(gate)
    await gate
