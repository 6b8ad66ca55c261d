"""The PROXY protocol, in front of whatever else is spoken: Twisted's, with what its reader of version 1 lacks.

Source: HAProxy, "The PROXY protocol", section 2.1.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.endpoints import _WrapperServerEndpoint
from twisted.protocols.haproxy._exceptions import InvalidProxyHeader
from twisted.protocols.haproxy._v1parser import V1Parser
from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory

# The shortest that can be told from anything else, as Twisted has it.
_LEAST_BYTES = 8
# Whole: of a client that has no address of the internet's a proxy says no more.
_UNKNOWN = b"PROXY UNKNOWN"


def proxied(endpoint: Any) -> Any:
    """``endpoint``, on which nobody is listened to who does not begin with a PROXY header; then ``getPeer`` is the
    client that this names, or who is connected where it names none."""
    return _WrapperServerEndpoint(endpoint, _Factory)


class _Version1(V1Parser):
    @classmethod
    def parse(cls, line: bytes) -> Any:
        """Raises ``InvalidProxyHeader`` for whatever is none."""
        try:
            found: Any = super().parse(line + b" " if line == _UNKNOWN else line)
            for told in (found.source, found.destination):
                if isinstance(told, IPv4Address | IPv6Address):
                    ipaddress.ip_address(told.host)
        except ValueError:
            # Twisted would let bad numbers and letters through to the reactor, and any name as an address.
            raise InvalidProxyHeader from None
        return found


class _Wrapper(HAProxyProtocolWrapper):
    def dataReceived(self, data: bytes) -> None:
        first = self._parser is None and self._proxyInfo is None
        if first and len(data) >= _LEAST_BYTES and data.startswith(V1Parser.PROXYSTR):
            self._parser = _Version1()
        super().dataReceived(data)


class _Factory(HAProxyWrappingFactory):
    protocol: type[HAProxyProtocolWrapper] = _Wrapper
