"""The mail server: mails are handed to it by Python's SMTP client, which blocks, in threads of their own."""

from __future__ import annotations

import hmac
import re
import smtplib
import socket
import ssl
import time
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from threading import Lock, Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

from attrs import Factory, define, field, frozen
from email_validator import EmailNotValidError
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.python.failure import Failure

from project_service.auth.mail_message import message
from project_service.auth.mail_templates import Mail
from project_service.email_addresses import envelope, validated
from project_service.lifecycle import start, with_timeout
from project_service.settings.model import Secret, Smtp

# For each address of ``smtp.host`` that is tried.
CONNECT_SECONDS = 10.0
# For each of the server's replies but those to DATA, and for ``MailServer.reach`` as a whole.
TIMEOUT_SECONDS = 30.0
# For a mail as a whole. Some servers reply a line at a time, each in time, to keep senders waiting for hours.
MAIL_SECONDS = 300.0
# Bytes of one line of a reply, and lines of one reply, all of which are kept until its last.
MAX_REPLY_LINE, MAX_REPLY_LINES = 8192, 1000
# Conversations at a time.
MAX_CONCURRENT = 4
# How many bytes a server's words may have to be shown, and how many characters of them are.
MAX_WORDS, MAX_SHOWN = 4000, 300
# So many characters of a server's words that are also in the mail, one after the other, are not shown.
MIN_QUOTED = 12
# The sender where none is set and no mail leaves this machine.
NOBODY = "nobody@localhost.test"

_REPLY = re.compile(rb"[2-5]\d\d([ -]|\r?\n|$)")
_MISMATCH = "are smtp.port and smtp.tls what it speaks?"
_LATE = f"the mail server does not answer in time; {_MISMATCH}"
_NO_SERVER = "what answers is not a mail server"
_CLOSED = "the mail server closes the connection"
# OpenSSL's codes for a certificate of another name or address.
_OTHER_NAME = (62, 64)
# What to tell the operator. The texts of these exceptions may contain the conversation, so they are not used.
_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, _LATE),
    (socket.gaierror, "the mail server cannot be reached: smtp.host has no address"),
    (ConnectionRefusedError, "the mail server cannot be reached: connection refused"),
    (smtplib.SMTPServerDisconnected, _CLOSED),
    (ConnectionError, _CLOSED),
    (ssl.SSLEOFError, _CLOSED),
    (smtplib.SMTPNotSupportedError, "the mail server does not offer STARTTLS"),
    (EmailNotValidError, "smtp.sender or the recipient is not an e-mail address"),
    (UnicodeError, "an address or smtp.host has characters that SMTP does not accept"),
)

T = TypeVar("T")


