"""HTTP calls that the service makes to others than the store: to providers of identities, and to hooks.

Addresses of such servers come from the configuration, and some from documents that these servers send. So a call
reaches public addresses only, unless ``allow_private_hosts`` says otherwise: a name is resolved once, its addresses
are checked, and one of those is connected to. No redirect is followed, no cookie is kept, nothing is decompressed,
and time, size and the number of calls to one host at the same time are limited.

Messages name the host and what went wrong. They contain no path, no query, no header and nothing of a body, since
those may be secret.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import orjson
from attrs import define, evolve, field, frozen
from OpenSSL.SSL import Error as TLSError
from service_identity import VerificationError
from treq.client import HTTPClient
from twisted.internet import error
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import (
    IHostnameResolver,
    IHostResolution,
    IReactorPluggableNameResolver,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import Agent, BrowserLikePolicyForHTTPS, HTTPConnectionPool
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IPolicyForHTTPS
from zope.interface import implementer

from project_service.lifecycle import cancel, start
from project_service.public_addresses import Address, is_loopback, is_nowhere, is_public, why_not_url

# All of a call: waiting for its turn, name, connection, request and reply.
TOTAL_SECONDS = 10.0
CONNECT_SECONDS = 5.0
# The body of a reply. Documents of providers have some kilobytes.
MAX_REPLY_BYTES = 512 * 1024
# What a reply may have besides its body: head, sizes of chunks, trailers.
_HEAD_BYTES = 64 * 1024
# Calls to one host at the same time; others wait for their turn.
MAX_CALLS_PER_HOST = 10
USER_AGENT = "project-service"

GetAddresses = Callable[[str, int], Iterable[str]]
T = TypeVar("T")


class OutgoingFailed(Exception):
    """A call that has no usable reply. The message says which host, and why; it contains nothing secret."""

    def __init__(self, host: str, why: str) -> None:
        super().__init__(f"{host} {why}")
        self.host = host
        self.why = why


@frozen
class Reply:
    """A reply of any status. Names of ``headers`` are in lower case; of several with one name the last one counts."""

    host: str
    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """The body as JSON. Raises ``OutgoingFailed``."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise OutgoingFailed(self.host, f"answered {self.status} without JSON") from None


