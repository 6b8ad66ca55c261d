"""What a case of the attack corpus is, and the pieces that cases are made of. Pure data."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

# open: the connection accepts another request. closed: the server has closed it and not read what followed.
# waiting: the request is not complete, there is no response, and the connection is closed after a timeout.
Then = Literal["open", "closed", "waiting"]
Answer = tuple[int, str | None]  # status, and the body where it matters


@frozen
class Outcome:
    answers: tuple[Answer, ...]
    then: Then


@frozen
class Case:
    """``sent``, on one connection, has to have one of ``outcomes``, into however many pieces it is split."""

    name: str
    section: str
    sent: bytes
    outcomes: tuple[Outcome, ...]


HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
GET = b"GET /echo HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
EARLY = b"POST /early HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CL3 = POST + b"Content-Length: 3\r\n"

REFUSED = Outcome(((400, None),), "closed")
TOO_LARGE_HEAD = Outcome(((431, None),), "closed")
WAITING = Outcome((), "waiting")
HIDDEN_TOO = (200, "HIDDEN")


def refused(name: str, section: str, sent: bytes, *others: Outcome) -> Case:
    """The outcome of a request that is refused: 400, the connection is closed, and a request hidden behind it is not
    answered."""
    return Case(name, section, sent, (REFUSED, *others))


def answered(name: str, section: str, sent: bytes, status: int, then: Then = "closed") -> Case:
    return Case(name, section, sent, (Outcome(((status, None),), then),))


def taken(name: str, section: str, sent: bytes, *answers: Answer, then: Then = "open") -> Case:
    """The outcome of requests that are answered with exactly these responses, in this order."""
    return Case(name, section, sent, (Outcome(answers, then),))


def ok(body: str) -> Answer:
    return (200, body)
