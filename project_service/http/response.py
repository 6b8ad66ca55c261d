"""Responses as values: ``Reply`` (whole) and ``StreamReply`` (written as it is made), and their heads as bytes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

import orjson
from attrs import frozen

from project_service.errors import ApiError, Headers, has_header
from project_service.frozen import quick
from project_service.http.describe import STRING, Named, obj
from project_service.http.head import TCHAR, HeaderView

JSON = "application/json; charset=utf-8"
NO_STORE = ("Cache-Control", "no-store")


@quick
class Reply:
    """A whole response. The edge adds Content-Length, the request id and CORS headers, and drops a HEAD's body.

    ``reason`` is the reason phrase, None for the usual one of the status.
    """

    status: int = 200
    headers: Headers = ()
    body: bytes = b""
    reason: str | None = None


@frozen
class ErrorForm:
    """How a part writes errors: each as a response, and for ``/openapi.json`` the schema of those with given codes,
    which are sorted. ``sent`` is an error with the status and code that the response has. ``asked`` replaces
    ``reply`` where the form also depends on the headers of the request."""

    reply: Callable[[ApiError], Reply]
    schema: Callable[[Sequence[str]], Any]
    sent: Callable[[ApiError], ApiError] = lambda error: error
    asked: Callable[[ApiError, HeaderView], Reply] | None = None

    def answer(self, error: ApiError, headers: HeaderView | None = None) -> Reply:
        """The response with ``error``, to a request with ``headers``, or to what could not be read as one."""
        return self.reply(error) if self.asked is None or headers is None else self.asked(error, headers)


def error_reply(error: ApiError) -> Reply:
    """``error`` in its own form, which is the JSON envelope unless a subclass has another.

    A cache may store some errors if they do not forbid it (RFC 9110 section 15.1), and CDNs store others as well.
    Then a 404 hides what comes a moment later, and one bad request makes a page an error for everybody.
    """
    headers = (("Content-Type", error.content_type), *error.headers)
    if not has_header(headers, "Cache-Control"):
        headers = (*headers, NO_STORE)
    return Reply(error.status, headers, error.body(), error.reason)


_ERROR = Named(
    "Error",
    obj(
        ("data", "error"),
        data={"type": "null"},
        error=obj(
            ("code", "message"),
            code={"type": "string", "description": "Stable; part of the interface."},
            message={"type": "string", "description": "One sentence for a person; may change."},
            details={
                "type": "object",
                "description": "Field to reason, where fields are at fault.",
                "additionalProperties": STRING,
            },
        ),
    ),
)


def _error_schema(codes: Sequence[str]) -> Any:
    return {"allOf": [_ERROR, {"properties": {"error": {"properties": {"code": {"enum": [*codes]}}}}}]}


ENVELOPE = ErrorForm(error_reply, _error_schema)


class Producer(Protocol):
    """An ``IPushProducer`` without the interface's ceremony."""

    def pauseProducing(self) -> None: ...
    def resumeProducing(self) -> None: ...
    def stopProducing(self) -> None: ...


class Sink(Protocol):
    """The client's side of a streamed response."""

    def write(self, data: bytes) -> None:
        """Hand over bytes. What the socket does not take is buffered, so wait for ``drained`` or use a producer."""

    def take(self, source: int, max_bytes: int) -> int:
        """Send up to ``max_bytes`` from the socket with the descriptor ``source``, and return how many it sent: 0 if
        they have to be read and written."""

    async def drained(self) -> None:
        """Returns once the client has read enough for more; raises ``ClientGone`` when it has left."""

    def register_producer(self, producer: Producer) -> None:
        """From now on the client's socket pauses and resumes ``producer``; it is stopped if the client leaves."""

    def unregister_producer(self) -> None: ...


@frozen
class StreamReply:
    """A response whose body is written by ``source``, after the head. ``length`` None means chunked.

    If ``source`` raises, the connection is aborted, so that a short body never looks whole. For a HEAD request
    ``source`` is not called.
    """

    status: int
    headers: Headers
    length: int | None
    source: Callable[[Sink], Awaitable[None]]


def json_reply(value: Any, status: int = HTTPStatus.OK, headers: Headers = ()) -> Reply:
    return Reply(status, (("Content-Type", JSON), *headers), orjson.dumps(value))


def envelope(data: Any, status: int = HTTPStatus.OK, headers: Headers = ()) -> Reply:
    """The auth endpoints' success body."""
    return json_reply({"data": data, "error": None}, status, headers)


_NAME = re.compile(rf"[{TCHAR}]+\Z")
# RFC 9110 section 5.5: characters that would end the line or the head.
_BAD_VALUE = re.compile(r"[\x00\r\n]")

# The one phrase that Python writes otherwise than RFC 2324 and everybody else.
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {
    HTTPStatus.IM_A_TEAPOT.value: "I'm a teapot"
}
# RFC 9112 section 4 allows more than ASCII in a reason phrase, but clients disagree about how to read it.
_NOT_IN_PHRASE = re.compile(r"[^!-~]+")
MAX_REASON = 120


# Headers that only the connection itself may set.
FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "trailer"})
# Those, and the ones that the edge sets on every response; handlers and SQL must not set any of them.
OURS = FRAMING | {"date", "x-request-id"}


def fault_of(status: int, headers: Iterable[tuple[str, str]]) -> str | None:
    """Why a final response with this head must not be written, without quoting it; None if it may."""
    if not 200 <= status <= 599:
        return "its status is not that of a final response"
    for name, value in headers:
        if (fault := _fault_of_name(name)) is not None:
            return fault
        if _BAD_VALUE.search(value):
            return "a header is invalid"
    return None


@lru_cache(maxsize=256)
def _fault_of_name(name: str) -> str | None:
    if not _NAME.match(name):
        return "a header is invalid"
    return "a header is the connection's to set" if name.lower() in FRAMING else None


def head_bytes(status: int, headers: Iterable[tuple[str, str]], reason: str | None = None) -> bytes:
    """Status line and headers as bytes. ``fault_of`` must have been asked about headers that are not the edge's own.

    ``reason`` may be any text: characters that a phrase cannot hold become spaces, and it is cut at ``MAX_REASON``.
    Raises ``ValueError`` for headers that would break the framing nevertheless.
    """
    phrase = _REASONS.get(status, "Unknown") if reason is None else _phrase(reason)
    lines = [f"HTTP/1.1 {status} {phrase}", *map(": ".join, headers)]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a response header holds a line end")
    return f"{text}\r\n\r\n".encode("latin-1", "replace")


def _phrase(text: str) -> str:
    return _NOT_IN_PHRASE.sub(" ", text[:MAX_REASON]).strip()
