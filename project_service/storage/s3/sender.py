"""Requests to the store as they go out: signed over exactly what is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from attrs import define
from twisted.internet.defer import Deferred
from twisted.web.iweb import IBodyProducer

from project_service.storage.s3.response import StoreResponse
from project_service.storage.s3.sign import Address, Signer
from project_service.storage.s3.treq_client import TreqClient

# Sent but not signed. Some firewalls in front of stores refuse clients without a User-Agent.
USER_AGENT = "project-service"


@define(eq=False)
class Sender:
    """Signs requests to one store and sends them.

    Raises ``ValueError`` for a header that would break the request's framing. ``signer`` may be replaced at any time;
    each attempt of a request is signed anew.
    """

    client: TreqClient
    address: Address
    signer: Signer
    now: Callable[[], datetime]

    def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        digest: str,
        body: IBodyProducer | None,
    ) -> Deferred[StoreResponse]:
        """Send a request about the object ``key``, or about the store bucket for ""; fires with the answer once its
        head is there. Redirects are not followed.

        ``headers`` have names in lower case; ``digest`` is the SHA-256 of the body.
        """
        url = self.address.url(key, query)
        plain = {"host": self.address.host, "user-agent": USER_AGENT, **headers}
        signed = self.signer.headers(method, url, plain, digest, self.now())
        if body is not None:
            signed["Content-Length"] = str(body.length)
        return self.client.send(method, _head(method, self.address.target(url), signed), body)


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    head = "\r\n".join((f"{method} {target} HTTP/1.1", *map(": ".join, headers.items())))
    if head.count("\n") != len(headers) or head.count("\r") != len(headers) or target.split() != [target]:
        raise ValueError("a header or the URL is none")
    return head.encode("latin-1") + b"\r\n\r\n"
