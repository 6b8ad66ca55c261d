"""From bytes to the heads and bodies of HTTP/1.1 requests, by llhttp (``httptools``). No I/O.

First ``HeaderView``, the headers; then what they say of the client behind proxies (``locate``); then the rules for a
head (``request_head``); last ``RequestParser``, and ``CachedHead`` for heads that come again.

llhttp is strict about framing (RFC 9112 sections 6 and 7). What makes the parser long is what llhttp has no means
for: limits (it only reports what is complete, so the rest is counted by difference), 405 for a method that it does
not know (it refuses it before there is a path), and offers of another protocol (it stops there, although a server may
ignore them).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import httptools
from attrs import frozen

from project_service import errors
from project_service.errors import ApiError
from project_service.frozen import quick

# Characters, written to stand between the brackets of a regular expression. RFC 9110 section 5.6.2: those of tokens,
# such as names of headers and methods.
TCHAR = r"!#$%&'*+.^_`|~0-9A-Za-z-"
# RFC 9110 section 5.5: control characters that no header value may have. A tab is allowed.
CONTROL = r"\x00-\x08\x0a-\x1f\x7f"


T = TypeVar("T")


class HeaderView:
    """Request headers as sent, in their order and with repetitions. Read-only.

    It is made of pairs whose names are lower-case bytes and whose values have no white space around them. ``first``
    has the first value of each name. ``http.edge`` and ``http.caller`` cache what follows from the headers in
    ``arrival`` and ``caller``; others use ``derived``.
    """

    __slots__ = ("_derived", "_pairs", "arrival", "caller", "first")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._pairs = tuple(pairs)
        # Reversed, so that of several headers of one name the first one sent is kept.
        self.first = dict(reversed(self._pairs))
        self.arrival: Any = None
        self.caller: Any = None
        self._derived: dict[Callable[[HeaderView], Any], Any] = {}

    def is_of(self, pairs: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether ``pairs`` are the same headers in the same order."""
        return self._pairs == tuple(pairs)

    def derived(self, make: Callable[[HeaderView], T]) -> T:
        """``make(self)``, called once for this view and cached.

        This pays because a connection keeps its view as long as its client sends the same headers (see
        ``RequestParser``). ``make`` serves as the key, so it has to be a function of a module and not one made for
        each call. What it raises is not cached.
        """
        try:
            value: T = self._derived[make]
        except KeyError:
            value = self._derived[make] = make(self)
        return value

    def get(self, name: bytes) -> bytes | None:
        """The first value of that (lower-case) name."""
        return self.first.get(name)

    def all(self, name: bytes) -> list[bytes]:
        """Every value of that (lower-case) name, in the order sent."""
        if name not in self.first:
            return []
        return [value for key, value in self._pairs if key == name]

    def text(self, name: bytes) -> str | None:
        """The first value as text. RFC 9110 section 5.5: bytes above 127 are opaque, hence Latin-1."""
        value = self.first.get(name)
        return None if value is None else value.decode("latin-1")

    def __contains__(self, name: bytes) -> bool:
        return name in self.first

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._pairs)


# Where a request came from: forwarding headers are believed only as far as the proxies that wrote them are trusted.


Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# A reg-name, IPv4 address or bracketed IPv6 address with an optional port (RFC 3986 section 3.2.2).
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")
# What stands before an IPv4 address within IPv6.
_MAPPED_BITS = 96
# In networks with IPv6 only, IPv4 addresses are translated to these (RFC 6052 section 2.1).
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
# The host for clients that send none, as HTTP/1.0 allows.
LOCAL_HOST = "localhost"


def is_host(text: str) -> bool:
    return _HOST.match(text) is not None


@frozen
class Forwarded:
    """The client's address, and the scheme and host by which it reached the service, through proxies or not."""

    address: str
    scheme: str
    host: str


def _host(headers: HeaderView) -> str | None:
    host = headers.text(b"host")
    return host if host and is_host(host) else None


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """CIDR blocks or single addresses; raises ``ValueError`` for anything else."""
    return tuple(_unmapped(ipaddress.ip_network(text, strict=False)) for text in texts)


def _unmapped(network: Network) -> Network:
    """A network of IPv4 addresses in IPv6's form as one of IPv4: peers are compared in that form."""
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


