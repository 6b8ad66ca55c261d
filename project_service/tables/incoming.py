"""A request as the route hands it to a database's table API: decoded, not yet understood."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import orjson
from attrs import field, frozen

# The headers that decide how a request is understood. The others only SQL gets to see.
_DECISIVE = frozenset(("accept", "prefer", "range", "content-type", "accept-profile", "content-profile"))
# Project keys are for this service, not for SQL to read.
_SECRET = frozenset(("x-service-key", "apikey", "cookie"))


def untold(waiting: bool) -> None:
    """Nobody is told that a request waits for clients."""


@frozen
class Sent:
    """A request's headers and what is derived from them, made once for all requests with the same headers.

    ``decisive`` are those that decide how the request is understood. ``as_json`` and ``cookies`` are JSON objects for
    SQL.
    """

    pairs: tuple[tuple[str, str], ...] = field(repr=False)
    decisive: tuple[tuple[str, str], ...]
    authorization: tuple[str, ...] = field(repr=False)
    as_json: str = field(repr=False)
    cookies: str = field(repr=False)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Sent:
        """Names are lower-case."""
        found = tuple(pairs)
        return cls(
            found,
            tuple(header for header in found if header[0] in _DECISIVE),
            tuple(value for name, value in found if name == "authorization"),
            _headers(found),
            _cookies(found),
        )


@frozen
class Incoming:
    """``segments`` and ``pairs`` are decoded. ``path`` is the resource's public path, for Location headers;
    ``presented_key`` the project key that came along; ``client_awaited`` that of ``Inbound``."""

    method: str
    segments: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    headers: Sent = field(factory=lambda: Sent.of(()))
    body: bytes = field(default=b"", repr=False)
    path: str = "/"
    base_url: str = ""
    presented_key: str | None = field(default=None, repr=False)
    is_service: bool = False
    client_awaited: Callable[[bool], None] = field(default=untold, eq=False, repr=False)

    @property
    def resource(self) -> str:
        """The path as PostgREST would see it, below the base path."""
        return "/" + "/".join(self.segments)


def _headers(headers: Iterable[tuple[str, str]]) -> str:
    found: dict[str, str] = {}
    for name, value in headers:
        if name not in _SECRET:
            found[name] = f"{found[name]}, {value}" if name in found else value
    return orjson.dumps(found).decode()


def _cookies(headers: Iterable[tuple[str, str]]) -> str:
    pieces = (piece for name, value in headers if name == "cookie" for piece in value.split(";"))
    pairs = (piece.strip().partition("=") for piece in pieces)
    return orjson.dumps({name: content for name, _, content in pairs if name}).decode()
