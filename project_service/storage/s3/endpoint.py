"""Where the store listens, and whose certificates it must have."""

from __future__ import annotations

from typing import Any

from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.ssl import Certificate, trustRootFromCertificates
from twisted.web.client import URI, BrowserLikePolicyForHTTPS

from project_service.storage.s3.sign import Address


def store_endpoint(
    reactor: Any, address: Address, connect_timeout: float, ca_pem: bytes | None = None
) -> IStreamClientEndpoint:
    """Where the store listens.

    https verifies certificate and name with pyOpenSSL, by ``ca_pem`` alone where given.
    """
    uri = URI.fromBytes(address.origin.encode("ascii"))
    endpoint: Any = HostnameEndpoint(reactor, uri.host, uri.port, connect_timeout)
    if uri.scheme == b"https":
        policy = BrowserLikePolicyForHTTPS(_trust_root(ca_pem) if ca_pem else None)
        endpoint = wrapClientTLS(policy.creatorForNetloc(uri.host, uri.port), endpoint)
    found: IStreamClientEndpoint = endpoint
    return found


def _trust_root(ca_pem: bytes) -> Any:
    end = b"-----END CERTIFICATE-----"
    blocks = [block + end for block in ca_pem.split(end)[:-1]]
    return trustRootFromCertificates([Certificate.loadPEM(block) for block in blocks])