def locate(peer: str | None, secure: bool, headers: HeaderView, trusted: Sequence[Network]) -> Forwarded:
    """The right-most hop of ``X-Forwarded-For`` that is not a trusted proxy, and the scheme it used.

    ``peer`` is None on a Unix socket. The other end is a proxy on this host then, which is trusted as soon as any
    proxy is. Reading stops at an entry that is not an address, and the hop after it (nearer to us) counts as the
    client, so that nobody hides behind a broken header.
    """
    scheme = "https" if secure else "http"
    host = headers.derived(_host) or LOCAL_HOST
    near = peer if peer is not None else "127.0.0.1"
    if not trusted or not (peer is None or _is_trusted(near, trusted)):
        return Forwarded(near, scheme, host)
    protocols = b",".join(headers.all(b"x-forwarded-proto")).decode("latin-1")
    forwarded = protocols.rpartition(",")[2].strip().lower()
    if forwarded in ("http", "https"):
        scheme = forwarded
    hops = b",".join(headers.all(b"x-forwarded-for")).decode("latin-1").split(",")
    for hop in reversed([hop.strip() for hop in hops if hop.strip()]):
        address = _address(hop)
        if address is None:
            break
        near = address
        if not _is_trusted(near, trusted):
            break
    return Forwarded(near, scheme, host)


def _address(hop: str) -> str | None:
    """The address of one ``X-Forwarded-For`` entry, which some proxies write with a port."""
    for candidate in (hop, hop.rpartition(":")[0]):
        try:
            return str(ipaddress.ip_address(candidate.strip("[]")))
        except ValueError:
            continue
    return None


def _is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    try:
        parsed = _parsed(address)
    except ValueError:
        return False
    return any(parsed in network for network in trusted)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """``address``, as IPv4 if it is that in the form of IPv6; raises ``ValueError``."""
    parsed = ipaddress.ip_address(address)
    return getattr(parsed, "ipv4_mapped", None) or parsed


@lru_cache(maxsize=1024)
def address_block(address: str) -> str:
    """What counts as one client address: an IPv4 address, or an IPv6 network /64, which a single host usually has for
    itself."""
    try:
        parsed = _parsed(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed in _TRANSLATED:
        return str(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF))
    return str(ipaddress.ip_network((int(parsed), 64), strict=False))


# The rules for a request head (RFC 9112) beyond those that llhttp enforces, and our limits.


# Room for a filter with a thousand UUIDs (``in.(…)``), which PostgREST takes as well.
MAX_TARGET_BYTES = 50 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = MAX_TARGET_BYTES + 32
MAX_HEADERS = 200
# The methods that routes may have. llhttp knows more, and any others it refuses itself.
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


@quick
class RequestHead:
    """``length`` is the Content-Length, None for a chunked body, 0 without a body. ``target`` is in origin form.

    ``keep_alive``: whether the connection may stay open (RFC 9112 section 9.3). With HTTP/1.0 it is always closed.
    """

    method: str
    target: bytes
    version: bytes
    headers: HeaderView
    length: int | None
    keep_alive: bool


def request_head(method: str, target: bytes, version: bytes, headers: HeaderView) -> RequestHead:
    """The head of a request whose line and headers have been parsed, ``target`` as it was sent.

    Raises ``ApiError`` if it is not acceptable as a whole.
    """
    path = origin_form(target)
    if path is None:
        raise bad_request_target()
    fault = _fault_of(version, headers)
    if fault is not None:
        raise fault
    keep_alive = version == b"HTTP/1.1" and not headers.derived(_asks_to_close)
    if path is not target:  # which is a whole URL
        headers = _addressed(headers, target)
    return RequestHead(method, path, version, headers, _content_length(headers), keep_alive)


def _fault_of(version: bytes, headers: HeaderView) -> ApiError | None:
    """What is wrong with the head, if anything: RFC 9112 section 3.2 (exactly one valid Host) and section 6.1 (no
    transfer coding before HTTP/1.1)."""
    fault = headers.derived(_fault_of_any_version)
    if fault is not None:
        return fault
    if version == b"HTTP/1.1":
        return None if b"host" in headers else _bad_request_host()
    return _bad_request_coding() if b"transfer-encoding" in headers else None


def _fault_of_any_version(headers: HeaderView) -> ApiError | None:
    hosts = headers.all(b"host")
    if len(hosts) > 1:
        return _bad_request_host()
    if hosts and hosts[0] and not is_host(hosts[0].decode("latin-1")):
        return errors.bad_request("The Host header is invalid.")
    codings = headers.all(b"transfer-encoding")
    return _bad_request_coding() if codings and [c.lower() for c in codings] != [b"chunked"] else None