class MailServerError(Exception):
    """The mail server did not accept a mail. The message says why, with the server's code and words; it contains no
    address of a user, no credential, and nothing of the mail. With ``is_final`` it is of no use to try again."""

    def __init__(self, reason: str, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class Closed(MailServerError):
    """The mail server closes the connection."""

    def __init__(self) -> None:
        super().__init__(_CLOSED)


class BeginAgain(Exception):
    """The mail server closes the connection because of something that the next conversation does without."""


# How the end of a connection is noticed, by the next reply or the next command.
_ENDS = (Closed, smtplib.SMTPServerDisconnected, ConnectionError, ssl.SSLEOFError)


@frozen
class MailServer:
    """``public_url`` is that of the service, from which the name is taken by which it introduces itself."""

    reactor: Any
    settings: Smtp
    public_url: str | None = None
    clock: Callable[[], float] = time.time
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())
    _threads: Threads = field(
        init=False, default=Factory(lambda self: Threads(self.reactor, MAX_CONCURRENT), takes_self=True)
    )

    async def send(self, mail: Mail) -> None:
        """Returns when the server has accepted ``mail``. Otherwise raises ``MailServerError``."""
        await self._converse(mail, MAIL_SECONDS)

    async def reach(self) -> None:
        """Connect, secure the connection and log in as for a mail, then leave, even if ``smtp.sender`` is
        missing. Raises ``MailServerError``."""
        await self._converse(None, TIMEOUT_SECONDS)

    async def _converse(self, mail: Mail | None, seconds: float) -> None:
        line = Line()
        conversing = start(self._threads.run(lambda: self._talk(line, mail), line.cut))
        try:
            await with_timeout(self.reactor, seconds, conversing, lambda: MailServerError(_LATE))
        except MailServerError:
            # A mail that has been accepted must not be sent again.
            if not line.is_done:
                raise

    def _talk(self, line: Line, mail: Mail | None) -> None:
        """Blocks."""
        settings = self.settings
        private = Private.of(settings, mail)
        try:
            sender = settings.sender or NOBODY
            letter = None
            if mail is not None:
                content = message(mail, sender, self.clock(), self.new_id())
                # As it looks on its way.
                private.texts.append(content.partition(b"\r\n\r\n")[2].decode("ascii"))
                letter = (_ascii(sender), _ascii(mail.recipient), content)
            helo, refused = helo_name(settings, self.public_url), dict[str, str]()
            while not line.is_done:
                client = Client(line, settings, helo, private, refused)
                with suppress(BeginAgain), closing(client):
                    client.begin()
                    if letter is not None:
                        client.submit(*letter)
                    line.is_done = True
                    client.leave()
        except (OSError, smtplib.SMTPException, ValueError) as fault:
            raise MailServerError(why_not(fault)) from None
        finally:
            line.close()


def helo_name(settings: Smtp, public_url: str | None) -> str | None:
    """The name by which the service introduces itself. None stands for the full name of this host."""
    if settings.helo is not None:
        return settings.helo
    host = urlsplit(public_url or "").hostname or ""
    addresses = [f"postmaster@{host}", *([settings.sender] if settings.sender is not None else [])]
    for address in addresses:
        # This is how the host of an internal address, such as localhost or 10.0.0.1, is told from a domain.
        with suppress(EmailNotValidError):
            return validated(address, display_name=True).ascii_domain
    return None


def _ascii(address: str) -> str:
    envelope(address).encode("ascii")
    return envelope(address)


class Threads:
    """Threads for what waits for a mail server, a few at a time, apart from those in which all else is done. They are
    daemons: the process ends without waiting for them."""

    def __init__(self, reactor: Any, count: int) -> None:
        self._reactor = reactor
        self._free = DeferredSemaphore(count)

    async def run(self, function: Callable[[], T], cut: Callable[[], None]) -> T:
        """What ``function`` returns. Cancelling calls ``cut``, which has to make ``function`` end soon; nobody waits
        for that, but its thread counts until then."""
        await self._free.acquire()
        ended: Deferred[T] = Deferred(lambda _: cut())

        def work() -> None:
            outcome: T | Failure
            try:
                outcome = function()
            except Exception:
                outcome = Failure()
            self._reactor.callFromThread(self._ended, ended, outcome)

        try:
            Thread(target=work, name="mail", daemon=True).start()
        except RuntimeError:
            self._free.release()
            raise
        return await ended

    def _ended(self, ended: Deferred[T], outcome: T | Failure) -> None:
        self._free.release()
        if not ended.called:
            ended.callback(outcome)  # a Failure handed to callback() runs the errbacks


class Line:
    """The connection of one conversation, as far as other threads are concerned: they may cut it, which ends whatever
    waits for it. ``is_done`` tells that the server has done what was asked for."""

    def __init__(self) -> None:
        self.is_done = False
        self._lock = Lock()
        self._is_cut = False
        self._socket: socket.socket | None = None

    def is_on(self, connection: socket.socket) -> None:
        """Call this for a new connection. Raises ``ConnectionError`` if it has been cut before."""
        with self._lock:
            if self._is_cut:
                raise ConnectionAbortedError
            if self._socket is not None:
                self._socket.close()
            # Another descriptor of the same connection, since TLS takes the socket itself over.
            self._socket = connection.dup()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


