"""Certificates: of ports with TLS, of servers that the service connects to, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from OpenSSL import SSL, crypto
from OpenSSL.crypto import FILETYPE_ASN1, dump_certificate
from twisted.internet.error import ConnectionLost, VerifyError
from twisted.internet.interfaces import IHalfCloseableProtocol, IOpenSSLContextFactory
from twisted.internet.ssl import Certificate
from twisted.logger import Logger
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from project_service.files import regular


@implementer(IHalfCloseableProtocol)
class HalfClosingTls(BufferingTLSTransport):
    """TLS of which a client may close its own direction alone, as over plain TCP.

    Twisted closes both directions when the client's ``close_notify`` comes. RFC 8446 section 6.1: it ends only what
    the client sends. An ``IHalfCloseableProtocol`` is informed, and closes when it is done. The end of the TCP
    connection alone may be an attacker's (section 6.1 too), and ends both directions as before.

    Twisted has no setting for this, so its internals are overridden (``tests/unit/http/test_twisted_internals.py``).
    """

    _notified = False

    def _tlsShutdownFinished(self, reason: Failure | None) -> None:
        if reason is None and not self.disconnecting and self._half_closing is not None:
            # Ends the loop in which Twisted reads; ``_flushReceiveBIO`` takes it back.
            self._notified = self._lostTLSConnection = True
        else:
            super()._tlsShutdownFinished(reason)

    def _shutdownTLS(self) -> None:
        # Twisted calls this for an answer to ``close_notify`` as well, after which nothing can be sent.
        if self.disconnecting or self._half_closing is None:
            super()._shutdownTLS()

    def _flushReceiveBIO(self) -> None:
        if self._notified:
            self._flushSendBIO()
            return
        super()._flushReceiveBIO()
        self._announce_end()

    def _announce_end(self) -> None:
        if self._notified and self._half_closing is not None:
            self._lostTLSConnection = False
            self._half_closing.readConnectionLost()

    def readConnectionLost(self) -> None:
        if not self._notified:
            socket: Any = self.transport
            socket.connectionLost(Failure(ConnectionLost()))

    def writeConnectionLost(self) -> None:
        """Our direction has been closed (``IHalfCloseableProtocol``). The protocol inside has no need to know."""

    @property
    def _half_closing(self) -> Any:
        return IHalfCloseableProtocol(self.wrappedProtocol, None)


def let_clients_half_close(port: Any) -> None:
    """If ``port`` has TLS, serve its connections by ``HalfClosingTls``."""
    if isinstance(factory := getattr(port, "factory", None), TLSMemoryBIOFactory):
        factory.protocol = HalfClosingTls


def reasons(fault: SSL.Error) -> list[str]:
    """OpenSSL's texts, which contain no address; an empty list if it gave none."""
    # The error holds a list of triples, whose last element is the reason.
    return [one[-1] for one in fault.args[0]] if fault.args else []


def untrusted(fault: SSL.Error) -> bool:
    """Whether the other side's certificate was refused."""
    return "certificate verify failed" in reasons(fault)


_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# The arguments of an endpoint string that name files. A colon or backslash within a value is escaped by a backslash.
_ARGUMENT = re.compile(r":(certKey|privateKey|extraCertChain|dhParameters)=((?:[^:\\]|\\.)*)")


def with_chain(options: Any, endpoint: str) -> Any:
    """``options``, which Twisted made for the string ``endpoint``, with every certificate of its file.

    Certificate authorities hand out a file with the whole chain, and other servers send all of it. Twisted would send
    only the first certificate.
    """
    if not options.extraCertChain:
        certificates = _PEM.findall(_certificate_file(endpoint).read_bytes())
        options.extraCertChain = [Certificate.loadPEM(one).original for one in certificates[1:]]
    return options


def require_regular_files(endpoint: str) -> None:
    """Raises ``OSError`` if the string ``endpoint`` names a pipe or a device, which Twisted would wait for."""
    for path in _files(endpoint).values():
        regular(path)


def argument_naming(endpoint: str, path: str | None) -> str:
    """``certKey``, ``privateKey`` or another argument of the string ``endpoint`` that is ``path``; "" if none is."""
    named = Path(path).resolve() if path else None  # Twisted has made it absolute
    return next((name for name, file in _files(endpoint).items() if file.resolve() == named), "")


def _certificate_file(endpoint: str) -> Path:
    given = _files(endpoint)
    return given.get("certKey") or given.get("privateKey") or Path("server.pem")


def _files(endpoint: str) -> dict[str, Path]:
    named = _ARGUMENT.findall(endpoint)
    return {name: Path(re.sub(r"\\(.)", r"\1", value)) for name, value in named if value}


def why_not(fault: Exception) -> str | None:
    """What is wrong with the certificate or key, in words for an operator; None if ``fault`` is another problem."""
    if isinstance(fault, VerifyError):
        return "the private key is not the certificate's"
    if isinstance(fault, crypto.Error):
        return "its files hold no certificate with its private key in PEM"
    return None


def day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


class Certificates:
    """The certificates of a process's ports: read when a port is opened, and again on SIGHUP for new connections."""

    log = Logger()

    def __init__(self) -> None:
        self._shown: list[_Shown] = []

    def shown_at(self, port: str, options: Any, read: Callable[[], Any]) -> _Shown:
        """A context factory that serves with ``options`` until ``renew`` replaces them by what ``read()`` returns.

        ``port`` is its name in the log.
        """
        self._shown.append(_Shown(port, options, read))
        return self._shown[-1]

    def renew(self) -> list[str]:
        """Read every certificate again; returns a line for each that is new.

        A certificate that cannot be used is logged, and its port goes on with the one before.
        """
        renewed = []
        for shown in self._shown:
            try:
                if shown.renew():
                    renewed.append(f"{shown.port}: good until {day(shown.ends)}")
            except Exception as fault:
                self.log.error(
                    "the certificate at {port} was not taken over, the one before goes on: {why}",
                    port=shown.port,
                    why=why_not(fault) or str(fault) or type(fault).__name__,
                )
        return renewed


@implementer(IOpenSSLContextFactory)
class _Shown:
    """The context factory of one port. Twisted asks it for a context for each connection, which keeps that one."""

    def __init__(self, port: str, options: Any, read: Callable[[], Any]) -> None:
        self.port = port
        self._options = options
        self._read = read

    @property
    def ends(self) -> datetime:
        ends: datetime = self._options.certificate.to_cryptography().not_valid_after_utc
        return ends

    def getContext(self) -> Any:
        return self._options.getContext()

    def renew(self) -> bool:
        """Read the certificate again; True if it differs from the one in use.

        The context of an unchanged certificate is kept, because a new one would invalidate clients' session tickets.
        """
        fresh = self._read()
        if _sent(fresh) == _sent(self._options):
            return False
        fresh.getContext()  # made now, so that a bad certificate raises here and not in somebody's handshake
        self._options = fresh
        return True


def _sent(options: Any) -> list[bytes]:
    return [dump_certificate(FILETYPE_ASN1, one) for one in (options.certificate, *options.extraCertChain)]
