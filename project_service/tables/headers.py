"""Headers of the table API's responses: the one that all have, and the rules for those that SQL sets."""

from __future__ import annotations

import re
from collections.abc import Iterable

from project_service import whole_numbers
from project_service.errors import Headers
from project_service.http.protocol import fields, wire

# On errors too, since they depend on these headers as much (PostgREST's reference, "Vary Header").
VARY = ("Vary", "Accept, Prefer, Range")

_NAME = re.compile(rf"[{fields.TCHAR}]+")
_VALUE = re.compile(rf"[^{fields.CONTROL}]*")


def is_header(name: str, value: object) -> bool:
    """Whether SQL may set this header: nothing in it may start another header line or end the head."""
    return isinstance(value, str) and bool(_NAME.fullmatch(name)) and bool(_VALUE.fullmatch(value))


def settable(headers: Iterable[tuple[str, str]]) -> Headers:
    """``headers`` without those that only the service may set; SQL never decides where a body ends."""
    return tuple((name, as_utf8(value)) for name, value in headers if name.lower() not in wire.OURS)


def as_utf8(value: str) -> str:
    """``value`` encoded as UTF-8, as text with one character for each byte: the edge writes headers as Latin-1."""
    return value if value.isascii() else value.encode().decode("latin-1")


def read_utf8(value: bytes) -> str:
    """A request header as text: UTF-8 if it is valid, else Latin-1. RFC 9110 section 5.5 does not say which."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def status_of(value: object) -> int | None:
    """The status of a final response that a JSON value is, or None."""
    number = whole_numbers.from_json(value)
    return number if number is not None and 200 <= number <= 599 else None
