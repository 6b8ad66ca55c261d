"""The mail server, spoken to by Twisted's own SMTP client: to hand a letter over, or to see that one could be."""

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
from project_service.settings import Smtp

TIMEOUT_SECONDS = 30.0

# In words of ours, because Twisted's hold the conversation; ``code`` is the server's.
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
    """The mail server would take no letter; the message says why, without an address, a credential or its words."""


@frozen
class MailServer:
    """``timeout`` is for connecting, for each answer to a letter, and for a whole ``reach``."""

    reactor: Any
    settings: Smtp
    timeout: float = TIMEOUT_SECONDS

    async def take(self, recipient: str, message: bytes) -> None:
        """Returns when the server has taken ``message``; raises Twisted's SMTP errors otherwise.

        Their text holds the conversation with the credentials: it is not to be shown.
        """
        await self._converse(Sender, recipient, message)

    async def reach(self) -> None:
        """Connect, secure the connection, log in as for a letter, and leave. Raises ``Unusable``."""
        assert self.settings.sender is not None
        conversation = start(self._converse(Visitor, self.settings.sender, b""))
        try:
            await with_timeout(self.reactor, self.timeout, conversation, _late)
        except Exception as fault:
            raise Unusable(why(fault)) from None

    async def _converse(self, protocol: type[Sender], recipient: str, message: bytes) -> None:
        settings = self.settings
        assert settings.host is not None
        assert settings.sender is not None
        ended: Deferred[Any] = Deferred()
        factory = smtp.ESMTPSenderFactory(
            (settings.username or "").encode(),
            settings.password.reveal().encode() if settings.password else b"",
            envelope(settings.sender).encode("ascii"),
            envelope(recipient).encode("ascii"),
            # The client itself makes each LF a CRLF.
            BytesIO(message.replace(b"\r\n", b"\n")),
            ended,
            retries=0,
            timeout=self.timeout,
            requireAuthentication=settings.username is not None,
            requireTransportSecurity=settings.tls == "starttls",
            hostname=settings.host if settings.tls == "starttls" else None,
        )
        factory.noisy = False
        factory.protocol = protocol
        wrapped: Any = factory
        if settings.tls == "tls":
            wrapped = TLSMemoryBIOFactory(optionsForClientTLS(settings.host), True, factory)
        connector = self.reactor.connectTCP(settings.host, settings.port, wrapped, timeout=self.timeout)
        try:
            await ended
        finally:
            # Nobody waits any more, so that the end of the connection is nothing to report.
            factory.sendFinished = True
            connector.disconnect()


class Sender(smtp.ESMTPSender):
    """Once the sending has ended, a connection that does not end with it is no news to anybody."""

    transport: Any

    def sendError(self, exc: Exception) -> None:
        if self.factory.sendFinished:
            self.transport.abortConnection()
        else:
            super().sendError(exc)


class Visitor(Sender):
    """Leaves where a letter would begin: connected, secured and logged in as whoever brings one."""

    _seen = False

    def getMailFrom(self) -> None:
        """No letter, upon which the client sends QUIT. Whatever a server says to that, it has let us in."""
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


def _late() -> Exception:
    return error.TimeoutError()


def why(fault: BaseException) -> str:
    """What went wrong with a letter or server, for the operator: no address, no credential, none of their words."""
    if isinstance(fault, smtp.SMTPConnectError) and fault.__cause__ is not None:
        fault = fault.__cause__
    if isinstance(fault, SSL.Error):
        return _why_no_tls(fault)
    for kind, words in _WORDS:
        if isinstance(fault, kind):
            return words.format(code=getattr(fault, "code", None), kind=type(fault).__name__)
    return type(fault).__name__


def _why_no_tls(fault: SSL.Error) -> str:
    """OpenSSL's errors are triples; the last is the reason."""
    reasons = ", ".join(one[-1] for one in fault.args[0]) if fault.args else ""
    if "certificate verify failed" in reasons:
        return "the mail server's certificate is not trusted"
    return f"no TLS with the mail server: {reasons}; {_MISMATCH}"
