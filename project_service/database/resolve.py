"""Resolves host names without blocking, to IPv4 and IPv6 addresses."""

from __future__ import annotations

from typing import Any

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IHostResolution, IResolutionReceiver
from zope.interface import implementer


def addresses_of(reactor: Any, host: str) -> Deferred[list[str]]:
    """The addresses of ``host`` in the resolver's order; an empty list where there are none. Never fails."""
    found: Deferred[list[str]] = Deferred()
    if isIPAddress(host) or isIPv6Address(host):
        found.callback([host])
        return found
    try:
        reactor.nameResolver.resolveHostName(_Receiver(found), host, 0)
    except UnicodeError:  # not a DNS name, for instance because a label has more than 63 characters
        found.callback([])
    return found


@implementer(IResolutionReceiver)
class _Receiver:
    def __init__(self, found: Deferred[list[str]]) -> None:
        self._found = found
        self._addresses: list[str] = []

    def resolutionBegan(self, resolutionInProgress: IHostResolution) -> None:
        return

    def addressResolved(self, address: IAddress) -> None:
        host: str = getattr(address, "host", "")
        if host and host not in self._addresses:
            self._addresses.append(host)

    def resolutionComplete(self) -> None:
        if not self._found.called:
            self._found.callback(self._addresses)
