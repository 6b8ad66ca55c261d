"""Bytes of a response head, and what an exchange needs of the connection beneath it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from project_service.http.outbound import Producer
from project_service.http.protocol import fields

_NAME = re.compile(rf"[{fields.TCHAR}]+\Z")
# RFC 9110 section 5.5: characters that would end the line or the head.
_BAD_VALUE = re.compile(r"[\x00\r\n]")

# The one phrase that Python writes otherwise than RFC 2324 and everybody else.
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {
    HTTPStatus.IM_A_TEAPOT.value: "I'm a teapot"
}
# RFC 9112 section 4 allows more than ASCII in a reason phrase, but clients disagree about how to read it.
_NOT_IN_PHRASE = re.compile(r"[^!-~]+")
MAX_REASON = 120

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Connection(Protocol):
    """One client connection."""

    def write(self, data: bytes) -> None: ...
    def take(self, source: int, most: int) -> int:
        """As ``Splicing.move``, to the client."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def register_producer(self, producer: Producer) -> None: ...
    def unregister_producer(self) -> None: ...
    def exchange_done(self, keep_alive: bool) -> None:
        """The response is written and the request read; without ``keep_alive`` the connection closes."""

    def abort(self) -> None: ...
    def abort_if_reset(self) -> None:
        """Abort if the client has refused what it was sent, because nobody is there any more."""

    def progress(self) -> object:
        """A value that changes whenever the client has taken bytes."""


# Headers that only the connection itself may set.
FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "trailer"})
# Those, and the ones that the edge sets on every response; handlers and SQL must not set any of them.
OURS = FRAMING | {"date", "x-request-id"}


def fault_of(status: int, headers: Iterable[tuple[str, str]]) -> str | None:
    """Why a final response with this head must not be written, without quoting it; None where it may."""
    if not 200 <= status <= 599:
        return "its status is none of a final response"
    for name, value in headers:
        if (fault := _fault_of_name(name)) is not None:
            return fault
        if _BAD_VALUE.search(value):
            return "a header is not one"
    return None


@lru_cache(maxsize=256)
def _fault_of_name(name: str) -> str | None:
    if not _NAME.match(name):
        return "a header is not one"
    return "a header is the connection's to set" if name.lower() in FRAMING else None


def head(status: int, headers: Iterable[tuple[str, str]], reason: str | None = None) -> bytes:
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


def chunk(data: bytes) -> bytes:
    """``data``, which must not be empty, as one chunk (RFC 9112 section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)
