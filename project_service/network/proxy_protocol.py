"""The PROXY protocol (HAProxy and others) in front of a port: Twisted's, with mends to its parser of version 1.

Source: HAProxy, "The PROXY protocol", section 2.1.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.endpoints import _WrapperServerEndpoint
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.protocols.haproxy._exceptions import InvalidProxyHeader
from twisted.protocols.haproxy._v1parser import V1Parser
from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory
from zope.interface import implementer

# With fewer bytes in the first read Twisted closes the connection, since it cannot tell what the client speaks.
_LEAST_BYTES = 8
# A complete header of version 1: the addresses may be left out where the client has none that is IP's. Twisted's
# parser insists on something after the last word.
_UNKNOWN = b"PROXY UNKNOWN"


def proxied(endpoint: Any) -> Any:
    """``endpoint``, on which every connection has to begin with a PROXY header; others are closed.

    ``getPeer`` of a transport is then the client that the header names, or the proxy itself where it names none.
    """
    return _WrapperServerEndpoint(endpoint, _Factory)


class _Version1(V1Parser):
    @classmethod
    def parse(cls, line: bytes) -> Any:
        """What the header says; raises ``InvalidProxyHeader`` for what is not one, also for a bad address or port."""
        try:
            found: Any = super().parse(line + b" " if line == _UNKNOWN else line)
            for told in (found.source, found.destination):
                if isinstance(told, IPv4Address | IPv6Address):
                    ipaddress.ip_address(told.host)
        except ValueError:
            # Twisted lets a ValueError out to the reactor for bad numbers or bytes, and takes any text as an address.
            raise InvalidProxyHeader from None
        return found


@implementer(IHalfCloseableProtocol)
class _Wrapper(HAProxyProtocolWrapper):
    def readConnectionLost(self) -> None:
        inner = IHalfCloseableProtocol(self.wrappedProtocol, None)
        if inner is None or self._proxyInfo is None:
            self.loseConnection()
        else:
            inner.readConnectionLost()

    def writeConnectionLost(self) -> None:
        """Nothing depends on it."""

    def dataReceived(self, data: bytes) -> None:
        first = self._parser is None and self._proxyInfo is None
        if first and len(data) >= _LEAST_BYTES and data.startswith(V1Parser.PROXYSTR):
            self._parser = _Version1()
        super().dataReceived(data)


class _Factory(HAProxyWrappingFactory):
    protocol: type[HAProxyProtocolWrapper] = _Wrapper