@define
class Private:
    """What must not be shown of a server's words: ``secrets`` wherever they are, and pieces of ``texts``."""

    secrets: list[str]
    texts: list[str]

    @classmethod
    def of(cls, settings: Smtp, mail: Mail | None) -> Private:
        secrets = [settings.username or "", (settings.password or Secret("")).reveal()]
        if mail is None:
            return cls(secrets, [])
        with suppress(EmailNotValidError):
            secrets.append(envelope(mail.recipient))
        return cls([*secrets, mail.recipient], [mail.subject, mail.text, mail.html or ""])

    def add_sent(self, answer: bytes, sent: str) -> None:
        """Add what was sent to log in."""
        self.secrets += [answer.decode("utf-8", "replace"), sent]
        self.texts.append(sent)

    def hidden_in(self, words: str) -> str:
        """``words`` with "…" in place of what is private. Capitals, spaces, and what cannot be seen make no
        difference."""
        places = [place for place, character in enumerate(words) if _is_seen(character)]
        compact = _compact(words)
        found: set[int] = set()
        for secret in filter(None, map(_compact, self.secrets)):
            for match in re.finditer(f"(?={re.escape(secret)})", compact):
                found.update(range(match.start(), match.start() + len(secret)))
        pieces = list(_pieces(compact))
        known = set(pieces)
        quoted = {piece for text in self.texts for piece in _pieces(_compact(text)) if piece in known}
        for first, piece in enumerate(pieces):
            if piece in quoted:
                found.update(range(first, first + MIN_QUOTED))
        hidden = {places[one] for one in found}
        shown = "".join("…" if place in hidden else character for place, character in enumerate(words))
        return re.sub(r"…[…\s]*…", "…", shown)


def _pieces(text: str) -> Iterator[str]:
    """Every piece of ``text`` of ``MIN_QUOTED`` characters, the least that is hidden, from its beginning to its
    end."""
    return (text[place : place + MIN_QUOTED] for place in range(len(text) - MIN_QUOTED + 1))


def _compact(text: str) -> str:
    """What is seen of ``text``, character by character in lower case."""
    return "".join(_lower(one) for one in text if _is_seen(one))


def _is_seen(character: str) -> bool:
    return character.isprintable() and not character.isspace()


def _lower(character: str) -> str:
    # A few capitals have two small letters.
    return character.lower() if len(character.lower()) == 1 else character