def resolved(host: str, port: int) -> Iterable[str]:
    """The addresses of ``host``, by the system's resolver. Blocks. Raises ``OSError`` and ``UnicodeError``."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


@define(eq=False)
class Outgoing:
    """Makes calls. ``allow_private_hosts`` says whether other than public addresses may be called at present, and
    http to loopback. ``policy`` decides which certificates are trusted; by default the system's authorities."""

    reactor: Any
    allow_private_hosts: Callable[[], bool]
    policy: Any = None
    get_addresses: GetAddresses = resolved
    _turns: dict[str, DeferredSemaphore] = field(factory=dict, init=False)
    _resolving: dict[tuple[str, int], list[Deferred[list[str]]]] = field(factory=dict, init=False)

    async def call(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        seconds: float = TOTAL_SECONDS,
        max_bytes: int = MAX_REPLY_BYTES,
    ) -> Reply:
        """The reply of any status, redirects among them, with a body of at most ``max_bytes``. Raises
        ``OutgoingFailed``, at the latest after ``seconds``."""
        fault = why_not_url(url, self.allow_private_hosts())
        parsed = urlsplit(url) if fault is None else None
        if parsed is None or parsed.hostname is None:
            raise OutgoingFailed("the address", fault or "is not an address")
        host = parsed.hostname

        line = _Line(max_bytes + _HEAD_BYTES)
        sent = start(self._in_turn(parsed, line, method, url, dict(headers or {}), body))
        try:
            reply = await line.within(
                self.reactor, seconds, sent, f"did not answer within {seconds:g} seconds"
            )
        except OutgoingFailed:
            raise
        except Exception as problem:
            if line.fault is None and _is_cancelled(problem):
                raise CancelledError from None
            raise OutgoingFailed(host, line.fault or _why(problem)) from None
        if line.fault is not None or len(reply.body) > max_bytes:
            raise OutgoingFailed(host, line.fault or _TOO_LARGE)
        return reply

    async def _in_turn(
        self,
        parsed: SplitResult,
        line: _Line,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
    ) -> Reply:
        host = parsed.hostname or ""
        turns = self._turns.setdefault(host, DeferredSemaphore(MAX_CALLS_PER_HOST))
        await turns.acquire()
        try:
            endpoint = await self._endpoint(parsed, line)
            # A connection serves one call: if one that was kept is closed just when a code is sent, nobody knows
            # whether the code has been used.
            pool = HTTPConnectionPool(self.reactor, persistent=False)
            agent = Agent.usingEndpointFactory(self.reactor, _Always(endpoint), pool)
            client = HTTPClient(_Plain(agent))
            all_headers = {"Accept": "application/json", "User-Agent": USER_AGENT, **headers}
            given = Headers({name: [value] for name, value in all_headers.items()})
            response = await client.request(
                method, url, headers=given, data=body, allow_redirects=False, reactor=self.reactor
            )
            content = await response.content()
            found = {
                name.decode("latin-1").lower(): values[-1].decode("latin-1")
                for name, values in response.headers.getAllRawHeaders()
            }
            return Reply(host, int(response.code), found, content)
        finally:
            line.cut()
            turns.release()
            if turns.tokens == turns.limit:
                self._turns.pop(host, None)

    async def _endpoint(self, parsed: SplitResult, line: _Line) -> IStreamClientEndpoint:
        """The way to one of the addresses of a host. Raises ``OutgoingFailed`` if none may be called."""
        host, secure = parsed.hostname or "", parsed.scheme == "https"
        port = parsed.port or (443 if secure else 80)
        addresses = self._callable(host, await self._addresses(host, port), secure)
        known = _Resolved(host, tuple(_transport_address(one, port) for one in addresses))
        endpoint: Any = HostnameEndpoint(_With(self.reactor, known), host, port, timeout=CONNECT_SECONDS)
        endpoint = _InTime(self.reactor, endpoint, line)
        if secure:
            policy = self.policy or BrowserLikePolicyForHTTPS()
            tls = IPolicyForHTTPS(policy).creatorForNetloc(host.encode("ascii"), port)
            endpoint = wrapClientTLS(tls, endpoint)
        return _Counted(endpoint, line)

    def _callable(self, host: str, texts: Iterable[str], secure: bool) -> list[Address]:
        allowed: list[Address] = []
        for text in texts:
            with suppress(ValueError):
                allowed.append(ipaddress.ip_address(text))
        allowed = [one for one in allowed if not is_nowhere(one)]
        if not self.allow_private_hosts():
            allowed = [one for one in allowed if is_public(one)]
        if not secure:
            allowed = [one for one in allowed if is_loopback(one)]
        if not allowed:
            why = (
                "has no public address; auth.allow_private_hosts would allow others"
                if secure
                else "may be called by https only"
            )
            raise OutgoingFailed(host, why)
        return allowed

    def _addresses(self, host: str, port: int) -> Deferred[list[str]]:
        """By a thread of its own for each host, since a name that does not resolve may hold it up for long. All who
        ask meanwhile share its result, so that a host costs one thread at most."""
        waiting: Deferred[list[str]] = Deferred()
        key = (host, port)
        queue = self._resolving.setdefault(key, [])
        queue.append(waiting)
        if len(queue) > 1:
            return waiting

        def work() -> None:
            outcome: list[str] | Failure
            try:
                outcome = list(self.get_addresses(host, port))
            except Exception:
                outcome = Failure(error.DNSLookupError())
            self.reactor.callFromThread(done, outcome)

        def done(outcome: list[str] | Failure) -> None:
            for one in self._resolving.pop(key):
                if not one.called:
                    one.callback(outcome)  # a Failure handed to callback() runs the errbacks

        Thread(target=work, name="resolve", daemon=True).start()
        return waiting


_TOO_LARGE = "sent more than is taken"
_REASONS: Sequence[tuple[type[BaseException], str]] = (
    (error.DNSLookupError, "has no address: its name cannot be resolved"),
    (VerificationError, "has a certificate for another name"),
    (TLSError, "cannot be trusted: no TLS, or no certificate of a known authority"),
    (error.TimeoutError, "cannot be connected to in time"),
    (error.ConnectError, "cannot be connected to"),
)


def _all_of(problem: BaseException) -> Sequence[BaseException]:
    """``problem``, and those that Twisted's client wraps in it."""
    reasons = getattr(problem, "reasons", None) or ()
    return (problem, *(one.value for one in reasons if isinstance(one, Failure) and one.value is not None))


def _is_cancelled(problem: BaseException) -> bool:
    return any(isinstance(one, CancelledError | error.ConnectingCancelledError) for one in _all_of(problem))


