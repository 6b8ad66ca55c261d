"""HTTP/1.1 requests out of bytes, by llhttp (``httptools``). No I/O.

llhttp is strict about framing (RFC 9112 sections 6 and 7). The rules for the head as a whole are in
``framing.request_head``. What makes this module long is what llhttp has no means for: limits (it only tells what is
complete, so what became nothing yet is counted by difference), 405 for a method that it does not know (it refuses it
before there is a path), and offers of another protocol (it stops there, although a server may ignore them).
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import httptools

from project_service import errors
from project_service.errors import ApiError
from project_service.http.headers import HeaderView
from project_service.http.protocol import fields
from project_service.http.protocol.framing import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_LINE_BYTES,
    MAX_TARGET_BYTES,
    RequestHead,
    header_too_long,
    no_path,
    request_head,
    too_many_headers,
)

# The bytes that a chunk may have besides its data: its size, line ends and a short extension. In total a body may
# have MAX_SURPLUS_BYTES more than that which are not data (long extensions, trailers).
CHUNK_HEAD_BYTES = 32
MAX_SURPLUS_BYTES = 4 * 1024
# Headers of up to this size are remembered for the next request of the connection; applications send fewer.
KEPT_HEADER_BYTES = 4 * 1024

# A request line with any method (RFC 9110 section 9.1) and any target; llhttp accepts only methods that it knows.
_REQUEST_LINE = re.compile(rf"[{fields.TCHAR}]+ ([^ ]+)( HTTP/1\.[01]\r\n)?".encode())
# The beginning of such a line.
_LINE_SO_FAR = re.compile(rf"[{fields.TCHAR}]+( [^ \r\n]*( [^ \r\n]*\r?)?)?\Z".encode())
_VERSIONS = {"1.1": b"HTTP/1.1", "1.0": b"HTTP/1.0"}


class KeptHead:
    """A head without its target, as its client sends it again and again.

    Purpose: most clients of a connection send the same method and header lines each time. Parsing them, and all that
    follows from them alone (``HeaderView``), costs more than the rest of a small request. Plan: a head that is the
    same byte for byte, but for its target, needs neither. Cost: a few kilobytes for each connection.

    ``lines`` begin behind the target. Only heads that were acceptable are kept, with a path as their target and a
    body of a known length, which has to have come as a whole.
    """

    __slots__ = ("_head", "_lines", "_prefix")

    def __init__(self, head: RequestHead, prefix: bytes, lines: bytes) -> None:
        self._head = head
        self._prefix = prefix
        self._lines = lines

    @classmethod
    def of(cls, head: RequestHead, data: bytes) -> KeptHead | None:
        """What to keep of ``head``, which was parsed of ``data``; None where that is nothing."""
        prefix = head.method.encode() + b" "
        lines = data[len(prefix) + len(head.target) :]
        plain = head.keep_alive and head.length is not None and head.target.startswith(b"/")
        first = data.startswith(prefix + head.target + b" HTTP/1.1\r\n")
        # No line ends otherwise, so the head ends where ``data`` does, whatever the parser is lenient about.
        ends = data.count(b"\r\n") == data.count(b"\n") == data.count(b"\r")
        special = b"expect" in head.headers or b"upgrade" in head.headers
        if plain and first and ends and not special and len(lines) <= KEPT_HEADER_BYTES:
            return cls(head, prefix, lines)
        return None

    def again(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """The head and the body of a request that is all of ``data``; None where it has other lines or is not
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


# As ``framing.origin_form`` has it, of a path.
_PATH = re.compile(rb"/[!\"$-~]*\Z")


class Requests(Protocol):
    """Gets what was parsed, in order. All calls are made from within ``RequestParser.feed``."""

    def head_begun(self) -> None: ...
    def head_received(self, head: RequestHead) -> None: ...
    def body_received(self, data: bytes) -> None: ...
    def request_received(self) -> None: ...