class Client(smtplib.SMTP):
    """A conversation with the mail server, in which every step has a timeout. Its methods raise ``MailServerError``,
    ``OSError``, ``ValueError`` and the library's exceptions. The library looks after the rest of the protocol, such
    as HELO for servers without EHLO, capitals, and lines that begin with a dot.

    ``refused`` has what is done without, with the server's reply to it: EHLO and ways to log in. It outlasts a
    conversation that ends with ``BeginAgain``.
    """

    def __init__(
        self, line: Line, settings: Smtp, helo: str | None, private: Private, refused: dict[str, str]
    ) -> None:
        # None makes the library ask the system for the name of this host.
        super().__init__(local_hostname=helo, timeout=TIMEOUT_SECONDS)
        assert settings.host is not None
        # The name that the certificate has to have. The library knows it only if it connects at once.
        self._host = settings.host
        self._line, self._settings, self._private, self._refused = line, settings, private, refused

    def begin(self) -> None:
        """Connect, secure the connection, and log in."""
        assert self._settings.host is not None
        self._expect("to talk", *self.connect(self._settings.host, self._settings.port))
        self._greet()
        if self._settings.tls == "starttls":
            context = self._tls()
            try:
                self.starttls(context=context)
            except smtplib.SMTPResponseException as fault:
                raise self._refusal("STARTTLS", fault.smtp_code, _bytes(fault.smtp_error)) from None
            self._greet()
        if self._settings.username is not None:
            self._log_in()

    def submit(self, sender: str, recipient: str, content: bytes) -> None:
        """Returns when the server has accepted the mail."""
        self._expect("the sender", *self.docmd("MAIL", f"FROM:<{sender}>"), may_be_final=True)
        self._expect("the recipient", *self.docmd("RCPT", f"TO:<{recipient}>"), may_be_final=True)
        assert self.sock is not None
        # Servers look at the whole mail before they answer. If that took longer than we wait, and the server accepted
        # the mail then, it would be sent again.
        self.sock.settimeout(MAIL_SECONDS)
        try:
            code, words = self.data(content)
        except smtplib.SMTPDataError as fault:
            code, words = fault.smtp_code, _bytes(fault.smtp_error)
        self._expect("the e-mail", code, words, may_be_final=True)

    def leave(self) -> None:
        """Say good-bye. Whatever the server replies, it has done what was asked for."""
        with suppress(OSError, smtplib.SMTPException, MailServerError):
            if self.sock is not None:
                self.sock.settimeout(TIMEOUT_SECONDS)
            self.docmd("QUIT")

    def getreply(self) -> tuple[int, bytes]:
        """As the library's, but a reply cannot be endless, and of what is no reply nothing is taken."""
        if self.file is None:
            assert self.sock is not None
            self.file = self.sock.makefile("rb")
        lines: list[bytes] = []
        while len(lines) < MAX_REPLY_LINES:
            line = self.file.readline(MAX_REPLY_LINE + 1)
            if not line:
                raise Closed
            if len(line) > MAX_REPLY_LINE or not _REPLY.match(line):
                break
            lines.append(line[4:].strip())
            if line[3:4] != b"-":
                return int(line[:3]), b"\n".join(lines)
        raise MailServerError(_NO_SERVER)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """The library calls this to connect. Its own subclass for TLS overrides it too."""
        connection = socket.create_connection((host, port), CONNECT_SECONDS)
        try:
            self._line.is_on(connection)
            connection.settimeout(timeout)
            if self._settings.tls == "tls":
                return self._tls().wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise
        return connection

    def _tls(self) -> ssl.SSLContext:
        """How the client speaks TLS: it trusts ``smtp.ca_file``, else the system's authorities, and requires the name
        of ``smtp.host``."""
        try:
            context = ssl.create_default_context(cafile=self._settings.ca_file)
        except OSError as fault:
            raise MailServerError(f"smtp.ca_file cannot be used: {fault.strerror}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def _greet(self) -> None:
        try:
            if "EHLO" in self._refused:
                self._expect("EHLO and HELO", *self.helo())
            self.ehlo_or_helo_if_needed()
        except smtplib.SMTPHeloError as fault:
            raise self._refusal("EHLO and HELO", fault.smtp_code, _bytes(fault.smtp_error)) from None
        except _ENDS:
            # Some servers without EHLO close the connection. Without it there is neither TLS nor a way to log in.
            if (
                self._settings.tls == "starttls"
                or self._settings.username is not None
                or "EHLO" in self._refused
            ):
                raise
            self._refused["EHLO"] = _CLOSED
            raise BeginAgain from None

    def _log_in(self) -> None:
        """By the first of the server's methods that it accepts. Some offer methods that they refuse to everybody, and
        some close the connection then."""
        if self._settings.password is None:
            raise MailServerError("smtp.password is missing")
        offered = self.esmtp_features.get("auth", "").upper().split()
        methods = [one for one in _METHODS if one in offered]
        was_refused = False
        for method in [one for one in methods if one not in self._refused]:
            try:
                code, words = self._authenticate(method)
            except _ENDS:
                if not was_refused:
                    self._refused[method] = f"{method}: {_CLOSED}"
                raise BeginAgain from None
            if 200 <= code < 300:
                return
            was_refused = True
            self._refused[method] = f"{method}: {self._shown(code, words)}"
        if not methods:
            raise MailServerError("the mail server offers no way to log in")
        replies = "; ".join(self._refused[one] for one in methods)
        raise MailServerError(f"the mail server refuses the user name or the password ({replies})")

    def _authenticate(self, method: str) -> tuple[int, bytes]:
        """The server's last reply to one method (RFC 4954)."""
        username = (self._settings.username or "").encode()
        password = (self._settings.password or Secret("")).reveal().encode()
        initial, answers = _METHODS[method](username, password)
        code, words = self.docmd("AUTH", f"{method} {self._encoded(initial)}" if initial else method)
        for answer in answers:
            if code != _CHALLENGE:
                break
            try:
                given = answer(b64decode(words))
            except ValueError:  # no base64, or a system that does not allow MD5
                break
            code, words = self.docmd(self._encoded(given))
        # A server that asks for more than the method has is told to stop asking.
        return self.docmd("*") if code == _CHALLENGE else (code, words)

    def _encoded(self, answer: bytes) -> str:
        sent = b64encode(answer).decode("ascii")
        self._private.add_sent(answer, sent)
        return sent

    def _expect(self, what: str, code: int, words: bytes, may_be_final: bool = False) -> None:
        """Raises ``MailServerError`` unless the server agrees; ``what`` is what it refuses otherwise. Only the first
        digit of ``code`` counts (RFC 5321 section 4.3.2)."""
        if not 200 <= code < 300:
            raise self._refusal(what, code, words, may_be_final and 500 <= code < 600)

    def _refusal(self, what: str, code: int, words: bytes, is_final: bool = False) -> MailServerError:
        return MailServerError(f"the mail server refuses {what} ({self._shown(code, words)})", is_final)

    def _shown(self, code: int, words: bytes) -> str:
        """The server's code and words on one line, without what is private."""
        # Nothing is shown of very long texts. A part of one could end in the middle of a secret.
        text = words.decode("utf-8", "replace").replace("\n", " ") if len(words) <= MAX_WORDS else "…"
        shown = self._private.hidden_in(text)[:MAX_SHOWN]
        return f"{code} {''.join(one if one.isprintable() else '?' for one in shown)}".strip()


_CHALLENGE = 334
# What is sent with the command, and how each of the server's challenges is answered.
_Answers = tuple[bytes, list[Callable[[bytes], bytes]]]


def _cram_md5(username: bytes, password: bytes) -> _Answers:
    """The answers of CRAM-MD5 (RFC 2195)."""

    def answer(challenge: bytes) -> bytes:
        return b"%b %b" % (username, hmac.new(password, challenge, "md5").hexdigest().encode())

    return b"", [answer]


def _plain(username: bytes, password: bytes) -> _Answers:
    """The answer of PLAIN, which is sent at once (RFC 4616)."""
    return b"\0%b\0%b" % (username, password), []


def _login(username: bytes, password: bytes) -> _Answers:
    """The answers of LOGIN, which is in no RFC, but in many servers."""
    return b"", [lambda _: username, lambda _: password]


# By name; first the one that does not show the password.
_METHODS: dict[str, Callable[[bytes, bytes], _Answers]] = {
    "CRAM-MD5": _cram_md5,
    "PLAIN": _plain,
    "LOGIN": _login,
}


def why_not(fault: BaseException) -> str:
    """What went wrong, for the operator's log: without an address, a credential, or anything that the server sent."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        if fault.verify_code in _OTHER_NAME:
            return "the mail server's certificate is for another name than smtp.host"
        return f"the mail server's certificate is not trusted: {fault.verify_message}"
    for kind, words in _REASONS:
        if isinstance(fault, kind):
            return words
    if isinstance(fault, ssl.SSLError):
        reason = (fault.reason or type(fault).__name__).lower().replace("_", " ")
        return f"no TLS with the mail server: {reason}; {_MISMATCH}"
    if isinstance(fault, OSError) and fault.strerror:
        return f"the mail server cannot be reached: {fault.strerror}"
    return type(fault).__name__


def _bytes(words: bytes | str) -> bytes:
    return words if isinstance(words, bytes) else words.encode()