def _bad_request_host() -> ApiError:
    return errors.bad_request("The request needs exactly one Host header.")


def _bad_request_coding() -> ApiError:
    return errors.bad_request("The transfer coding is not supported.")


# RFC 3986: visible ASCII; a fragment is never sent.
_TARGET = re.compile(rb"[!\"$-~]+\Z")
_WHOLE_URL = re.compile(rb"https?://([^/?]*)([^?]*)(.*)\Z", re.IGNORECASE)


def origin_form(target: bytes) -> bytes | None:
    """``target`` as path and query, also if it is a whole URL; ``*`` stays. None if it is invalid.

    RFC 9112 section 3.2.
    """
    if not _TARGET.match(target):
        return None
    if target.startswith(b"/") or target == b"*":
        return target
    url = _WHOLE_URL.match(target)
    if url is None or not is_host(url[1].decode("ascii")):
        return None
    return (url[2] or b"/") + url[3]


def _addressed(headers: HeaderView, url: bytes) -> HeaderView:
    """``headers`` with the host of ``url`` for ``Host`` (RFC 9112 section 3.2.2)."""
    others = [(name, value) for name, value in headers if name != b"host"]
    return HeaderView([(b"host", _WHOLE_URL.sub(rb"\1", url)), *others])


def headers_too_large_line() -> ApiError:
    return ApiError(431, "headers_too_large", f"A request header is longer than {MAX_LINE_BYTES} bytes.")


def headers_too_large_count() -> ApiError:
    return ApiError(431, "headers_too_large", f"The request has more than {MAX_HEADERS} headers.")


def bad_request_target() -> ApiError:
    """400 for a target for which ``origin_form`` returns None."""
    why = "The request target is not a path in ASCII; other characters have to be percent-encoded."
    return errors.bad_request(why)


def _asks_to_close(headers: HeaderView) -> bool:
    tokens = b",".join(headers.all(b"connection")).lower().split(b",")
    return b"close" in [token.strip() for token in tokens]


def _content_length(headers: HeaderView) -> int | None:
    declared = headers.get(b"content-length")
    if declared is not None:
        # llhttp refuses anything but numbers, and large ones, but not leading zeros. ``int`` takes only 4300 digits.
        return int(declared.strip().lstrip(b"0") or b"0")
    return None if b"transfer-encoding" in headers else 0


# The bytes that a chunk may have besides its data: its size, line ends and a short extension. A body may have
# MAX_SURPLUS_BYTES more in total (long extensions, trailers).
CHUNK_HEAD_BYTES = 32
MAX_SURPLUS_BYTES = 4 * 1024
# Headers of up to this size are cached for the next request of the connection; applications send fewer.
CACHED_HEADER_BYTES = 4 * 1024

# A request line with any method (RFC 9110 section 9.1) and any target; llhttp accepts only methods that it knows.
_REQUEST_LINE = re.compile(rf"[{TCHAR}]+ ([^ ]+)( HTTP/1\.[01]\r\n)?".encode())
# The beginning of such a line.
_LINE_SO_FAR = re.compile(rf"[{TCHAR}]+( [^ \r\n]*( [^ \r\n]*\r?)?)?\Z".encode())
_VERSIONS = {"1.1": b"HTTP/1.1", "1.0": b"HTTP/1.0"}


