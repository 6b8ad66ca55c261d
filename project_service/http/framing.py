"""What a request head must be (RFC 9112), apart from any parser. Pure."""

from __future__ import annotations

from project_service import errors
from project_service.errors import ApiError
from project_service.http.headers import HeaderView
from project_service.http.origin import is_host


def head_fault(version: bytes, headers: HeaderView) -> ApiError | None:
    """RFC 9112 section 3.2 (exactly one good Host) and section 6.1 (no transfer coding before HTTP/1.1)."""
    hosts = headers.all(b"host")
    if len(hosts) > 1 or (not hosts and version == b"HTTP/1.1"):
        return errors.bad_request("bad_request", "The request needs exactly one Host header.")
    if hosts and hosts[0] and not is_host(hosts[0].decode("latin-1")):
        return errors.bad_request("bad_request", "The Host header is not a host.")
    codings = headers.all(b"transfer-encoding")
    if codings and (version == b"HTTP/1.0" or [c.lower() for c in codings] != [b"chunked"]):
        return errors.bad_request("bad_request", "The transfer coding is not supported.")
    return None


def origin_form(target: bytes) -> bytes | None:
    """RFC 9112 section 3.2: a path as it is, the path of a whole URL, ``*`` for OPTIONS; None for anything else."""
    if target.startswith(b"/") or target == b"*":
        return target
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.lower() in (b"http", b"https"):
        slash = rest.find(b"/")
        return rest[slash:] if slash >= 0 else b"/"
    return None


def persistent(version: bytes, headers: HeaderView) -> bool:
    """RFC 9112 section 9.3; an HTTP/1.0 connection is always closed."""
    tokens = b",".join(headers.all(b"connection")).lower().split(b",")
    return version == b"HTTP/1.1" and b"close" not in [token.strip() for token in tokens]