def _why(problem: BaseException) -> str:
    """What went wrong, without anything that was sent or received."""
    for one in _all_of(problem):
        for kind, words in _REASONS:
            if isinstance(one, kind):
                return words
    return "did not answer in HTTP"


@define(eq=False)
class _Line:
    """The connection of one call, and how many bytes may still come by it. ``fault`` is why it was cut."""

    left: int
    fault: str | None = None
    transport: Any = None

    def received(self, count: int) -> bool:
        """Count bytes. Returns whether they may be looked at."""
        self.left -= count
        if self.left < 0:
            self.fault = _TOO_LARGE
            self.cut()
        return self.left >= 0

    def within(self, clock: IReactorTime, seconds: float, waiting: Deferred[T], fault: str) -> Deferred[T]:
        """``waiting`` itself, which is cancelled after ``seconds``. The failure may be any then, but this ``fault``
        is noted."""

        def expire() -> None:
            self.fault = fault
            waiting.cancel()

        call = clock.callLater(seconds, expire)

        def ended(result: T | Failure) -> T | Failure:
            cancel(call)
            return result

        return waiting.addBoth(ended)

    def cut(self) -> None:
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.abortConnection()


class _Counting(ProtocolWrapper):
    """Counts what comes before HTTP sees it: Twisted's client limits neither heads nor bodies."""

    def makeConnection(self, transport: Any) -> None:
        self.factory.line.transport = transport
        super().makeConnection(transport)

    def dataReceived(self, data: bytes) -> None:
        if self.factory.line.received(len(data)):
            super().dataReceived(data)


class _CountingFactory(WrappingFactory):
    protocol = _Counting
    noisy = False

    def __init__(self, wrapped: Any, line: _Line) -> None:
        super().__init__(wrapped)
        self.line = line


@implementer(IStreamClientEndpoint)
@frozen
class _Counted:
    endpoint: Any
    line: _Line

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        protocolFactory.noisy = False
        connecting: Deferred[Any] = self.endpoint.connect(_CountingFactory(protocolFactory, self.line))
        # The agent talks to its own protocol, not to what is around it.
        return connecting.addCallback(lambda counting: counting.wrappedProtocol)


@implementer(IStreamClientEndpoint)
@frozen
class _InTime:
    """Limits the time of connecting, over all addresses."""

    reactor: Any
    endpoint: Any
    line: _Line

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        connecting = self.endpoint.connect(protocolFactory)
        return self.line.within(self.reactor, CONNECT_SECONDS, connecting, "cannot be connected to in time")


@implementer(IAgentEndpointFactory)
@frozen
class _Always:
    endpoint: IStreamClientEndpoint

    def endpointForURI(self, uri: Any) -> IStreamClientEndpoint:
        return self.endpoint


@implementer(IAgent)
@frozen
class _Plain:
    """The agent beneath treq. It asks for replies that are not compressed, and refuses others: a small one may become
    a thousand times as large."""

    agent: Any

    def request(
        self, method: bytes, uri: bytes, headers: Headers | None = None, bodyProducer: Any = None
    ) -> Deferred[Any]:
        headers = Headers() if headers is None else headers
        headers.setRawHeaders(b"accept-encoding", [b"identity"])
        requested: Deferred[Any] = self.agent.request(method, uri, headers, bodyProducer)
        return requested.addCallback(_not_encoded)


def _not_encoded(response: Any) -> Any:
    encodings = response.headers.getRawHeaders(b"content-encoding", [])
    if any(one.strip().lower() not in (b"", b"identity") for one in encodings):
        raise ValueError("compressed")
    return response


def _transport_address(address: Address, port: int) -> IPv4Address | IPv6Address:
    kind = IPv4Address if address.version == 4 else IPv6Address
    return kind("TCP", str(address), port)


@implementer(IHostResolution)
@frozen
class _Resolution:
    name: str

    def cancel(self) -> None:
        """Nothing is under way."""


@implementer(IHostnameResolver)
@frozen
class _Resolved:
    """Knows one host, whose addresses have been checked."""

    host: str
    addresses: tuple[IPv4Address | IPv6Address, ...]

    def resolveHostName(
        self,
        resolutionReceiver: Any,
        hostName: str,
        portNumber: int = 0,
        addressTypes: Any = None,
        transportSemantics: str = "TCP",
    ) -> IHostResolution:
        resolution = _Resolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)
        for address in self.addresses:
            resolutionReceiver.addressResolved(address)
        resolutionReceiver.resolutionComplete()
        return resolution


