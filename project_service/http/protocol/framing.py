"""The rules for a request head (RFC 9112) beyond those that llhttp enforces, and our limits. Pure."""

from __future__ import annotations

import re

from attrs import frozen

from project_service import errors
from project_service.errors import ApiError
from project_service.http.forwarding import is_host
from project_service.http.headers import HeaderView

# Room for a filter with a thousand UUIDs (``in.(…)``), which PostgREST takes as well.
MAX_TARGET_BYTES = 50 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = MAX_TARGET_BYTES + 32
MAX_HEADERS = 200
# The methods that routes may have. llhttp knows more, and any others it refuses itself.
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


@frozen
class RequestHead:
    """``length`` is the Content-Length, None for a chunked body, 0 without a body. ``target`` is in origin form.

    ``keep_alive``: whether the connection may stay open (RFC 9112 section 9.3). With HTTP/1.0 it is always closed.
    """

    method: str
    target: bytes
    version: bytes
    headers: HeaderView
    length: int | None
    keep_alive: bool


def request_head(method: str, target: bytes, version: bytes, headers: HeaderView) -> RequestHead:
    """The head whose request line and headers have been parsed, ``target`` as it was sent.

    Raises ``ApiError`` for one that is not acceptable as a whole.
    """
    path = origin_form(target)
    if path is None:
        raise no_path()
    fault = _fault_of(version, headers)
    if fault is not None:
        raise fault
    keep_alive = version == b"HTTP/1.1" and not headers.derived(_asks_to_close)
    if path is not target:  # which is a whole URL
        headers = _addressed(headers, target)
    return RequestHead(method, path, version, headers, _content_length(headers), keep_alive)


def _fault_of(version: bytes, headers: HeaderView) -> ApiError | None:
    """What is wrong with the head, None for nothing: RFC 9112 section 3.2 (exactly one valid Host) and section 6.1
    (no transfer coding before HTTP/1.1)."""
    fault = headers.derived(_fault_of_any_version)
    if fault is not None:
        return fault
    if version == b"HTTP/1.1":
        return None if b"host" in headers else _host_missing()
    return _coding_unknown() if b"transfer-encoding" in headers else None


def _fault_of_any_version(headers: HeaderView) -> ApiError | None:
    hosts = headers.all(b"host")
    if len(hosts) > 1:
        return _host_missing()
    if hosts and hosts[0] and not is_host(hosts[0].decode("latin-1")):
        return errors.bad_request("bad_request", "The Host header is not a host.")
    codings = headers.all(b"transfer-encoding")
    return _coding_unknown() if codings and [c.lower() for c in codings] != [b"chunked"] else None


def _host_missing() -> ApiError:
    return errors.bad_request("bad_request", "The request needs exactly one Host header.")


def _coding_unknown() -> ApiError:
    return errors.bad_request("bad_request", "The transfer coding is not supported.")


# RFC 3986: visible ASCII; a fragment is never sent.
_TARGET = re.compile(rb"[!\"$-~]+\Z")
_WHOLE_URL = re.compile(rb"https?://([^/?]*)([^?]*)(.*)\Z", re.IGNORECASE)


def origin_form(target: bytes) -> bytes | None:
    """``target`` as path and query, also where it is a whole URL; ``*`` stays. None where it is no request target.

    RFC 9112 section 3.2.
    """
    if not _TARGET.match(target):
        return None
    if target.startswith(b"/") or target == b"*":
        return target
    url = _WHOLE_URL.match(target)
    if url is None or not is_host(url[1].decode("ascii")):
        return None
    return (url[2] or b"/") + url[3]


def _addressed(headers: HeaderView, url: bytes) -> HeaderView:
    """``headers`` with the host of ``url`` for ``Host`` (RFC 9112 section 3.2.2)."""
    others = [(name, value) for name, value in headers if name != b"host"]
    return HeaderView([(b"host", _WHOLE_URL.sub(rb"\1", url)), *others])


def header_too_long() -> ApiError:
    return ApiError(431, "headers_too_large", f"A request header is longer than {MAX_LINE_BYTES} bytes.")


def too_many_headers() -> ApiError:
    return ApiError(431, "headers_too_large", f"The request has more than {MAX_HEADERS} headers.")


def no_path() -> ApiError:
    """400 for a target for which ``origin_form`` returns None."""
    why = "The request target is not a path in ASCII; other characters have to be percent-encoded."
    return errors.bad_request("bad_request", why)


def _asks_to_close(headers: HeaderView) -> bool:
    tokens = b",".join(headers.all(b"connection")).lower().split(b",")
    return b"close" in [token.strip() for token in tokens]


def _content_length(headers: HeaderView) -> int | None:
    declared = headers.get(b"content-length")
    if declared is not None:
        # llhttp refuses what is no number or too large, but not zeros before it. ``int`` takes only 4300 digits.
        return int(declared.strip().lstrip(b"0") or b"0")
    return None if b"transfer-encoding" in headers else 0
