"""One request to the store and its response: signed over exactly what is sent, with timeouts, retry, and failures in
the service's terms.

::

    RetryingClient -> Sender -> treq -> _PoolAgent -> ConnectionPool
                             <-      <- _BareResponse <- StoreResponse

By default treq parses URLs and writes them again, copies headers and adds to them, keeps cookies, follows redirects
and decodes compressed bodies. Some of that would invalidate the signature, and an object's bytes must arrive as they
are stored. So treq sees a request without URL and headers, and a response without headers. That also leaves 15 of the
70 microseconds that it takes for a request.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

from attrs import define, field, frozen
from hyperlink import EncodedURL
from treq.client import HTTPClient
from treq.cookies import IndexableCookieJar
from twisted.internet import error
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent
from zope.interface import implementer

from project_service.lifecycle import IdleTimer
from project_service.storage.durations import MAX_RESPONSE_SECONDS
from project_service.storage.s3.connection import (
    ConnectionPool,
    Gather,
    MemoryBody,
    Payload,
    StoreResponse,
)
from project_service.storage.s3.errors import (
    FELL_SILENT,
    NO_ANSWER,
    BrokenRead,
    BrokenResponse,
    StoreError,
    StoreUnreachable,
    kind_of,
)
from project_service.storage.s3.signing import EMPTY_SHA256, Address, Signer
from project_service.storage.s3.xml import error_text, refusal, worth_retrying

_log = Logger()

# Sent but not signed. Some firewalls in front of stores refuse clients without a User-Agent.
USER_AGENT = "project-service"


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
    """A finished request head that treq takes for headers: there seem to be none, and it cannot add any.

    One serves all requests of a ``Sender``: treq hands it on before its method returns."""

    head = b""

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
        self, method: bytes, uri: bytes, headers: Any = None, bodyProducer: Any = None
    ) -> Deferred[Any]:
        return self.pool.request(method, headers.head, bodyProducer).addCallback(_BareResponse)


class _BareResponse:
    """What treq sees of a response: no headers, so that it decodes nothing."""

    __slots__ = ("response",)
    headers = Headers()

    def __init__(self, response: StoreResponse) -> None:
        self.response = response


_UNWRAPPED = attrgetter("original.response")


@define(eq=False)
class Sender:
    """Signs requests to one store and sends them by the connections of ``pool``.

    Raises ``ValueError`` for a header that would break the request's framing. ``signer`` may be replaced at any time;
    a request that is sent again is signed anew.
    """

    pool: ConnectionPool
    clock: Any
    address: Address
    signer: Signer
    now: Callable[[], datetime]
    _cookies: _NoCookies = field(factory=_NoCookies, init=False)
    _ready: _ReadyHead = field(factory=_ReadyHead, init=False)
    _client: HTTPClient = field(init=False)

    @_client.default
    def _made(self) -> HTTPClient:
        return HTTPClient(_PoolAgent(self.pool), self._cookies)

    def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        digest: str,
        body: MemoryBody | None,
    ) -> Deferred[StoreResponse]:
        """Send a request about the object ``key``, or about the store bucket for ""; fires with the response once its
        head is there. Redirects are not followed.

        ``headers`` have names in lower case; ``digest`` is the SHA-256 of the body.
        """
        url = self.address.url(key, query)
        plain = {"host": self.address.host, "user-agent": USER_AGENT, **headers}
        signed = self.signer.headers(method, url, plain, digest, self.now())
        if body is not None:
            signed["Content-Length"] = str(body.length)
        self._ready.head = _head(method, url[len(self.address.origin) :], signed)
        sent: Deferred[Any] = self._client.request(
            method,
            _NO_URL,
            headers=self._ready,
            data=body,
            cookies=self._cookies,
            allow_redirects=False,
            unbuffered=True,
            reactor=self.clock,
        )
        # Unwrapped, since treq's own response reads bodies without back-pressure.
        return sent.addCallback(_UNWRAPPED)


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    head = "\r\n".join((f"{method} {target} HTTP/1.1", *map(": ".join, headers.items())))
    if head.count("\n") != len(headers) or head.count("\r") != len(headers) or target.split() != [target]:
        raise ValueError("a header or the URL is invalid")
    return head.encode("latin-1") + b"\r\n\r\n"


MAX_TRIES = 4
FIRST_PAUSE_SECONDS = 0.1
# Responses that are read whole: lists of 1,000 keys and error documents.
MAX_RESPONSE_BYTES = 8 * 1024 * 1024

# Failures after which the request is sent again. A kept-alive connection that the store has closed shows as one of
# these.
_UNANSWERED = (
    BrokenResponse,
    error.ConnectError,
    error.DNSLookupError,
    error.ConnectionDone,
    error.ConnectionLost,
    BrokenRead,
    OSError,
)


@define(eq=False)
class RetryingClient:
    """Sends requests to one store. ``send`` raises ``StoreUnreachable`` where no usable response comes.

    A request that failed is sent again, ``MAX_TRIES`` times in all with growing, random pauses, as long as no more
    than ``retry_seconds`` have passed since the last byte moved. Every request of this client is safe to repeat.

    The log says once why the store cannot be used, and once that it can be used again.
    """

    sender: Sender
    clock: IReactorTime
    idle_seconds: float
    retry_seconds: float
    jitter: Callable[[], float] = field(default=random.random)
    # Why the store could not be used since the last request that succeeded.
    _reported: set[str] = field(factory=set, init=False)

    async def send(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Payload = b"",
        digest: str = EMPTY_SHA256,
        streamed: bool = False,
    ) -> StoreResponse:
        """The response, with its ``body`` unless it is ``streamed``: then the body is still with the store.

        ``digest`` is the SHA-256 of the request's body. Raises ``StoreError`` for a refusal.
        """
        last, failed = self.clock.seconds(), 0
        while True:
            timer, began = None, 0.0
            try:
                sent = MemoryBody(body) if method in {"PUT", "POST"} else None
                sending = self.sender.send(method, key, query, headers or {}, digest, sent)
                timer = IdleTimer(self.clock, self.idle_seconds, sending.cancel)
                if sent is not None:
                    # The time that a large part takes to be sent does not count as waiting.
                    sent.progress = timer.touch
                timer.start()
                began = timer.touched_at
                try:
                    response = await sending
                except Exception as problem:
                    raise _without_head(problem, timer) from None
                finally:
                    timer.stop()
                if not streamed or response.code >= 300:
                    buffered = response.buffered()
                    if buffered is None:
                        buffered = await self._gathered(response, timer.touch)
                    response.body = buffered
                    # S3 sends 200 before it knows whether completing or copying succeeds: this may be an error.
                    if response.code >= 300 or (b"<Error" in buffered and error_text(buffered)):
                        raise refusal(response.code, buffered, response.header("x-amz-bucket-region"))
                if self._reported:
                    self._reported.clear()
                    _log.info("The store {store} can be used again", store=self.sender.address.origin)
                return response
            except Exception as problem:
                away = isinstance(problem, StoreUnreachable)
                if not away and not _may_pass(problem):
                    raise
                if timer is not None and timer.touched_at != began:  # something has moved
                    last = timer.touched_at
                pause = FIRST_PAUSE_SECONDS * 2**failed * self.jitter()
                failed += 1
                too_late = self.clock.seconds() + pause - last > self.retry_seconds
                if away or failed == MAX_TRIES or too_late:
                    raise self._unreachable(problem) from None
                await deferLater(self.clock, pause)

    def _unreachable(self, problem: Exception) -> StoreUnreachable:
        kind = kind_of(problem)
        if kind not in self._reported:
            self._reported.add(kind)
            store = self.sender.address.origin
            _log.warn("The store {store} cannot be used: {kind}", store=store, kind=kind)
        return StoreUnreachable(kind)

    async def _gathered(self, response: StoreResponse, moved: Callable[[], None]) -> bytes:
        gather = Gather(response, MAX_RESPONSE_BYTES)
        if gather.finished.called:
            return await gather.finished
        timer = IdleTimer(self.clock, self.idle_seconds, gather.finished.cancel)
        timer.start()
        latest = self.clock.seconds() + MAX_RESPONSE_SECONDS

        def coming() -> None:
            # White space counts as progress: a store that completes a large upload sends it for minutes.
            if self.clock.seconds() < latest:
                timer.touch()
                moved()

        gather.progress = coming
        try:
            return await gather.finished
        except CancelledError:
            if timer.expired:
                raise StoreUnreachable(FELL_SILENT) from None
            raise
        finally:
            timer.stop()


def _without_head(problem: Exception, timer: IdleTimer) -> Exception:
    """Why the head of a response did not come within the time of ``timer``, where waiting for it raised
    ``problem``."""
    if timer.expired:
        return StoreUnreachable(NO_ANSWER)
    # Cancelled while connecting; Twisted has an error of its own for that.
    return CancelledError() if isinstance(problem, error.ConnectingCancelledError) else problem


def _may_pass(problem: Exception) -> bool:
    refused_for_now = isinstance(problem, StoreError) and worth_retrying(problem.status, problem.code)
    return refused_for_now or isinstance(problem, _UNANSWERED)