class RequestParser:
    """Parses what it is fed and calls ``requests``. Once ``feed`` has raised, it must not be fed again."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._parser: Any = _llhttp(self)
        # Whether something of a request has come that is not complete.
        self.begun = False
        self._last = False
        self._in_body = False
        self._announcing = False
        # What has come of the request line until there is a target; all of it after a method that llhttp does not
        # know.
        self._line = b""
        self._method_unknown = False
        # The request that is being parsed, as far as it has come.
        self.target = b""
        self._pairs: list[tuple[bytes, bytes]] = []
        self._headers = HeaderView(())
        self._length: int | None = 0
        # The data of the chunks in what is being fed. They are handed over together: a chunk may be of one byte, and
        # the reader is woken for each piece.
        self._pieces: list[bytes] = []
        self.chunks = 0  # chunks begun; the channel reads and resets it
        # How many bytes were fed since the head began, roughly. Only where they are many is the head itself measured.
        self._head_bytes = 0
        self._fed_bytes = 0
        # Bytes fed that became nothing yet: an unfinished header, chunk extensions, trailers.
        self._surplus = 0

    def feed(self, data: bytes) -> None:
        """Parse ``data``. Raises ``ApiError`` for what is no acceptable request."""
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
        """Raise the ``ApiError`` for what llhttp refused. Where that is an unknown method, only once the request line
        is complete, since the answer (405) depends on its path."""
        self._method_unknown = isinstance(refused, httptools.HttpParserInvalidMethodError)
        if not self._method_unknown or not _LINE_SO_FAR.match(self._line):
            raise self._fault_of_line(isinstance(refused, httptools.HttpParserInvalidURLError))

    def _fault_of_line(self, target_is_none: bool = False) -> ApiError:
        line = _REQUEST_LINE.match(self._line)
        if line and not self.target:
            self.target = line[1]
        if self._method_unknown and line and line[2]:
            return errors.method_not_allowed(())  # the router fills in the methods that the path has
        return no_path() if target_is_none else errors.not_http()

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
                raise errors.not_http()
        elif self._surplus > MAX_LINE_BYTES:
            raise header_too_long()
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
            # For the channel there is nothing more, as long as ``begun`` is False.
            raise errors.not_http()
        self.begun = True
        self.target = b""
        self._pairs = []
        self._head_bytes = min(self._fed_bytes, MAX_HEAD_BYTES)
        self._surplus = 0
        self._requests.head_begun()

    def on_url(self, part: bytes) -> None:
        if self._announcing:
            return
        self.target += part
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
            raise too_many_headers()

    def on_headers_complete(self) -> None:
        if self._announcing:
            return
        self._in_body = True
        self._surplus = 0
        if self._head_bytes >= MAX_HEAD_BYTES and self._too_large():
            raise errors.headers_too_large(MAX_HEAD_BYTES)
        version = _VERSIONS.get(self._parser.get_http_version())
        if version is None:
            raise errors.not_http()
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
        """A view of the headers: the previous request's where the client sends the same again, as most clients do.

        Long ones are not remembered. What is derived from them takes several times their length, for as long as the
        connection is idle.
        """
        if self._headers.is_of(self._pairs):
            return self._headers
        view = HeaderView(self._pairs)
        length = sum(len(name) + len(value) for name, value in self._pairs)
        self._headers = view if length <= KEPT_HEADER_BYTES else HeaderView(())
        return view


def _raised_in_callback(stopped: Exception) -> BaseException:
    """The exception that httptools has wrapped."""
    assert stopped.__context__ is not None
    return stopped.__context__


def _llhttp(callbacks: RequestParser) -> Any:
    """A parser that leaves it to us which request is the last. By itself it would also listen to Proxy-Connection and
    to trailers, and with them a client could end a connection that its proxy sends other clients' requests on."""
    parser = httptools.HttpRequestParser(callbacks)
    parser.set_dangerous_leniencies(lenient_keep_alive=True)
    return parser
