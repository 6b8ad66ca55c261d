"""Cross-origin rules (the Fetch standard's CORS protocol)."""

from __future__ import annotations

from functools import lru_cache

from project_service.errors import Headers
from project_service.http.head import HeaderView
from project_service.http.response import Reply

EXPOSED = (
    "Accept-Ranges, Consistency-Token, Content-Range, Content-Location, Location, Content-Disposition, ETag, "
    "Last-Modified, Preference-Applied, Repr-Digest, Retry-After, X-Max-Rows, X-Request-Id"
)
MAX_AGE_SECONDS = 86400
ANY = (("Access-Control-Allow-Origin", "*"), ("Access-Control-Expose-Headers", EXPOSED))


def origin_headers(allowed: tuple[str, ...], headers: HeaderView, own: Headers) -> Headers:
    """The CORS headers of a response; none that allow anything for an origin that is not allowed.

    ``own`` are the response's other headers. If every origin is allowed, a response that a cache may keep for
    everybody gets the headers even if the request named no origin: a page must be able to read it from that cache
    (the Fetch standard, "CORS protocol and HTTP caches").
    """
    origin = headers.text(b"origin")
    if "*" in allowed:
        return ANY if origin is not None else for_caches(own)
    # The response depends on the origin, so caches have to tell origins apart, even if this request named none.
    if origin is None or origin not in allowed:
        return (("Vary", "Origin"),)
    return (
        ("Access-Control-Allow-Origin", origin),
        # Never for "*": a page that may send credentials has to be one that the operator named.
        ("Access-Control-Allow-Credentials", "true"),
        ("Access-Control-Expose-Headers", EXPOSED),
        ("Vary", "Origin"),
    )


@lru_cache(maxsize=64)
def exposing(exposed: str, crossing: Headers) -> Headers:
    """The header line with ``exposed`` beside ``crossing``, the CORS headers of a response that pages may read."""
    readable = any(name == "Access-Control-Expose-Headers" for name, _ in crossing)
    return (("Access-Control-Expose-Headers", exposed),) if readable else ()


def unread_headers(allowed: tuple[str, ...]) -> Headers:
    """The CORS headers of a response to what could not be read as a request, so that its origin is unknown."""
    return ANY if "*" in allowed else ()


def for_caches(own: Headers) -> Headers:
    """The CORS headers of a response to a request without an origin, if every origin is allowed."""
    for name, value in own:
        # Compared without case, because SQL may set the header. The length comes first to keep this cheap: it runs
        # for every response.
        if len(name) == 13 and name.lower() == "cache-control" and "public" in value.lower():
            return ANY
    return ()


def is_preflight(method: str, headers: HeaderView) -> bool:
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


def preflight(methods: tuple[str, ...], headers: HeaderView) -> Reply:
    """The response to a preflight: the path's methods and the headers that were asked for."""
    return Reply(204, allowing(methods, headers.text(b"access-control-request-headers") or ""))


def allowing(methods: tuple[str, ...], headers: str) -> Headers:
    """The headers of a response to a preflight that allows ``methods`` and ``headers``."""
    return (
        ("Access-Control-Allow-Methods", ", ".join(methods)),
        *([("Access-Control-Allow-Headers", headers)] if headers else ()),
        ("Access-Control-Max-Age", str(MAX_AGE_SECONDS)),
    )
