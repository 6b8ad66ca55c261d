"""A request before and after it is parsed. Knows nothing of the web framework.

``RawRequest`` is what a route hands to the table API of a database. Its path and headers give a ``Head``, the query a
``Query`` (``query``) and the body a ``Payload`` (``body``); a ``Request`` has them all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal

import orjson
from attrs import define, field, frozen

from project_service.frozen import quick
from project_service.http.admission import Slot
from project_service.tables import errors
from project_service.tables.request.body import Payload, has_several_rows, parse_payload
from project_service.tables.request.headers import MediaType, Preferences, parse_accept, parse_preferences
from project_service.tables.request.query import intersect, parse_range, reject_limits_without_number
from project_service.tables.request.syntax import Query, Range

Pairs = tuple[tuple[str, str], ...]

READING = ("GET", "HEAD")
WRITING = ("POST", "PATCH", "PUT", "DELETE")
Kind = Literal["root", "relation", "routine"]
_ALLOWED: dict[Kind, tuple[str, ...]] = {
    "root": ("OPTIONS", "GET", "HEAD"),
    "routine": ("OPTIONS", "GET", "HEAD", "POST"),
    "relation": ("OPTIONS", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"),
}

# The headers that decide how a request is understood. The others only SQL gets to see.
_DECISIVE = frozenset(("accept", "prefer", "range", "content-type", "accept-profile", "content-profile"))
# Project keys are for this service, not for SQL to read.
_SECRET = frozenset(("x-service-key", "apikey", "cookie"))


@define(eq=False)
class RequestHeaders:
    """A request's headers and what is derived from them, made once for all requests with the same headers.

    ``decisive`` are those that decide how the request is understood. ``key`` is the project key and ``bearer`` the
    bearer token, which is None where there is none. ``as_json`` and ``cookies`` are JSON objects for SQL.
    ``identity`` and ``preambles`` are where ``access`` and ``transaction_settings`` cache what they make of them.
    """

    pairs: Pairs = field(repr=False)
    decisive: Pairs
    key: str | None = field(repr=False)
    bearer: str | None = field(repr=False)
    as_json: str = field(repr=False)
    cookies: str = field(repr=False)
    identity: Any = field(default=None, init=False, repr=False)
    preambles: dict[Hashable, Any] = field(factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, headers: Iterable[tuple[str, str]], key: str | None = None) -> RequestHeaders:
        """Names are lower-case."""
        pairs = tuple(headers)
        token = _bearer(value for name, value in pairs if name == "authorization")
        return cls(
            pairs,
            tuple(pair for pair in pairs if pair[0] in _DECISIVE),
            key,
            # Clients of this ecosystem repeat the project key as the bearer token when nobody is signed in.
            token if token != key else None,
            _headers_as_json(pairs),
            _cookies_as_json(pairs),
        )


def _bearer(values: Iterable[str]) -> str | None:
    """The token of the first bearer header; other schemes are ignored."""
    for value in values:
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
    return None


def _headers_as_json(pairs: Pairs) -> str:
    joined: dict[str, str] = {}
    for name, value in pairs:
        if name not in _SECRET:
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return orjson.dumps(joined).decode()


def _cookies_as_json(pairs: Pairs) -> str:
    pieces = (piece for name, value in pairs if name == "cookie" for piece in value.split(";"))
    cookies = (piece.strip().partition("=") for piece in pieces)
    return orjson.dumps({name: content for name, _, content in cookies if name}).decode()


@quick
class RawRequest:
    """``segments`` and ``pairs`` are decoded. ``resource`` is the path of the segments as PostgREST would see it, and
    ``path`` the resource's public path, for Location headers; ``slot`` is that of ``http.request.Request``. With a
    ``long_query`` parsing and planning would keep others waiting. ``client`` is the address that the request came
    from."""

    method: str
    segments: tuple[str, ...]
    resource: str = "/"
    pairs: Pairs = ()
    headers: RequestHeaders = field(factory=lambda: RequestHeaders.of(()))
    body: bytes = field(default=b"", repr=False)
    path: str = "/"
    base_url: str = ""
    is_service: bool = False
    slot: Slot = field(factory=Slot, eq=False, repr=False)
    long_query: bool = False
    client: str = ""


@frozen
class Head:
    """What the path and the headers ask for, before the query and the body are read. ``profiled`` says that the reply
    has to name the schema."""

    method: str
    kind: Kind
    name: str
    schema: str
    profiled: bool
    accept: tuple[MediaType, ...]
    preferences: Preferences
    range: Range
    content_type: str | None


@quick
class Request:
    """A parsed request. ``range`` is that of query and Range header together; ``pairs`` is the query as sent."""

    head: Head
    query: Query
    range: Range
    payload: Payload | None = None
    pairs: Pairs = ()


def parse_head(
    method: str, segments: Sequence[str], headers: Iterable[tuple[str, str]], schemas: tuple[str, ...]
) -> Head:
    """What a request wants, by its method, path and headers. ``segments`` are the decoded segments of the path below
    the base path; header names are lower-case.

    Raises PGRST101, 106, 117, 122, 125 and 103.
    """
    pairs = list(headers)
    first = dict(reversed(pairs))
    kind, name = _resource(segments)
    _check_method(method, kind)
    schema, profiled = _schema(method, first, schemas)
    return Head(
        method,
        kind,
        name,
        schema,
        profiled,
        parse_accept(", ".join(value for key, value in pairs if key == "accept")),
        parse_preferences(value for key, value in pairs if key == "prefer"),
        parse_range(first.get("range")) if method == "GET" else Range(),
        first.get("content-type"),
    )


def _resource(segments: Sequence[str]) -> tuple[Kind, str]:
    match list(segments):
        case [] | [""]:
            return "root", ""
        case ["rpc", name] if name:
            return "routine", name
        case [name]:
            return "relation", name
    raise errors.invalid_path()


def _check_method(method: str, kind: Kind) -> None:
    if method in _ALLOWED[kind]:
        return
    if kind == "routine" and method in _ALLOWED["relation"]:
        raise errors.routine_method(method, _ALLOWED[kind])
    raise errors.unsupported_method(method, _ALLOWED[kind])


def _schema(method: str, headers: Mapping[str, str], schemas: tuple[str, ...]) -> tuple[str, bool]:
    """The schema asked for, and whether the reply has to name it: if it was named, or others exist."""
    asked = headers.get("content-profile" if method in WRITING else "accept-profile")
    if asked is None:
        return schemas[0], len(schemas) > 1
    if asked not in schemas:
        raise errors.unacceptable_schema(asked, schemas)
    return asked, True


def range_of(head: Head, query: Query, pairs: Sequence[tuple[str, str]]) -> Range:
    """The rows that query and Range header together ask for; ``query`` was parsed from ``pairs``. Raises PGRST100,
    103 and 114."""
    asked = next((range_ for path, range_ in query.ranges if path == ()), Range())
    if head.method == "PUT" and not asked.whole:
        raise errors.put_with_range()
    if head.method in ("PATCH", "DELETE"):
        reject_limits_without_number(pairs)
    return intersect(asked, head.range)


def payload_of(head: Head, query: Query, body: bytes) -> Payload | None:
    """The body, for a method that has one. Raises PGRST102."""
    if head.method not in ("POST", "PATCH", "PUT"):
        return None
    # PUT replaces a whole row, so it has no ``columns``.
    columns = query.columns if head.method != "PUT" else None
    payload = parse_payload(head.content_type, body, columns, head.kind == "routine")
    if head.method == "PATCH" and has_several_rows(payload):
        raise errors.several_objects()
    return payload
