"""Where a request came from: forwarding headers are believed only as far as the proxies that wrote them are
trusted."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from attrs import frozen

from project_service.http.headers import HeaderView

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# A reg-name, IPv4 address or bracketed IPv6 address with an optional port (RFC 3986 section 3.2.2).
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")
# What stands before an IPv4 address within IPv6.
_MAPPED_BITS = 96
# In networks with IPv6 only, IPv4 addresses are translated to these (RFC 6052 section 2.1).
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
# The host for clients that send none, as HTTP/1.0 allows.
LOCAL_HOST = "localhost"


def is_host(text: str) -> bool:
    return _HOST.match(text) is not None


@frozen
class Forwarded:
    """The client's address, and the scheme and host by which it reached the service, through proxies or not."""

    address: str
    scheme: str
    host: str


def _host(headers: HeaderView) -> str | None:
    host = headers.text(b"host")
    return host if host and is_host(host) else None


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """CIDR blocks or single addresses; raises ``ValueError`` for anything else."""
    return tuple(_unmapped(ipaddress.ip_network(text, strict=False)) for text in texts)


def _unmapped(network: Network) -> Network:
    """IPv4 in the form in which a socket for both kinds has it, and the log with it: peers are compared without."""
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


def locate(peer: str | None, secure: bool, headers: HeaderView, trusted: Sequence[Network]) -> Forwarded:
    """The right-most hop of ``X-Forwarded-For`` that is not a trusted proxy, and the scheme it used.

    ``peer`` is None on a Unix socket. The other end is a proxy on this host then, which is trusted as soon as any
    proxy is. Reading stops at an entry that is not an address, and the hop after it (nearer to us) counts as the
    client, so that nobody hides behind a broken header.
    """
    scheme = "https" if secure else "http"
    host = headers.derived(_host) or LOCAL_HOST
    near = peer if peer is not None else "127.0.0.1"
    if not trusted or not (peer is None or _is_trusted(near, trusted)):
        return Forwarded(near, scheme, host)
    said = b",".join(headers.all(b"x-forwarded-proto")).decode("latin-1")
    forwarded = said.rpartition(",")[2].strip().lower()
    if forwarded in ("http", "https"):
        scheme = forwarded
    hops = b",".join(headers.all(b"x-forwarded-for")).decode("latin-1").split(",")
    for hop in reversed([hop.strip() for hop in hops if hop.strip()]):
        address = _address(hop)
        if address is None:
            break
        near = address
        if not _is_trusted(near, trusted):
            break
    return Forwarded(near, scheme, host)


def _address(hop: str) -> str | None:
    """The address of one ``X-Forwarded-For`` entry, which some proxies write with a port."""
    for candidate in (hop, hop.rpartition(":")[0]):
        try:
            return str(ipaddress.ip_address(candidate.strip("[]")))
        except ValueError:
            continue
    return None


def _is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    try:
        parsed = _parsed(address)
    except ValueError:
        return False
    return any(parsed in network for network in trusted)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """``address``, as IPv4 where it is that in the form of IPv6; raises ``ValueError``."""
    found = ipaddress.ip_address(address)
    return getattr(found, "ipv4_mapped", None) or found


def place(address: str) -> str:
    """What counts as one client address: an IPv4 address, or an IPv6 network /64, which a single host usually has for
    itself."""
    try:
        found = _parsed(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found in _TRANSLATED:
        return str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF))
    return str(ipaddress.ip_network((int(found), 64), strict=False))
