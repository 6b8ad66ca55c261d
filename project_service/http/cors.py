"""Cross-origin rules (the Fetch standard's CORS protocol)."""

from __future__ import annotations

from project_service.errors import Headers
from project_service.http.headers import HeaderView

EXPOSED = (
    "Content-Range, Content-Location, Location, Content-Disposition, ETag, Preference-Applied, "
    "Retry-After, X-Request-Id"
)
MAX_AGE_SECONDS = 86400


_ANY = (("Access-Control-Allow-Origin", "*"), ("Access-Control-Expose-Headers", EXPOSED))


def origin_headers(allowed: tuple[str, ...], headers: HeaderView, own: Headers) -> Headers:
    """What a response to a cross-origin request carries; nothing for an origin that is not allowed.

    ``own`` are the response's other headers: where every origin is allowed and a cache may keep it for everybody, it
    carries them in any case (the Fetch standard, CORS protocol and HTTP caches), so that a page gets one it can read.
    """
    origin = headers.text(b"origin")
    if "*" in allowed:
        return () if origin is None and not _kept_for_all(own) else _ANY
    # The answer depends on the origin, so a cache has to keep them apart even where none was sent.
    if origin is None or origin not in allowed:
        return (("Vary", "Origin"),)
    return (
        ("Access-Control-Allow-Origin", origin),
        # Only for origins that are named: a page that may call with credentials is one that is trusted.
        ("Access-Control-Allow-Credentials", "true"),
        ("Access-Control-Expose-Headers", EXPOSED),
        ("Vary", "Origin"),
    )


def unread_headers(allowed: tuple[str, ...]) -> Headers:
    """The same where nobody knows what origin asked, if any."""
    return _ANY if "*" in allowed else ()


def _kept_for_all(headers: Headers) -> bool:
    for name, value in headers:
        # SQL may write the header in its own way; the length is looked at first because every response comes by.
        if len(name) == 13 and name.lower() == "cache-control" and "public" in value.lower():
            return True
    return False


def is_preflight(method: str, headers: HeaderView) -> bool:
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


# What PostgREST's pages may read, on a line of its own beside what all of ours may.
TABLE_EXPOSED = (
    "Access-Control-Expose-Headers",
    "Content-Encoding, Content-Location, Content-Range, Content-Type, Date, Location, Server, "
    "Transfer-Encoding, Range-Unit",
)
# What PostgREST answers, whatever the path: clients of its API may rely on it.
TABLE_METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE", "OPTIONS", "HEAD")
_TABLE_HEADERS = ("Accept", "Accept-Language", "Content-Language")


def table_preflight_headers(headers: HeaderView) -> Headers:
    """The answer to a preflight below a table API's path, in PostgREST's form."""
    asked = [name.strip() for name in (headers.text(b"access-control-request-headers") or "").split(",")]
    allowed = ["Authorization", *(name for name in asked if name), *_TABLE_HEADERS]
    return (
        ("Access-Control-Allow-Methods", ", ".join(TABLE_METHODS)),
        ("Access-Control-Allow-Headers", ", ".join(allowed)),
        ("Access-Control-Max-Age", str(MAX_AGE_SECONDS)),
    )


def preflight_headers(methods: tuple[str, ...], headers: HeaderView) -> Headers:
    """The answer to a preflight: the path's methods and the headers that were asked for."""
    asked = headers.text(b"access-control-request-headers")
    found: list[tuple[str, str]] = [("Access-Control-Allow-Methods", ", ".join(methods))]
    if asked:
        found.append(("Access-Control-Allow-Headers", asked))
    found.append(("Access-Control-Max-Age", str(MAX_AGE_SECONDS)))
    return tuple(found)
