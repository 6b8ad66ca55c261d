"""A request as the route hands it to a database's table API: decoded, not yet understood."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import orjson
from attrs import define, field, frozen

from project_service.http.inbound import HasPlace, NoPlace

Pairs = tuple[tuple[str, str], ...]

# The headers that decide how a request is understood. The others only SQL gets to see.
_DECISIVE = frozenset(("accept", "prefer", "range", "content-type", "accept-profile", "content-profile"))
# Project keys are for this service, not for SQL to read.
_SECRET = frozenset(("x-service-key", "apikey", "cookie"))


@define(eq=False)
class Sent:
    """A request's headers and what is derived from them, made once for all requests with the same headers.

    ``decisive`` are those that decide how the request is understood. ``key`` is the project key and ``bearer`` the
    bearer token, which is None where there is none. ``as_json`` and ``cookies`` are JSON objects for SQL.
    ``identity`` and ``preambles`` are what ``access.identity`` and ``settings`` have last made of them.
    """

    pairs: tuple[tuple[str, str], ...] = field(repr=False)
    decisive: tuple[tuple[str, str], ...]
    key: str | None = field(repr=False)
    bearer: str | None = field(repr=False)
    as_json: str = field(repr=False)
    cookies: str = field(repr=False)
    identity: Any = field(default=None, init=False, repr=False)
    preambles: dict[Hashable, Any] = field(factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], key: str | None = None) -> Sent:
        """Names are lower-case."""
        found = tuple(pairs)
        token = _bearer(value for name, value in found if name == "authorization")
        return cls(
            found,
            tuple(header for header in found if header[0] in _DECISIVE),
            key,
            # Clients of this ecosystem repeat the project key as the bearer token when nobody is signed in.
            token if token != key else None,
            _headers(found),
            _cookies(found),
        )


@frozen
class Incoming:
    """``segments`` and ``pairs`` are decoded. ``resource`` is the path of the segments as PostgREST would see it, and
    ``path`` the resource's public path, for Location headers; ``place`` is that of ``Inbound``."""

    method: str
    segments: tuple[str, ...]
    resource: str = "/"
    pairs: tuple[tuple[str, str], ...] = ()
    headers: Sent = field(factory=lambda: Sent.of(()))
    body: bytes = field(default=b"", repr=False)
    path: str = "/"
    base_url: str = ""
    is_service: bool = False
    place: HasPlace = field(factory=NoPlace, eq=False, repr=False)


def _bearer(values: Iterable[str]) -> str | None:
    """The token of the first bearer header; other schemes are ignored."""
    for value in values:
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
    return None


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
