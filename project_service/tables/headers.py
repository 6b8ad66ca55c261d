"""What every response has in its head, and what SQL may say there."""

from __future__ import annotations

import re
from collections.abc import Iterable

from project_service.errors import Headers
from project_service.http import fields, wire

# Also on refusals, which hang on these as much (PostgREST's reference, "Vary Header").
VARY = ("Vary", "Accept, Prefer, Range")

_NAME = re.compile(rf"[{fields.TCHAR}]+")
_VALUE = re.compile(rf"[^{fields.CONTROL}]*")


def is_header(name: str, value: object) -> bool:
    """Nothing that would start another header line or end the head."""
    return isinstance(value, str) and bool(_NAME.fullmatch(name)) and bool(_VALUE.fullmatch(value))


def settable(headers: Iterable[tuple[str, str]]) -> Headers:
    """Those that are not the service's alone to set; where a body ends is never SQL's to say."""
    return tuple((name, as_utf8(value)) for name, value in headers if name.lower() not in wire.OURS)


def as_utf8(value: str) -> str:
    """A header's text with a character for each byte of its UTF-8, which is how the edge writes it."""
    return value if value.isascii() else value.encode().decode("latin-1")


def read_utf8(value: bytes) -> str:
    """A header as it came. RFC 9110 section 5.5 leaves bytes above 127 to whoever reads them: where they are no UTF-8
    each is a character."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def is_status(value: object) -> bool:
    """A final response's; JSON's ``true`` is an ``int`` to Python."""
    return isinstance(value, int) and not isinstance(value, bool) and 200 <= value <= 599
