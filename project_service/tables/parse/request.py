"""Parses a request (method, path, query, headers, body) into one value. Knows nothing of the web framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from attrs import frozen

from project_service.tables import errors
from project_service.tables.parse.media import MediaType, parse_accept
from project_service.tables.parse.payload import Payload, has_several_rows, parse_payload
from project_service.tables.parse.preferences import Preferences, parse_preferences
from project_service.tables.parse.query import refuse_no_numbers
from project_service.tables.parse.ranges import intersect, parse_range
from project_service.tables.syntax import Query, Range

READING = ("GET", "HEAD")
WRITING = ("POST", "PATCH", "PUT", "DELETE")
Kind = Literal["root", "relation", "routine"]


@frozen
class Head:
    """What the path and the headers say, before the query and the body are read."""

    method: str
    kind: Kind
    name: str
    schema: str
    profiled: bool
    accept: tuple[MediaType, ...]
    preferences: Preferences
    range: Range
    content_type: str | None


@frozen
class Request:
    """A parsed request. ``range`` is that of query and Range header together; ``pairs`` is the query as sent."""

    head: Head
    query: Query
    range: Range
    payload: Payload | None = None
    pairs: tuple[tuple[str, str], ...] = ()


def parse_head(
    method: str, segments: Sequence[str], headers: Iterable[tuple[str, str]], schemas: tuple[str, ...]
) -> Head:
    """``segments`` are the decoded parts of the path below the base path; header names are lower-case.

    Raises PGRST101, 106, 117, 122, 125 and 103.
    """
    pairs = list(headers)
    first = dict(reversed(pairs))
    kind, name = _target(segments)
    _check_method(method, kind)
    schema, profiled = _schema(method, first, schemas)
    accept = ", ".join(value for key, value in pairs if key == "accept")
    return Head(
        method,
        kind,
        name,
        schema,
        profiled,
        parse_accept(accept),
        parse_preferences(value for key, value in pairs if key == "prefer"),
        parse_range(first.get("range")) if method == "GET" else Range(),
        first.get("content-type"),
    )


def range_of(head: Head, query: Query, pairs: Sequence[tuple[str, str]]) -> Range:
    """The rows that query and Range header together ask for, ``query`` parsed of ``pairs``. Raises PGRST100, 103 and
    114."""
    asked = next((found for path, found in query.ranges if path == ()), Range())
    if head.method == "PUT" and not asked.whole:
        raise errors.put_with_range()
    if head.method in ("PATCH", "DELETE"):
        refuse_no_numbers(pairs)
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


def _target(segments: Sequence[str]) -> tuple[Kind, str]:
    match list(segments):
        case [] | [""]:
            return "root", ""
        case ["rpc", name] if name:
            return "routine", name
        case [name]:
            return "relation", name
    raise errors.invalid_path()


_ALLOWED: dict[Kind, tuple[str, ...]] = {
    "root": ("OPTIONS", "GET", "HEAD"),
    "routine": ("OPTIONS", "GET", "HEAD", "POST"),
    "relation": ("OPTIONS", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"),
}


def _check_method(method: str, kind: Kind) -> None:
    if method in _ALLOWED[kind]:
        return
    if kind == "routine" and method in _ALLOWED["relation"]:
        raise errors.routine_method(method, _ALLOWED[kind])
    raise errors.method_not_allowed(method, _ALLOWED[kind])


def _schema(method: str, headers: Mapping[str, str], schemas: tuple[str, ...]) -> tuple[str, bool]:
    """The schema asked for, and whether the reply has to name it (``profiled``): if it was named, or others exist."""
    asked = headers.get("content-profile" if method in WRITING else "accept-profile")
    if asked is None:
        return schemas[0], len(schemas) > 1
    if asked not in schemas:
        raise errors.unacceptable_schema(asked, schemas)
    return asked, True
