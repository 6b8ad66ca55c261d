"""Talks to the mail server by Twisted's SMTP client, to hand over a letter, or to check that it could be done."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from attrs import frozen
from email_validator import EmailNotValidError
from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.internet.ssl import optionsForClientTLS
from twisted.mail import smtp
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from project_service.auth.model import envelope
from project_service.deferreds import start, with_timeout
from project_service.network import tls_errors
from project_service.settings.model import Smtp

# For connecting, for each of the server's answers, and for ``MailServer.reach`` as a whole.
TIMEOUT_SECONDS = 30.0
# For a letter as a whole. Some servers answer a line at a time, each in time, to keep senders waiting for hours.
LETTER_SECONDS = 300.0
# Lines of one answer, all of which are kept until its last.
MOST_LINES = 1000

# The sender where none is set and no letter is sent.
_NOBODY = "nobody@localhost.test"

# What to tell the operator. Twisted's own texts contain the conversation, so they are not used. ``code`` is the
# server's.
_MISMATCH = "are smtp.port and smtp.tls what it speaks?"
_WORDS: tuple[tuple[type[Exception], str], ...] = (
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
    (EmailNotValidError, "smtp.sender is no email address"),
    (UnicodeError, "an address or smtp.host has characters that SMTP does not take"),
    (smtp.SMTPProtocolError, "what answers is no mail server"),
    (smtp.SMTPClientError, "the mail server refuses ({code})"),
)


class Unusable(Exception):
    """The mail server would not take a letter. The message says why; it contains no address, no credential and
    nothing that the server said."""


@frozen
class MailServer:
    reactor: Any
    settings: Smtp

    async def take(self, recipient: str, message: bytes) -> None:
        """Returns when the server has taken ``message``. Otherwise raises Twisted's SMTP errors, whose text must not
        be shown: it contains the conversation with the credentials.
        """
        conversation = start(self._converse(Sender, recipient, message))
        await with_timeout(self.reactor, LETTER_SECONDS, conversation, error.TimeoutError)

    async def reach(self) -> None:
        """Connect, secure the connection and log in as for a letter, then leave, also where ``smtp.sender`` is
        missing. Raises ``Unusable``."""
        try:
            conversation = start(self._converse(Visitor, self.settings.sender or _NOBODY, b""))
            await with_timeout(self.reactor, TIMEOUT_SECONDS, conversation, error.TimeoutError)
        except Exception as fault:
            raise Unusable(why(fault)) from None

    async def _converse(self, protocol: type[Sender], recipient: str, message: bytes) -> None:
        settings = self.settings
        assert settings.host is not None
        ended: Deferred[Any] = Deferred()
        factory = smtp.ESMTPSenderFactory(
            (settings.username or "").encode(),
            settings.password.reveal().encode() if settings.password else b"",
            envelope(settings.sender or _NOBODY).encode("ascii"),
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
            # Nobody waits any more, so the end of the connection must not be reported.
            factory.sendFinished = True
            connector.disconnect()


class Sender(smtp.ESMTPSender):
    """Twisted's client. Once the letter is done with, an error is not reported but only closes the connection. An
    answer that does not end is refused."""

    transport: Any
    resp: list[bytes]

    def lineReceived(self, line: bytes) -> None:
        if len(self.resp) < MOST_LINES:
            super().lineReceived(line)
        else:
            self.sendError(smtp.SMTPProtocolError(-1, b"an answer without end"))

    def sendError(self, exc: Exception) -> None:
        if self.factory.sendFinished:
            self.transport.abortConnection()
        else:
            super().sendError(exc)


class Visitor(Sender):
    """A client that leaves at the point where a letter would begin: it has connected and logged in."""

    _seen = False

    def getMailFrom(self) -> None:
        """There is no letter, so the client sends QUIT. Whatever the server answers to that, the login has worked."""
        self._seen = True

    def smtpState_disconnect(self, code: int, resp: bytes | None) -> None:
        self._left()
        super().smtpState_disconnect(code, resp)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._left()
        super().connectionLost(reason)

    def sendError(self, exc: Exception) -> None:
        self._left()
        super().sendError(exc)

    def _left(self) -> None:
        if self._seen and not self.factory.sendFinished:
            self.factory.sendFinished = True
            self.factory.result.callback(None)


def why(fault: BaseException) -> str:
    """What went wrong, for the operator's log: without an address, a credential, or anything that the server said."""
    if isinstance(fault, smtp.SMTPConnectError) and fault.__cause__ is not None:
        fault = fault.__cause__
    if isinstance(fault, SSL.Error):
        return _why_no_tls(fault)
    for kind, words in _WORDS:
        if isinstance(fault, kind):
            return words.format(code=getattr(fault, "code", None), kind=type(fault).__name__)
    return type(fault).__name__


def is_final(fault: BaseException) -> bool:
    """Whether the mail server has refused the letter for good (RFC 5321 section 4.2.1), so that it is of no use to
    try it again."""
    return isinstance(fault, smtp.SMTPDeliveryError) and 500 <= fault.code < 600


def _why_no_tls(fault: SSL.Error) -> str:
    if tls_errors.untrusted(fault):
        return "the mail server's certificate is not trusted"
    return f"no TLS with the mail server: {', '.join(tls_errors.reasons(fault))}; {_MISMATCH}"
