"""Letters: what they say, and how they leave."""

from __future__ import annotations

import string
from collections import deque
from collections.abc import Awaitable, Callable
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, parseaddr
from importlib.resources import files
from typing import Any, Protocol
from urllib.parse import quote

from attrs import define, frozen
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.auth.model import envelope
from project_service.auth.smtp import MailServer, why
from project_service.deferreds import start
from project_service.settings import Smtp

# One try and two more, after these pauses.
PAUSES = (5.0, 60.0)
AT_ONCE = 4
MOST_WAITING = 1000


@frozen
class Letter:
    recipient: str
    subject: str
    text: str


class Post(Protocol):
    def post(self, write: Callable[[], Letter]) -> None:
        """Have a letter written and sent once this turn of the reactor is over; what becomes of it is logged."""


def compose(template: str, recipient: str, token: str, url: str | None, hours: int) -> Letter:
    """A letter from ``templates/<template>.txt``: the subject, an empty line, the text.

    The token stands on a line of its own. A paragraph with ``$link`` is left out where there is no ``url``.
    """
    source = files("project_service.auth").joinpath(f"templates/{template}.txt").read_text("utf-8")
    subject, _, body = source.partition("\n\n")
    paragraphs = [part for part in body.strip().split("\n\n") if url is not None or "$link" not in part]
    text = string.Template("\n\n".join(paragraphs)).substitute(
        token=token, link=None if url is None else with_token(url, token), hours=hours
    )
    return Letter(recipient, subject, text + "\n")


def with_token(url: str, token: str) -> str:
    """``url`` with ``token`` as one more query parameter, in front of a fragment."""
    base, hash_mark, fragment = url.partition("#")
    return f"{base}{'&' if '?' in base else '?'}token={quote(token, safe='')}{hash_mark}{fragment}"


def message(letter: Letter, sender: str, now: float, message_id: str) -> bytes:
    """RFC 5322, with CRLF. An address or subject with a line break raises ``ValueError``."""
    mail = EmailMessage(policy=SMTP)
    # Domains in ASCII: left to itself the library writes encoded words, which RFC 2047 section 5 bars from addresses.
    address = envelope(sender)
    mail["From"] = Address(parseaddr(sender)[0], addr_spec=address)
    mail["To"] = envelope(letter.recipient)
    mail["Subject"] = letter.subject
    mail["Date"] = formatdate(now)
    mail["Message-ID"] = f"<{message_id}@{address.rpartition('@')[2]}>"
    # RFC 3834: no out-of-office replies to this.
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(letter.text, cte="quoted-printable" if not letter.text.isascii() else "7bit")
    return mail.as_bytes()


@frozen
class SmtpTransport:
    """Sends one message and returns when the server has taken it; raises Twisted's SMTP errors otherwise."""

    reactor: Any
    settings: Smtp
    clock: Callable[[], float]
    new_id: Callable[[], str]

    async def __call__(self, letter: Letter) -> None:
        assert self.settings.sender is not None
        written = message(letter, self.settings.sender, self.clock(), self.new_id())
        await MailServer(self.reactor, self.settings).take(letter.recipient, written)


@frozen
class _Due:
    """A letter to be sent, and the pauses before it is tried again."""

    write: Callable[[], Letter]
    pauses: tuple[float, ...] = PAUSES


@define
class Outbox:
    """Implements ``Post``: a few letters at a time, each tried again twice; meanwhile it keeps no other back.

    Letters wait in memory only: one that is lost to a restart is asked for again by whoever waits for it.
    """

    log = Logger()

    send: Callable[[Letter], Awaitable[None]]
    clock: IReactorTime
    _waiting: deque[_Due]
    _under_way: int = 0
    _pausing: int = 0

    @classmethod
    def over(cls, send: Callable[[Letter], Awaitable[None]], clock: IReactorTime) -> Outbox:
        return cls(send, clock, deque())

    def post(self, write: Callable[[], Letter]) -> None:
        if len(self._waiting) + self._pausing >= MOST_WAITING:
            self.log.error("too many letters are waiting; one was dropped")
            return
        self._waiting.append(_Due(write))
        # Later, so that the answer to who asked for the letter takes no longer than without one.
        self.clock.callLater(0, self._begin)

    def _begin(self) -> None:
        if self._waiting and self._under_way < AT_ONCE:
            self._under_way += 1
            start(self._empty()).addErrback(lambda failure: self.log.failure("the outbox failed", failure))

    async def _empty(self) -> None:
        try:
            while self._waiting:
                await self._deliver(self._waiting.popleft())
        finally:
            self._under_way -= 1

    async def _deliver(self, due: _Due) -> None:
        try:
            # Written anew each time: reading its template may fail too.
            await self.send(due.write())
        except Exception as fault:
            self.log.warn("a letter was not taken: {why}", why=why(fault))
            if due.pauses:
                self._pausing += 1
                self.clock.callLater(due.pauses[0], self._again, _Due(due.write, due.pauses[1:]))
            else:
                self.log.error("a letter was given up")

    def _again(self, due: _Due) -> None:
        self._pausing -= 1
        self._waiting.append(due)
        self._begin()
