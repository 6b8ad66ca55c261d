"""The ``IAgent`` beneath treq: signs what is really sent, and lets bytes pass as they are.

An object's bytes must arrive as they are stored, so ``Content-Encoding`` is hidden from treq, which would decode.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from attrs import define
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.ssl import Certificate, trustRootFromCertificates
from twisted.web.client import URI, BrowserLikePolicyForHTTPS
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer, IResponse
from zope.interface import implementer

from project_service.storage.s3.pool import ConnectionPool
from project_service.storage.s3.sign import Address, Signer
from project_service.storage.s3.through_treq import ReadyHeaders

PAYLOAD_DIGEST = "x-amz-content-sha256"
_NOT_SHOWN = b"content-encoding"
# What is hidden stands here.
CODING = "x-hidden-content-encoding"
# Not signed. Some of what stands before a store lets nobody in who does not say what he is.
USER_AGENT = "project-service"


@implementer(IAgent)
@define(eq=False)
class SigningAgent:
    """Signs each request over the URL that goes out and the payload digest given in its headers.

    It knows one store: a URL that leads elsewhere is refused with ``ValueError``, and so is a header that would break
    the request in two. ``signer`` may be replaced: each try of a request is signed by the one that is there then.
    """

    pool: ConnectionPool
    address: Address
    signer: Signer
    now: Callable[[], datetime]

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,
    ) -> Deferred[IResponse]:
        url = uri.decode("ascii")
        assert isinstance(headers, ReadyHeaders)
        plain = {"host": self.address.host, "user-agent": USER_AGENT, **headers.plain}
        digest = plain.pop(PAYLOAD_DIGEST)
        signed = self.signer.headers(method.decode(), url, plain, digest, self.now())
        if bodyProducer is not None:
            signed["Content-Length"] = str(bodyProducer.length)
        head = _head(method.decode(), self.address.target(url), signed)
        return self.pool.request(method, head, bodyProducer).addCallback(_undecorated)


def _head(method: str, target: str, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in headers.items()]]
    head = "\r\n".join(lines)
    if head.count("\n") != len(headers) or head.count("\r") != len(headers) or target.split() != [target]:
        raise ValueError("a header or the URL is none")
    return head.encode("latin-1") + b"\r\n\r\n"


def _undecorated(response: IResponse) -> IResponse:
    coding = response.headers.getRawHeaders(_NOT_SHOWN)
    if coding is not None:
        response.headers.removeHeader(_NOT_SHOWN)
        response.headers.setRawHeaders(CODING, coding)
    return response


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
