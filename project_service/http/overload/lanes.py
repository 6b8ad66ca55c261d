"""Which lane a request belongs to (see ``admission``). It depends on the request line alone."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote_to_bytes

_PASSWORD_PATHS = frozenset({b"/auth/signup", b"/auth/login", b"/auth/reset", b"/auth/user"})


LANE_BYTES = 1024


@lru_cache(maxsize=1024)
def lane_of(method: str, path: bytes) -> str:
    """The lane of a request: ``auth``, ``passwords`` (requests that hash one), ``storage``,
    ``tables:STAGE/DATABASE``, or ``-`` for all others. It depends on the first ``LANE_BYTES`` of the path
    alone, and no more is to be given, since the answers are kept."""
    segments = path.split(b"/", 5)
    if len(segments) < 3:
        return "-"
    first, second = segments[1], segments[2]
    if first == b"admin" and second == b"users":
        return "passwords" if method in ("POST", "PATCH") else "auth"
    if first == b"auth":
        return "passwords" if path in _PASSWORD_PATHS and method in ("POST", "PATCH", "DELETE") else "auth"
    if first == b"storage" or (first == b"admin" and second == b"buckets"):
        return "storage"
    if second == b"db" and len(segments) > 4 and segments[4] == b"rest":
        return f"tables:{_plain(first)}/{_plain(segments[3])}"
    return "-"


def _plain(segment: bytes) -> str:
    return unquote_to_bytes(segment).decode("utf-8", "replace")
