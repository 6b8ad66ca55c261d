"""treq, without what a store has no use for: URL and headers go out as they are signed, cookies are not kept.

Most of what treq does for a request is parsing and writing again what is ready here already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen
from hyperlink import EncodedURL
from treq.client import HTTPClient
from treq.cookies import IndexableCookieJar
from twisted.internet.defer import Deferred
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer

from project_service.storage.s3.response import StoreResponse


class ReadyURL(EncodedURL):
    """A URL in its final form."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def to_uri(self) -> ReadyURL:
        return self

    def to_text(self, with_password: bool = False) -> str:
        return self._text


class ReadyHeaders(Headers):
    """Headers in their final form, names in lower case: treq's copy is the same, what it would add is left out.

    That is ``Accept-Encoding``: an object's bytes must arrive as they are stored.
    """

    def __init__(self, plain: Mapping[str, str]) -> None:
        super().__init__()
        self.plain = plain

    def copy(self) -> ReadyHeaders:
        return self

    def addRawHeader(self, name: bytes | str, value: bytes | str) -> None:
        """Left out."""


class NoCookies(IndexableCookieJar):
    """Empty for ever."""

    def add_cookie_header(self, request: Any) -> None:
        """Nothing to add."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        """Nothing is kept."""


@frozen(eq=False)
class Through:
    """``send`` sends a request by treq's client; redirects are answers like any other."""

    agent: IAgent
    _cookies: NoCookies = field(factory=NoCookies, init=False)
    _client: HTTPClient = field(init=False)

    @_client.default
    def _made(self) -> HTTPClient:
        return HTTPClient(self.agent, self._cookies)

    def send(
        self, clock: Any, method: str, url: str, headers: Mapping[str, str], body: IBodyProducer | None
    ) -> Deferred[StoreResponse]:
        sent: Deferred[Any] = self._client.request(
            method,
            ReadyURL(url),
            headers=ReadyHeaders(headers),
            data=body,
            cookies=self._cookies,
            allow_redirects=False,
            unbuffered=True,
            reactor=clock,
        )
        # The answer itself: what treq puts around it is for reading bodies in ways that have no back-pressure.
        return sent.addCallback(lambda response: response.original)
