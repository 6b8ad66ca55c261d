"""How mails are sent: in the form of RFC 5322, by an ``Outbox``, through the ``MailServer``, with Twisted's SMTP
client, or into a ``MailFolder``. ``mail_templates.py`` writes them."""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, parseaddr
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

from attrs import define, field, frozen
from email_validator import EmailNotValidError
from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.internet.ssl import optionsForClientTLS
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.mail import smtp
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from project_service import certificates, files
from project_service.auth.mail_templates import Mail, TemplateFault
from project_service.email_addresses import envelope
from project_service.lifecycle import start, with_timeout
from project_service.settings.model import Smtp

# For connecting, for each of the server's replies, and for ``MailServer.reach`` as a whole.
TIMEOUT_SECONDS = 30.0
# For a mail as a whole. Some servers reply a line at a time, each in time, to keep senders waiting for hours.
MAIL_SECONDS = 300.0
# Lines of one reply, all of which are buffered until its last.
MAX_REPLY_LINES = 1000
# A mail that was not accepted is tried again after these pauses, in seconds. They are long enough for a mail server
# to be restarted, or to accept a sender whom it rejected at first (greylisting, RFC 6647), and end before the tokens
# in mails do, after an hour.
PAUSES = (5.0, 60.0, 300.0, 1500.0)
MAX_CONCURRENT = 4
# The longest line of a mail that is sent as it is.
MAX_LINE_BYTES = 998
# Mails that wait to be sent, and as many that pause between two tries.
MAX_WAITING = 1000

# A folder of mails keeps this many. They are small, and a run of tests may want to see all of its own.
MAX_STORED = 1000
_FILE_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}\.eml")

# The sender where none is set and no mail leaves this machine.
NOBODY = "nobody@localhost.test"

# What to tell the operator. Twisted's own texts contain the conversation, so they are not used. ``code`` is the
# server's.
_MISMATCH = "are smtp.port and smtp.tls what it speaks?"
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (error.TimeoutError, f"the mail server does not answer in time; {_MISMATCH}"),
    (error.TCPTimedOutError, f"the mail server does not answer in time; {_MISMATCH}"),
    (smtp.SMTPTimeoutError, f"the mail server does not answer in time; {_MISMATCH}"),
    (error.DNSLookupError, "the mail server cannot be reached: smtp.host has no address"),
    (error.ConnectionRefusedError, "the mail server cannot be reached: connection refused"),
    (error.ConnectError, "the mail server cannot be reached: {kind}"),
    (error.ConnectionClosed, "the mail server closes the connection"),
    (VerificationError, "the mail server's certificate is for another name than smtp.host"),
    (smtp.TLSRequiredError, "the mail server does not offer STARTTLS"),
    (smtp.EHLORequiredError, "the mail server does not know EHLO"),
    (smtp.AUTHRequiredError, "the mail server offers no way to log in, or smtp.password is missing"),
    (smtp.AUTHDeclinedError, "the mail server refuses the user name or the password ({code})"),
    (EmailNotValidError, "smtp.sender is not an e-mail address"),
    (UnicodeError, "an address or smtp.host has characters that SMTP does not accept"),
    (smtp.SMTPProtocolError, "what answers is not a mail server"),
    (smtp.SMTPClientError, "the mail server refuses ({code})"),
)


def message(mail: Mail, sender: str, now: float, message_id: str) -> bytes:
    """The mail as a message (RFC 5322), with CRLF. Raises ``ValueError`` if an address or the subject has a line
    break."""
    email = EmailMessage(policy=SMTP)
    # Domains are converted to ASCII: the library would write them as encoded words, which RFC 2047 section 5 forbids
    # in addresses.
    address = envelope(sender)
    email["From"] = Address(parseaddr(sender)[0], addr_spec=address)
    email["To"] = envelope(mail.recipient)
    email["Subject"] = mail.subject
    email["Date"] = formatdate(now)
    email["Message-ID"] = f"<{message_id}@{address.rpartition('@')[2]}>"
    # Prevents out-of-office replies (RFC 3834).
    email["Auto-Submitted"] = "auto-generated"
    email.set_content(mail.text, cte=_encoding(mail.text))
    if mail.html is not None:
        email.add_alternative(mail.html, subtype="html", cte=_encoding(mail.html))
        # No encoded text has these two characters one after the other (RFC 2045, section 6.7), and the id is random.
        email.set_boundary(f"=_{message_id}")
    return email.as_bytes()


def _encoding(text: str) -> str:
    """As it is, so that mails in files can be read and searched, if SMTP allows that (RFC 5322 section 2.1.1)."""
    is_plain = text.isascii() and all(len(line) <= MAX_LINE_BYTES for line in text.splitlines())
    return "7bit" if is_plain else "quoted-printable"


