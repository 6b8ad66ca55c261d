"""treq, with nothing left for it to do: a head goes through it as it was signed, and an answer as it came.

::

    Sender -> Through.send -> treq's client -> _Beneath -> ConnectionPool
                           <- _Shown <-                 <- StoreResponse

Left to itself it would parse the URL and write it again, copy headers and add to them, keep cookies, follow redirects
and decode what is packed. A store has no use for that, and an object's bytes must arrive as they are stored.
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

from project_service.storage.s3.pool import ConnectionPool
from project_service.storage.s3.response import StoreResponse


class _ReadyURL(EncodedURL):
    """A URL in its final form."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def to_uri(self) -> _ReadyURL:
        return self

    def to_text(self, with_password: bool = False) -> str:
        return self._text


class _ReadyHead(Headers):
    """To treq, headers: it finds none, its copy is the same, and what it would add is left out."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self.head = head

    def copy(self) -> _ReadyHead:
        return self

    def addRawHeader(self, name: bytes | str, value: bytes | str) -> None:
        """Left out."""


class _NoCookies(IndexableCookieJar):
    """Empty for ever."""

    def add_cookie_header(self, request: Any) -> None:
        """Nothing to add."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        """Nothing is kept."""


@implementer(IAgent)
@frozen(eq=False)
class _Beneath:
    """What treq takes for the network."""

    pool: ConnectionPool

    def request(
        self, method: bytes, uri: bytes, headers: Any = None, bodyProducer: IBodyProducer | None = None
    ) -> Deferred[Any]:
        return self.pool.request(method, headers.head, bodyProducer).addCallback(_Shown)


class _Shown:
    """What treq sees of an answer: no header by which it would decode."""

    __slots__ = ("answer",)
    headers = Headers()

    def __init__(self, answer: StoreResponse) -> None:
        self.answer = answer


@frozen(eq=False)
class Through:
    """``send`` sends a request by treq's client."""

    pool: ConnectionPool
    clock: Any
    _cookies: _NoCookies = field(factory=_NoCookies, init=False)
    _client: HTTPClient = field(init=False)

    @_client.default
    def _made(self) -> HTTPClient:
        return HTTPClient(_Beneath(self.pool), self._cookies)

    def send(self, method: str, url: str, head: bytes, body: IBodyProducer | None) -> Deferred[StoreResponse]:
        """The answer to ``head``, which is all of a request but its body."""
        sent: Deferred[Any] = self._client.request(
            method,
            _ReadyURL(url),
            headers=_ReadyHead(head),
            data=body,
            cookies=self._cookies,
            allow_redirects=False,
            unbuffered=True,
            reactor=self.clock,
        )
        # What treq puts around it is for reading bodies in ways that have no back-pressure.
        return sent.addCallback(lambda response: response.original.answer)