class CachedHead:
    """A head without its target, as its client sends it again and again.

    Purpose: most clients send the same method and header lines with each request of a connection. Parsing them, and
    all that follows from them alone (``HeaderView``), costs more than the rest of a small request. Plan: a head that
    is the same byte for byte, but for its target, needs neither. Cost: a few kilobytes for each connection.

    ``lines`` begin behind the target. Only acceptable heads are cached, with a path as their target and a body of a
    known length, which has to have come as a whole.
    """

    __slots__ = ("_head", "_lines", "_prefix")

    def __init__(self, head: RequestHead, prefix: bytes, lines: bytes) -> None:
        self._head = head
        self._prefix = prefix
        self._lines = lines

    @classmethod
    def of(cls, head: RequestHead, data: bytes) -> CachedHead | None:
        """What to cache of ``head``, which was parsed from ``data``; None if nothing."""
        prefix = head.method.encode() + b" "
        lines = data[len(prefix) + len(head.target) :]
        plain = head.keep_alive and head.length is not None and head.target.startswith(b"/")
        first = data.startswith(prefix + head.target + b" HTTP/1.1\r\n")
        # All lines end in CRLF, so the head ends where ``data`` does, whatever the parser is lenient about.
        ends = data.count(b"\r\n") == data.count(b"\n") == data.count(b"\r")
        special = b"expect" in head.headers or b"upgrade" in head.headers
        if plain and first and ends and not special and len(lines) <= CACHED_HEADER_BYTES:
            return cls(head, prefix, lines)
        return None

    def again(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """The head and the body of the request that is all of ``data``; None if it has other lines or is not
        whole."""
        head, prefix, lines = self._head, self._prefix, self._lines
        end = len(data) - head.length  # type: ignore[operator]  # ``of`` has seen to it
        if not (data.startswith(prefix) and data.endswith(lines, 0, max(0, end))):
            return None
        target = data[len(prefix) : end - len(lines)]
        if not _PATH.match(target) or len(target) > MAX_TARGET_BYTES:
            return None
        return (
            RequestHead(head.method, target, head.version, head.headers, head.length, True),
            data[end:],
        )


# A path, as ``origin_form`` has it.
_PATH = re.compile(rb"/[!\"$-~]*\Z")


class Requests(Protocol):
    """Gets what was parsed, in order. All calls are made from within ``RequestParser.feed``."""

    def head_begun(self) -> None: ...
    def head_received(self, head: RequestHead) -> None: ...
    def body_received(self, data: bytes) -> None: ...
    def request_received(self) -> None: ...


class RequestParser:
    """Parses what it is fed and calls ``requests``. It must not be fed again once ``feed`` has raised."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._parser: Any = _llhttp(self)
        # Whether something of a request has come that is not complete.
        self.begun = False
        self._last = False
        self._in_body = False
        self._announcing = False
        # What has come of the request line until there is a target; all of it if llhttp does not know the method.
        self._line = b""
        self._method_unknown = False
        # The request that is being parsed, as far as it has come.
        self.target = b""
        self._pairs: list[tuple[bytes, bytes]] = []
        self._headers = HeaderView(())
        self._length: int | None = 0
        # The data of the chunks in what is being fed. It is handed over together: a chunk may be of one byte, and the
        # reader is woken for each piece.
        self._pieces: list[bytes] = []
        self.chunks = 0  # chunks begun; the connection reads and resets it
        # How many bytes were fed since the head began, roughly. The head itself is measured only if they are many.
        self._head_bytes = 0
        self._fed_bytes = 0
        # Bytes fed that became nothing yet: an unfinished header, chunk extensions, trailers.
        self._surplus = 0

    def feed(self, data: bytes) -> None:
        """Parse ``data``. Raises ``ApiError`` for an unacceptable request."""
        if not self.target and not self._in_body:
            self._line += data
        if self._method_unknown:
            if b"\n" in data or len(self._line) > MAX_LINE_BYTES:
                raise self._fault_of_line()
            return
        self._fed_bytes = len(data)
        self._surplus += self._fed_bytes
        self._head_bytes += self._fed_bytes
        try:
            self._feed_past_offers(data)
        except httptools.HttpParserCallbackError as stopped:
            raise _raised_in_callback(stopped) from None
        except httptools.HttpParserError as refused:
            self._refuse(refused)
            return
        finally:
            self._hand_over()
        self._check_sizes()

    def _refuse(self, refused: Exception) -> None:
        """Raise the ``ApiError`` for what llhttp refused; for an unknown method only once the request line is
        complete, since the response (405) depends on its path."""
        self._method_unknown = isinstance(refused, httptools.HttpParserInvalidMethodError)
        if not self._method_unknown or not _LINE_SO_FAR.match(self._line):
            raise self._fault_of_line(isinstance(refused, httptools.HttpParserInvalidURLError))

    def _fault_of_line(self, invalid_target: bool = False) -> ApiError:
        line = _REQUEST_LINE.match(self._line)
        if line and not self.target:
            self.target = line[1]
        if self._method_unknown and line and line[2]:
            return errors.method_not_allowed(())  # the router fills in the methods that the path has
        return bad_request_target() if invalid_target else errors.bad_request()

    def _feed_past_offers(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offered:
                self._decline()
                data = data[offered.args[0] :]

    def _decline(self) -> None:
        """Ignore an offer to switch protocols, as a server may (RFC 9110 section 7.8). llhttp has stopped parsing
        there, so a new parser is told to expect this request's body."""
        self._parser = _llhttp(self)
        if self._in_body:
            framing = (
                b"Transfer-Encoding: chunked"
                if self._length is None
                else b"Content-Length: %d" % self._length
            )
            self._announcing = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
            self._announcing = False

    def close(self) -> None:
        """To be called when nothing more will be fed, also from within ``feed``: breaks a reference cycle."""
        self._parser = None

    def _check_sizes(self) -> None:
        if self._in_body:
            self._surplus = max(self._surplus, 0)
            if self._surplus > MAX_SURPLUS_BYTES:
                raise errors.bad_request()
        elif self._surplus > MAX_LINE_BYTES:
            raise headers_too_large_line()
        elif self._head_bytes >= MAX_HEAD_BYTES and self._too_large(self._surplus):
            raise errors.headers_too_large(MAX_HEAD_BYTES)

    def _too_large(self, unfinished: int = 0) -> bool:
        """Whether the head is too large, including ``unfinished`` bytes of a header that has not ended.

        Blanks around values do not count, but with them the head may have twice the limit at most.
        """
        counted = len(self.target) + sum(len(name) + len(value) + 4 for name, value in self._pairs)
        return counted + unfinished > MAX_HEAD_BYTES or self._head_bytes > 2 * MAX_HEAD_BYTES

    # What httptools calls. An exception raised in these ends the parsing, and ``feed`` raises it.

    def on_message_begin(self) -> None:
        if self._announcing:
            return
        if self._last or self._parser is None:
            # For the connection there is nothing more, as long as ``begun`` is False.
            raise errors.bad_request()
        self.begun = True
        self.target = b""
        self._pairs = []
        self._head_bytes = min(self._fed_bytes, MAX_HEAD_BYTES)
        self._surplus = 0
        self._requests.head_begun()

    def on_url(self, piece: bytes) -> None:
        if self._announcing:
            return
        self.target += piece
        self._line = b""
        self._surplus = 0
        if len(self.target) > MAX_TARGET_BYTES:
            raise errors.uri_too_long(MAX_TARGET_BYTES)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            # A trailer, which is dropped (RFC 9112 section 7.1.2).
            return
        self._pairs.append((name.lower(), value.rstrip(b" \t")))
        self._surplus = 0
        if len(self._pairs) > MAX_HEADERS:
            raise headers_too_large_count()

    def on_headers_complete(self) -> None:
        if self._announcing:
            return
        self._in_body = True
        self._surplus = 0
        if self._head_bytes >= MAX_HEAD_BYTES and self._too_large():
            raise errors.headers_too_large(MAX_HEAD_BYTES)
        version = _VERSIONS.get(self._parser.get_http_version())
        if version is None:
            raise errors.bad_request()
        method = self._parser.get_method().decode("ascii")
        head = request_head(method, self.target, version, self._view())
        self._last = not head.keep_alive
        self._length = head.length
        self._requests.head_received(head)

    def on_chunk_header(self) -> None:
        self._surplus -= CHUNK_HEAD_BYTES
        self.chunks += 1

    def on_body(self, data: bytes) -> None:
        self._surplus -= len(data)
        if self._length is None:
            self._pieces.append(data)
        else:
            self._requests.body_received(data)

    def _hand_over(self) -> None:
        if self._pieces:
            data, self._pieces = b"".join(self._pieces), []
            self._requests.body_received(data)

    def on_message_complete(self) -> None:
        if self._length != 0 and self._parser.should_upgrade():
            return  # the body is still to come: ``_decline``
        self._hand_over()
        self._in_body = False
        self._pairs = []
        self._head_bytes = self._surplus = 0
        self.begun = False
        self.target = b""  # it may be long, and the connection may be idle for long
        self._requests.request_received()

    def _view(self) -> HeaderView:
        """A view of the headers: the previous request's if the client sends the same again, as most clients do.

        Long ones are not cached. What is derived from them takes several times their length, for as long as the
        connection is idle.
        """
        if self._headers.is_of(self._pairs):
            return self._headers
        view = HeaderView(self._pairs)
        length = sum(len(name) + len(value) for name, value in self._pairs)
        self._headers = view if length <= CACHED_HEADER_BYTES else HeaderView(())
        return view


def _raised_in_callback(stopped: Exception) -> BaseException:
    """The exception that httptools has wrapped."""
    assert stopped.__context__ is not None
    return stopped.__context__


def _llhttp(callbacks: RequestParser) -> Any:
    """A parser that leaves it to us which request is the last. By itself it would also heed Proxy-Connection and
    trailers, and by these a client could end a connection that its proxy uses for other clients too."""
    parser = httptools.HttpRequestParser(callbacks)
    parser.set_dangerous_leniencies(lenient_keep_alive=True)
    return parser