class Mailer(Protocol):
    def send_later(self, write: Callable[[], Mail]) -> None:
        """Have a mail composed and sent after this turn of the reactor. Failures are logged, not raised."""


@define
class Outbox:
    """Implements ``Mailer``. It sends up to ``MAX_CONCURRENT`` mails at a time. One that is not accepted is tried
    again after each of ``PAUSES``, unless it was rejected for good; while it waits for that, it neither delays others
    nor takes their room in the queue.

    Mails are in memory only. If one is lost to a restart, its recipient has to ask for another.
    """

    log = Logger()

    send: Callable[[Mail], Awaitable[None]]
    clock: IReactorTime
    # Each with the pauses after which it may be tried again.
    _waiting: deque[tuple[Callable[[], Mail], tuple[float, ...]]] = field(factory=deque, init=False)
    _sending: int = field(default=0, init=False)
    _pausing: int = field(default=0, init=False)

    def send_later(self, write: Callable[[], Mail]) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self.log.error("too many e-mails are waiting; one was dropped")
            return
        self._waiting.append((write, PAUSES))
        # Later, so that the response to the request takes no longer than one that causes no mail.
        self.clock.callLater(0, self._begin)

    def _begin(self) -> None:
        if self._waiting and self._sending < MAX_CONCURRENT:
            self._sending += 1
            start(self._empty()).addErrback(lambda failure: self.log.failure("the outbox failed", failure))

    async def _empty(self) -> None:
        try:
            while self._waiting:
                await self._deliver(*self._waiting.popleft())
        finally:
            self._sending -= 1

    async def _deliver(self, write: Callable[[], Mail], pauses: tuple[float, ...]) -> None:
        try:
            # Composed here, since a template may fail too.
            await self.send(write())
        except Exception as fault:
            self.log.warn("an e-mail was not accepted: {why}", why=why(fault))
            if pauses and self._pausing < MAX_WAITING and not is_final(fault):
                self._pausing += 1
                self.clock.callLater(pauses[0], self._again, write, pauses[1:])
            else:
                self.log.error("an e-mail was given up")

    def _again(self, write: Callable[[], Mail], pauses: tuple[float, ...]) -> None:
        self._pausing -= 1
        self._waiting.append((write, pauses))
        self._begin()


@frozen
class MailFolder:
    """In place of a mail server, for development and tests: mails become files, which mail programs can open. Their
    names sort by time. Several processes may use one folder."""

    log = Logger()

    reactor: Any
    path: Path
    sender: str | None
    clock: Callable[[], float] = time.time
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())

    async def send(self, mail: Mail) -> None:
        """Returns when ``mail`` is on the disk. Raises ``OSError``."""
        file = await deferToThreadPool(self.reactor, self.reactor.getThreadPool(), self.write, mail)
        # Mails have tokens in them, so the log names the file only.
        self.log.info("an e-mail was written to {file}", file=str(file))

    def write(self, mail: Mail) -> Path:
        """Write ``mail`` to a new file, which only we can read, and remove the oldest beyond ``MAX_STORED``."""
        now, message_id = self.clock(), self.new_id()
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        file = self.path / f"{stamp}-{message_id[:8]}.eml"
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write(file, message(mail, self.sender or NOBODY, now, message_id))
        for one in self._mails()[:-MAX_STORED]:
            one.unlink(missing_ok=True)
        return file

    def empty(self) -> None:
        """Remove all mails. Other files stay. Raises ``OSError``."""
        for one in self._mails():
            one.unlink(missing_ok=True)

    def check(self) -> None:
        """Raises ``OSError`` if mails cannot be written here. The folder is not made: it would belong to whoever
        checks, and only its owner can write to it."""
        nearest = next(one for one in (self.path, *self.path.parents) if one.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))

    def _mails(self) -> list[Path]:
        """The files that are ours, the oldest first."""
        if not self.path.exists():
            return []
        return sorted(one for one in self.path.iterdir() if _FILE_NAME.fullmatch(one.name))


class MailServerError(Exception):
    """The mail server would not accept a mail. The message says why; it contains no address, no credential and
    nothing that the server sent."""


