"""Servers of others in memory, in place of ``Outgoing``: each answers requests byte by byte, as on a socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import orjson
from attrs import define, field

from project_service.database.acting import Actor
from project_service.outgoing import Outgoing, OutgoingFailed, Reply


@define
class _Written:
    """The transport of one request."""

    sent: bytes = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def loseConnection(self) -> None:
        """All has been sent."""


@define(eq=False)
class Internet:
    """``servers`` by scheme and host. All others cannot be reached. ``functions`` are those of the database that
    hooks call, by name: each takes and returns JSON."""

    servers: dict[str, Callable[[bytes, Any], None]] = field(factory=dict)
    functions: dict[str, Callable[[Any], Any]] = field(factory=dict)

    @property
    def actor(self) -> Actor:
        return cast(Actor, self)

    async def query_unknown(self, sql: str, values: Sequence[Any], seconds: float) -> list[Any]:
        """As ``Actor.query_unknown``, for the one statement of hooks."""
        name = sql.removeprefix("select ").partition("(")[0]
        return [(orjson.dumps(self.functions[name.replace('"', "")](orjson.loads(values[0]))).decode(),)]

    @property
    def outgoing(self) -> Outgoing:
        return cast(Outgoing, self)

    async def call(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        seconds: float = 0.0,
        max_bytes: int = 0,
    ) -> Reply:
        return self.ask(method, url, headers, body)

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        """What a server answers, also to a browser."""
        address = urlsplit(url)
        server = self.servers.get(f"{address.scheme}://{address.netloc}")
        if server is None:
            raise OutgoingFailed(address.netloc, "cannot be connected to")
        target = f"{address.path}?{address.query}" if address.query else address.path
        lines = [
            f"{method} {target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        written = _Written()
        server("\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b""), written)
        head, _, content = written.sent.partition(b"\r\n\r\n")
        status, *rest = head.decode().split("\r\n")
        found = dict(line.split(": ", 1) for line in rest)
        known = {name.lower(): value for name, value in found.items()}
        return Reply(address.netloc, int(status.split(" ")[1]), known, content)
