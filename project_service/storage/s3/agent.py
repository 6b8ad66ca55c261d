"""Requests through treq to connections of our own, with heads that go out as they were signed.

::

    Sender -> TreqClient.send -> treq's client -> _PoolAgent -> ConnectionPool
                              <- _BareResponse <-            <- StoreResponse

By default treq parses URLs and writes them again, copies headers and adds to them, keeps cookies, follows redirects
and decodes compressed bodies. Some of that would invalidate the signature, and an object's bytes must arrive as they
are stored. So treq sees a request without URL and headers, and a response without headers. That also leaves 15 of the
70 microseconds that it takes for a request.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen
from hyperlink import EncodedURL
from treq.client import HTTPClient
from treq.cookies import IndexableCookieJar
from twisted.internet.defer import Deferred
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer
from zope.interface import implementer

from project_service.storage.s3.connection import ConnectionPool, StoreResponse


class _NoURL(EncodedURL):
    """Stands for the URL, which the head already has in its final form. treq would parse and write each one again."""

    def __init__(self) -> None:
        super().__init__(scheme="http", host="store")

    def to_uri(self) -> _NoURL:
        return self

    def to_text(self, with_password: bool = False) -> str:
        # Always the same one, which urllib remembers.
        return "http://store/"


_NO_URL = _NoURL()


class _ReadyHead(Headers):
    """A finished request head that treq takes for headers: there seem to be none, and it cannot add any."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self.head = head

    def copy(self) -> _ReadyHead:
        return self

    def addRawHeader(self, name: bytes | str, value: bytes | str) -> None:
        """Ignored."""


class _NoCookies(IndexableCookieJar):
    """A cookie jar that always stays empty."""

    def add_cookie_header(self, request: Any) -> None:
        """Nothing to add."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        """Nothing is kept."""


@implementer(IAgent)
@frozen(eq=False)
class _PoolAgent:
    """The agent beneath treq, which hands requests to our own pool."""

    pool: ConnectionPool

    def request(
        self, method: bytes, uri: bytes, headers: Any = None, bodyProducer: IBodyProducer | None = None
    ) -> Deferred[Any]:
        return self.pool.request(method, headers.head, bodyProducer).addCallback(_BareResponse)


class _BareResponse:
    """What treq sees of a response: no headers, so that it decodes nothing."""

    __slots__ = ("response",)
    headers = Headers()

    def __init__(self, response: StoreResponse) -> None:
        self.response = response


@frozen(eq=False)
class TreqClient:
    """``send`` sends a request by treq's client."""

    pool: ConnectionPool
    clock: Any
    _cookies: _NoCookies = field(factory=_NoCookies, init=False)
    _client: HTTPClient = field(init=False)

    @_client.default
    def _made(self) -> HTTPClient:
        return HTTPClient(_PoolAgent(self.pool), self._cookies)

    def send(self, method: str, head: bytes, body: IBodyProducer | None) -> Deferred[StoreResponse]:
        """Send ``head``, a whole request but for its body; fires with the response once its head is there."""
        sent: Deferred[Any] = self._client.request(
            method,
            _NO_URL,
            headers=_ReadyHead(head),
            data=body,
            cookies=self._cookies,
            allow_redirects=False,
            unbuffered=True,
            reactor=self.clock,
        )
        # Unwrapped, since treq's own response reads bodies without back-pressure.
        return sent.addCallback(lambda response: response.original.response)