@implementer(IReactorPluggableNameResolver)
class _With:
    """The reactor, with another resolver of names."""

    def __init__(self, reactor: Any, resolver: _Resolved) -> None:
        self.nameResolver = resolver
        self._reactor = reactor

    def installNameResolver(self, resolver: Any) -> Any:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


# Documents that are kept


# How long a document is kept that does not say so, and the bounds of what it may say.
DEFAULT_SECONDS, LEAST_SECONDS, MOST_SECONDS = 600.0, 60.0, 86400.0
# How many documents are kept: each provider has two.
MAX_DOCUMENTS = 200
_MAX_AGE = re.compile(r'(?:^|,)\s*max-age\s*=\s*"?([0-9]{1,12})"?\s*(?=,|$)', re.IGNORECASE)
_NOT_KEPT = re.compile(r"(?:^|,)\s*no-(?:store|cache)\b", re.IGNORECASE)


def kept_seconds(headers: Mapping[str, str]) -> float:
    """For how long a document with these headers is kept (RFC 9111), within bounds."""
    control = headers.get("cache-control", "")
    if _NOT_KEPT.search(control):
        return LEAST_SECONDS
    found = _MAX_AGE.search(control)
    if found is None:
        return DEFAULT_SECONDS
    age = headers.get("age", "0").strip()
    spent = int(age) if age.isascii() and age.isdigit() and len(age) <= 12 else 0
    return min(max(float(int(found[1]) - spent), LEAST_SECONDS), MOST_SECONDS)


@frozen
class _Kept:
    """``content`` is None where it could not be read; ``asked_at`` is when it was asked for last."""

    content: Mapping[str, Any] | None
    until: float
    asked_at: float


@define(eq=False)
class Documents:
    """JSON objects at public addresses, such as a provider's keys. They are read when they are needed, and kept for
    as long as they allow. ``clock`` returns seconds."""

    outgoing: Outgoing
    clock: Callable[[], float]
    _kept: OrderedDict[str, _Kept] = field(factory=OrderedDict, init=False)
    _reading: dict[str, list[Deferred[Mapping[str, Any]]]] = field(factory=dict, init=False)

    async def read(self, url: str) -> Mapping[str, Any]:
        """The document. Raises ``OutgoingFailed``."""
        kept = self._kept.get(url)
        if kept is not None and kept.content is not None and self.clock() < kept.until:
            self._kept.move_to_end(url)
            return kept.content
        return await self._shared(url)

    async def read_again(self, url: str) -> Mapping[str, Any]:
        """The document as it is now; but as it was if somebody asked for it within the last ``LEAST_SECONDS``. For
        those who miss something in it, so that nobody can have it read in any number. Raises ``OutgoingFailed``."""
        kept = self._kept.get(url)
        if kept is not None and self.clock() - kept.asked_at < LEAST_SECONDS:
            return await self.read(url)
        return await self._shared(url)

    def _shared(self, url: str) -> Deferred[Mapping[str, Any]]:
        """One call for all who ask at the same time. A caller that leaves does not end it."""
        waiting: Deferred[Mapping[str, Any]] = Deferred()
        queue = self._reading.setdefault(url, [])
        queue.append(waiting)
        if len(queue) > 1:
            return waiting

        def done(outcome: Any) -> None:
            for one in self._reading.pop(url):
                if not one.called:
                    one.callback(outcome)  # a Failure handed to callback() runs the errbacks

        start(self._read(url)).addBoth(done)
        return waiting

    async def _read(self, url: str) -> Mapping[str, Any]:
        now, before = self.clock(), self._kept.get(url)
        # Noted first: a document that cannot be read is not asked for more often either.
        self._keep(url, _Kept(None, now, now) if before is None else evolve(before, asked_at=now))
        reply = await self.outgoing.call("GET", url)
        if reply.status != 200:
            raise OutgoingFailed(reply.host, f"answered {reply.status}")
        content = reply.json()
        if not isinstance(content, dict):
            raise OutgoingFailed(reply.host, "answered with something else than a JSON object")
        self._keep(url, _Kept(content, now + kept_seconds(reply.headers), now))
        return content

    def _keep(self, url: str, kept: _Kept) -> None:
        self._kept[url] = kept
        self._kept.move_to_end(url)
        while len(self._kept) > MAX_DOCUMENTS:
            self._kept.popitem(last=False)
