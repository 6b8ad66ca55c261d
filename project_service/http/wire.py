"""Bytes of a response head, and what an exchange needs of the connection beneath it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from project_service.http import fields
from project_service.http.outbound import Producer

_NAME = re.compile(rf"[{fields.TCHAR}]+\Z")
# RFC 9110 section 5.5: what would end the line, or the head.
_BAD_VALUE = re.compile(r"[\x00\r\n]")

# Python writes "I'm a Teapot", RFC 2324 and everybody else does not.
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {
    HTTPStatus.IM_A_TEAPOT.value: "I'm a teapot"
}
# RFC 9112 section 4 allows what is beyond ASCII too, which clients read in different ways.
_NOT_IN_PHRASE = re.compile(r"[^!-~]+")
MAX_REASON = 120

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Connection(Protocol):
    """One client connection, whichever HTTP parser reads it."""

    def write(self, data: bytes) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def register_producer(self, producer: Producer) -> None: ...
    def unregister_producer(self) -> None: ...
    def exchange_done(self, keep_alive: bool) -> None:
        """The response is written and the request read; without ``keep_alive`` the connection closes."""

    def abort(self) -> None: ...
    def progress(self) -> object:
        """A value that changes whenever the client has taken bytes."""


# What only the connection may say.
FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "trailer"})
# And what the edge says with every response: nobody else's to set.
OURS = FRAMING | {"date", "x-request-id"}


def fault_of(status: int, headers: Iterable[tuple[str, str]]) -> str | None:
    """What keeps a final response from being written, in words without its values; None where nothing does."""
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
    """Status line and headers, looked at by ``fault_of`` before where they are not the edge's own.

    ``reason`` may be any text: what a phrase cannot hold becomes a space, and it is cut at ``MAX_REASON``. Raises
    ``ValueError`` for headers that would break the framing all the same.
    """
    phrase = _REASONS.get(status, "Unknown") if reason is None else _phrase(reason)
    lines = [f"HTTP/1.1 {status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in headers]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a response header holds a line end")
    return f"{text}\r\n\r\n".encode("latin-1", "replace")


def _phrase(text: str) -> str:
    return _NOT_IN_PHRASE.sub(" ", text[:MAX_REASON]).strip()


def chunk(data: bytes) -> bytes:
    """RFC 9112 section 7.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)
