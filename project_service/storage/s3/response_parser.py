"""Parses one answer of the store as it arrives. Pure: bytes go in, bytes of the body come out. Source: RFC 9112.

httptools (llhttp, strict) parses the head and chunks. A body with Content-Length is only counted, and not copied.
"""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from project_service.storage.s3.errors import BrokenAnswer

MAX_HEAD_BYTES = 64 * 1024
_HEAD_END = b"\r\n\r\n"
# RFC 9112 section 6.3: these have no body, whatever their headers say.
_BODILESS = frozenset({204, 304})


class ResponseParser:
    """The answer to one request; ``bodiless`` where that was a HEAD.

    ``code`` and ``headers`` are set once ``begun``. Names of headers are in lower case; of several with one name the
    last one counts. ``length`` is None where it is not known before the end.
    """

    __slots__ = (
        "_bodiless",
        "_buffer",
        "_left",
        "_parser",
        "_pieces",
        "begun",
        "code",
        "complete",
        "headers",
        "keep_alive",
        "length",
        "on_header",
    )

    def __init__(self, bodiless: bool = False) -> None:
        self.begun = False
        self.complete = False
        self.keep_alive = False
        self.code = 0
        self.headers: dict[bytes, bytes] = {}
        self.length: int | None = None
        self._bodiless = bodiless
        self._buffer = b""
        self._left = 0
        self._pieces: list[bytes] = []
        self._parser: HttpResponseParser | None = None

    def feed(self, data: bytes) -> bytes:
        """The part of ``data`` that belongs to the body.

        Raises ``BrokenAnswer`` for what is not HTTP, and for bytes after the end of the answer.
        """
        if self._left:
            self._left -= len(data)
            if self._left <= 0:
                if self._left < 0:
                    raise BrokenAnswer("more than was announced")
                self.complete = True
            return data
        if not self.begun:
            return self._head(data)
        if self.complete:
            raise BrokenAnswer("more than the answer")
        # The parser is kept for chunked bodies only. Without it, all data is body until the connection ends.
        return data if self._parser is None else self._parsed(data)

    def skip(self, count: int) -> None:
        """Count bytes of the body that do not come this way; fewer than ``left``."""
        self._left -= count

    @property
    def left(self) -> int:
        """How many bytes of the body are still to come, as announced; 0 where none was, or the head is not there."""
        return self._left

    def end(self) -> None:
        """To be called when the connection has ended; raises ``BrokenAnswer`` where the answer is incomplete."""
        until_close = self.begun and self.length is None and self._parser is None
        if not self.complete and not until_close:
            raise BrokenAnswer("less than the answer")
        self.complete = True

    def _head(self, data: bytes) -> bytes:
        rest = self._buffer + data if self._buffer else data
        while not self.begun:
            end = rest.find(_HEAD_END) + len(_HEAD_END)
            found = end >= len(_HEAD_END)
            if (end if found else len(rest)) > MAX_HEAD_BYTES:
                raise BrokenAnswer("a head without end")
            if not found:
                self._buffer = rest
                return b""
            head, rest = rest[:end], rest[end:]
            self._read(head)
            # RFC 9110 section 15.2: an interim answer is followed by the final one.
            self.begun = self.code >= 200
        self._buffer = b""
        return self.feed(rest) if rest else b""

    def _read(self, head: bytes) -> None:
        sent: dict[bytes, bytes] = {}
        # llhttp calls this for each header: nothing of ours runs.
        self.on_header = sent.__setitem__
        self.code = 0
        self._parser = HttpResponseParser(self)
        if self._parsed(head) or not self.code:
            raise BrokenAnswer("not a head")
        self.complete = False
        self.headers = {name.lower(): value for name, value in sent.items()}
        if self.code >= 200:
            self._frame(head)

    def _frame(self, head: bytes) -> None:
        """Decide how the body is delimited (RFC 9112 section 6.3).

        llhttp has already refused contradicting lengths, and a length beside a transfer coding.
        """
        coding, length = self.headers.get(b"transfer-encoding"), self.headers.get(b"content-length")
        parser, self._parser = self._parser, None
        if self._bodiless or self.code in _BODILESS:
            self.length, self.complete = 0, True
        elif coding is not None:
            if coding.lower() != b"chunked" or head.lower().count(b"\r\ntransfer-encoding") != 1:
                raise BrokenAnswer("a transfer coding that nobody asked for")
            self._parser = parser
        elif length is not None:
            self.length = self._left = int(length)
            self.complete = not self._left

    def _parsed(self, data: bytes) -> bytes:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            raise BrokenAnswer("not HTTP/1.1") from None
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # What the parser calls.

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.code = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_begin(self) -> None:
        if self.begun:
            raise BrokenAnswer("more than the answer")

    def on_message_complete(self) -> None:
        self.complete = True
