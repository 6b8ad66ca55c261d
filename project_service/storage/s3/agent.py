"""The ``IAgent`` beneath treq: signs what is really sent, and lets bytes pass as they are.

treq asks for gzip, decodes it and keeps cookies. An object's bytes must arrive as they are stored, so the
agent takes ``Accept-Encoding`` off the request and hides ``Content-Encoding`` and cookies from the layers above.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from attrs import field, frozen
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.ssl import Certificate, trustRootFromCertificates
from twisted.web.client import URI, Agent, BrowserLikePolicyForHTTPS, HTTPConnectionPool
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from project_service.storage.s3.sign import EMPTY_SHA256, Signer

# Four of Twisted's usual reads.
READ_BYTES = 256 * 1024
PAYLOAD_DIGEST = b"x-amz-content-sha256"
_NOT_SENT = (b"accept-encoding", b"cookie")
_NOT_SHOWN = (b"content-encoding", b"set-cookie")


@implementer(IAgent)
@frozen(eq=False)
class SigningAgent:
    """Signs each request over the URL that goes out and the payload digest given in its headers."""

    agent: IAgent
    signer: Signer
    now: Callable[[], datetime]

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,
    ) -> Deferred[IResponse]:
        plain = {
            name.decode("ascii").lower(): b",".join(values).decode("latin-1")
            for name, values in (headers or Headers()).getAllRawHeaders()
            if name.lower() not in _NOT_SENT
        }
        digest = plain.pop(PAYLOAD_DIGEST.decode(), EMPTY_SHA256)
        signed = self.signer.headers(method.decode(), uri.decode("ascii"), plain, digest, self.now())
        outgoing = Headers({name: [value] for name, value in signed.items()})
        return self.agent.request(method, uri, outgoing, bodyProducer).addCallback(_undecorated)


def _undecorated(response: IResponse) -> IResponse:
    for name in _NOT_SHOWN:
        response.headers.removeHeader(name)
    return response


def store_agent(
    reactor: Any, pool: HTTPConnectionPool, connect_timeout: float, ca_pem: bytes | None = None
) -> IAgent:
    """A pooled agent. https verifies certificate and name with pyOpenSSL, by ``ca_pem`` alone where given."""
    policy = BrowserLikePolicyForHTTPS(_trust_root(ca_pem) if ca_pem else None)
    agent: IAgent = Agent.usingEndpointFactory(
        reactor, StoreEndpoints(reactor, policy, connect_timeout), pool
    )
    return agent


@implementer(IAgentEndpointFactory)
@frozen(eq=False)
class StoreEndpoints:
    """Connections that read ``READ_BYTES`` at a time: each read costs a trip through the reactor."""

    reactor: Any
    policy: BrowserLikePolicyForHTTPS
    connect_timeout: float
    # One store has one address, and making an endpoint is not cheap: its name is checked letter by letter.
    _made: dict[tuple[bytes, bytes, int], _WideReads] = field(factory=dict, init=False)

    def endpointForURI(self, uri: URI) -> _WideReads:
        place = (uri.scheme, uri.host, uri.port)
        if place not in self._made:
            endpoint: Any = HostnameEndpoint(self.reactor, uri.host, uri.port, self.connect_timeout)
            if uri.scheme == b"https":
                endpoint = wrapClientTLS(self.policy.creatorForNetloc(uri.host, uri.port), endpoint)
            self._made[place] = _WideReads(endpoint)
        return self._made[place]


@implementer(IStreamClientEndpoint)
@frozen(eq=False)
class _WideReads:
    endpoint: Any

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        connected: Deferred[Any] = self.endpoint.connect(protocolFactory)
        return connected.addCallback(_widened)


def _widened(protocol: Any) -> Any:
    transport = protocol.transport
    while getattr(transport, "transport", None) is not None:
        transport = transport.transport
    transport.bufferSize = READ_BYTES
    return protocol


def _trust_root(ca_pem: bytes) -> Any:
    end = b"-----END CERTIFICATE-----"
    blocks = [block + end for block in ca_pem.split(end)[:-1]]
    return trustRootFromCertificates([Certificate.loadPEM(block) for block in blocks])


def connection_pool(reactor: Any, max_connections: int) -> HTTPConnectionPool:
    """Keeps up to ``max_connections`` idle connections; more may be open while they are needed.

    A hard limit would let slow readers, each holding a connection, stop everyone else.
    """
    pool = HTTPConnectionPool(reactor, persistent=True)
    pool.maxPersistentPerHost = max_connections
    pool.cachedConnectionTimeout = 60
    # Its own retry knows nothing of our bodies, deadlines or jitter.
    pool.retryAutomatically = False
    return pool
