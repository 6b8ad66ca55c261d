"""Which addresses belong to the internet, and which URLs a call to another server may have."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: Address) -> bool:
    """Whether ``address`` is one of the internet's, also as far as it stands for an IPv4 address: neither private nor
    shared, loopback, link-local, multicast, reserved or unspecified."""
    inner = _inside(address)
    if inner is not None:
        return is_public(inner)
    if address.version == 6 and address not in _UNICAST:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


# What has been given out of IPv6 (RFC 4291 section 2.4).
_UNICAST = ipaddress.ip_network("2000::/3")
# RFC 6052 section 2.1: the IPv4 address is in the last four bytes.
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


def _inside(address: Address) -> Address | None:
    """The IPv4 address that an IPv6 address stands for on some networks: mapped (RFC 4291), 6to4 (RFC 3056), Teredo
    (RFC 4380) or translated (RFC 6052)."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (None if teredo is None else teredo[1])


def is_loopback(address: Address) -> bool:
    """Whether ``address`` is one of this host."""
    inner = _inside(address)
    return address.is_loopback if inner is None else inner.is_loopback


def is_nowhere(address: Address) -> bool:
    """Whether ``address`` is not that of one host: multicast, or unspecified."""
    inner = _inside(address) or address
    return inner.is_multicast or inner.is_unspecified or address.is_unspecified


def why_not_url(url: str, allow_private_hosts: bool) -> str | None:
    """Why ``url`` can never be called, whatever its host resolves to; None if it may be."""
    try:
        parsed = urlsplit(url)
        usable = bool(parsed.hostname) and parsed.port != 0
    except ValueError:
        return "is not an address"
    fault = None
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        fault = "is not an address"
    elif parsed.username is not None or parsed.password is not None:
        fault = "must not hold a user name or password"
    elif parsed.scheme not in ("https", "http"):
        fault = "must begin with https://"
    elif parsed.scheme == "http" and not allow_private_hosts:
        fault = "must begin with https:// (http only to this host, and with auth.allow_private_hosts)"
    return fault
