"""Letters: how they are written and sent."""

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

from attrs import define, field, frozen
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.auth.model import envelope
from project_service.auth.smtp import MailServer, is_final, why
from project_service.deferreds import start
from project_service.settings.model import Smtp

# A letter that was not taken is tried again after these pauses, in seconds. They are long enough for a mail server to
# be restarted, or to let in a sender whom it refused at first (greylisting, RFC 6647), and end before the tokens in
# letters do, after an hour.
PAUSES = (5.0, 60.0, 300.0, 1500.0)
AT_ONCE = 4
# Letters that wait to be sent, and as many that pause between two tries.
MOST_WAITING = 1000


@frozen
class Letter:
    recipient: str
    subject: str
    text: str


class Post(Protocol):
    def post(self, write: Callable[[], Letter]) -> None:
        """Have a letter written and sent after this turn of the reactor. Failures are logged, not raised."""


def compose(template: str, recipient: str, token: str, url: str | None, hours: int) -> Letter:
    """A letter made of ``templates/<template>.txt``, which consists of the subject, an empty line and the text.

    The token is on a line of its own. Paragraphs with ``$link`` are left out if there is no ``url``. ``hours`` is how
    long the token is valid.
    """
    source = files("project_service.auth").joinpath(f"templates/{template}.txt").read_text("utf-8")
    subject, _, body = source.partition("\n\n")
    paragraphs = [part for part in body.strip().split("\n\n") if url is not None or "$link" not in part]
    text = string.Template("\n\n".join(paragraphs)).substitute(
        token=token, link=None if url is None else with_token(url, token), hours=hours
    )
    return Letter(recipient, subject, text + "\n")


def with_token(url: str, token: str) -> str:
    """``url`` with ``token`` as another parameter of its query."""
    base, hash_mark, fragment = url.partition("#")
    return f"{base}{'&' if '?' in base else '?'}token={quote(token, safe='')}{hash_mark}{fragment}"


def message(letter: Letter, sender: str, now: float, message_id: str) -> bytes:
    """The letter as a message (RFC 5322), with CRLF. Raises ``ValueError`` if an address or the subject has a line
    break."""
    mail = EmailMessage(policy=SMTP)
    # Domains are converted to ASCII: the library would write them as encoded words, which RFC 2047 section 5 forbids
    # in addresses.
    address = envelope(sender)
    mail["From"] = Address(parseaddr(sender)[0], addr_spec=address)
    mail["To"] = envelope(letter.recipient)
    mail["Subject"] = letter.subject
    mail["Date"] = formatdate(now)
    mail["Message-ID"] = f"<{message_id}@{address.rpartition('@')[2]}>"
    # Prevents out-of-office replies (RFC 3834).
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(letter.text, cte="quoted-printable" if not letter.text.isascii() else "7bit")
    return mail.as_bytes()


@frozen
class SmtpTransport:
    """Sends a letter and returns when the server has taken it. Otherwise raises Twisted's SMTP errors."""

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
    """A letter to be sent, and the pauses after which it may be tried again."""

    write: Callable[[], Letter]
    pauses: tuple[float, ...] = PAUSES


@define
class Outbox:
    """Implements ``Post``. It sends up to ``AT_ONCE`` letters at a time. One that is not taken is tried again
    after each of ``PAUSES``, unless it was refused for good. It does not hold up others, or take their room, while it
    waits for that.

    Letters are in memory only. If one is lost to a restart, its recipient has to ask for another.
    """

    log = Logger()

    send: Callable[[Letter], Awaitable[None]]
    clock: IReactorTime
    _waiting: deque[_Due] = field(factory=deque, init=False)
    _under_way: int = field(default=0, init=False)
    _pausing: int = field(default=0, init=False)

    def post(self, write: Callable[[], Letter]) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.log.error("too many letters are waiting; one was dropped")
            return
        self._waiting.append(_Due(write))
        # Later, so that the response to the request takes no longer than one that causes no letter.
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
            # It is written here, because reading its template may fail too, and is then tried again.
            await self.send(due.write())
        except Exception as fault:
            self.log.warn("a letter was not taken: {why}", why=why(fault))
            if due.pauses and self._pausing < MOST_WAITING and not is_final(fault):
                self._pausing += 1
                self.clock.callLater(due.pauses[0], self._again, _Due(due.write, due.pauses[1:]))
            else:
                self.log.error("a letter was given up")

    def _again(self, due: _Due) -> None:
        self._pausing -= 1
        self._waiting.append(due)
        self._begin()