@frozen
class MailServer:
    reactor: Any
    settings: Smtp
    clock: Callable[[], float] = time.time
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())

    async def send(self, mail: Mail) -> None:
        """Returns when the server has accepted ``mail``. Otherwise raises Twisted's SMTP errors, whose text must not
        be shown: it contains the conversation with the credentials.
        """
        assert self.settings.sender is not None
        written = message(mail, self.settings.sender, self.clock(), self.new_id())
        conversation = start(self._converse(Sender, mail.recipient, written))
        await with_timeout(self.reactor, MAIL_SECONDS, conversation, error.TimeoutError)

    async def reach(self) -> None:
        """Connect, secure the connection and log in as for a mail, then leave, even if ``smtp.sender`` is
        missing. Raises ``MailServerError``."""
        try:
            conversation = start(self._converse(Visitor, self.settings.sender or NOBODY, b""))
            await with_timeout(self.reactor, TIMEOUT_SECONDS, conversation, error.TimeoutError)
        except Exception as fault:
            raise MailServerError(why(fault)) from None

    async def _converse(self, protocol: type[Sender], recipient: str, message: bytes) -> None:
        settings = self.settings
        assert settings.host is not None
        ended: Deferred[Any] = Deferred()
        factory = smtp.ESMTPSenderFactory(
            (settings.username or "").encode(),
            settings.password.reveal().encode() if settings.password else b"",
            envelope(settings.sender or NOBODY).encode("ascii"),
            envelope(recipient).encode("ascii"),
            # The client turns each LF into CRLF itself.
            BytesIO(message.replace(b"\r\n", b"\n")),
            ended,
            retries=0,
            timeout=TIMEOUT_SECONDS,
            requireAuthentication=settings.username is not None,
            requireTransportSecurity=settings.tls == "starttls",
            hostname=settings.host if settings.tls == "starttls" else None,
        )
        factory.noisy = False
        factory.protocol = protocol
        wrapped: Any = factory
        if settings.tls == "tls":
            wrapped = TLSMemoryBIOFactory(optionsForClientTLS(settings.host), True, factory)
        connector = self.reactor.connectTCP(settings.host, settings.port, wrapped, timeout=TIMEOUT_SECONDS)
        try:
            await ended
        finally:
            # Nothing waits any more, so the end of the connection must not be reported.
            factory.sendFinished = True
            connector.disconnect()


class Sender(smtp.ESMTPSender):
    """Twisted's client. Once the mail is done with, an error is not reported but only closes the connection. A reply
    that does not end is rejected."""

    transport: Any
    resp: list[bytes]

    def lineReceived(self, line: bytes) -> None:
        if len(self.resp) < MAX_REPLY_LINES:
            super().lineReceived(line)
        else:
            self.sendError(smtp.SMTPProtocolError(-1, b"a reply without end"))

    def sendError(self, exc: Exception) -> None:
        if self.factory.sendFinished:
            self.transport.abortConnection()
        else:
            super().sendError(exc)


class Visitor(Sender):
    """An SMTP client for ``check``: it connects, logs in, and quits without sending a mail."""

    _logged_in = False

    def getMailFrom(self) -> None:
        """There is no mail, so the client sends QUIT. Whatever the server replies to that, the login has worked."""
        self._logged_in = True

    def smtpState_disconnect(self, code: int, resp: bytes | None) -> None:
        self._finish()
        super().smtpState_disconnect(code, resp)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._finish()
        super().connectionLost(reason)

    def sendError(self, exc: Exception) -> None:
        self._finish()
        super().sendError(exc)

    def _finish(self) -> None:
        if self._logged_in and not self.factory.sendFinished:
            self.factory.sendFinished = True
            self.factory.result.callback(None)


def why(fault: BaseException) -> str:
    """What went wrong, for the operator's log: without an address, a credential, or anything that the server sent."""
    if isinstance(fault, smtp.SMTPConnectError) and fault.__cause__ is not None:
        fault = fault.__cause__
    if isinstance(fault, SSL.Error):
        return _why_no_tls(fault)
    if isinstance(fault, TemplateFault):
        return f"its template fails: {fault.where}"
    if isinstance(fault, OSError) and fault.filename is not None:
        return f"{fault.strerror}: {fault.filename}"
    for kind, words in _REASONS:
        if isinstance(fault, kind):
            return words.format(code=getattr(fault, "code", None), kind=type(fault).__name__)
    return type(fault).__name__


def is_final(fault: BaseException) -> bool:
    """Whether it is of no use to try again: the mail server has rejected the mail for good (RFC 5321 section 4.2.1),
    or its template fails."""
    if isinstance(fault, TemplateFault):
        return True
    return isinstance(fault, smtp.SMTPDeliveryError) and 500 <= fault.code < 600


def _why_no_tls(fault: SSL.Error) -> str:
    if certificates.untrusted(fault):
        return "the mail server's certificate is not trusted"
    return f"no TLS with the mail server: {', '.join(certificates.reasons(fault))}; {_MISMATCH}"
