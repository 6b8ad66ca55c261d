"""What ports with TLS show: read when they are opened and again on SIGHUP, for the connections that come then."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from OpenSSL import crypto
from OpenSSL.crypto import FILETYPE_ASN1, dump_certificate
from twisted.internet.error import VerifyError
from twisted.internet.interfaces import IOpenSSLContextFactory
from twisted.internet.ssl import Certificate
from twisted.logger import Logger
from zope.interface import implementer

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# Colons and backslashes in an endpoint's values have a backslash before them.
_ARGUMENT = re.compile(r":(certKey|privateKey)=((?:[^:\\]|\\.)*)")


def with_chain(options: Any, endpoint: str) -> Any:
    """Twisted's options for ``endpoint``, so that every certificate of its file is sent, as other servers do with
    what certificate authorities call the full chain; Twisted would send the first."""
    if not options.extraCertChain:
        certificates = _PEM.findall(_certificate_file(endpoint).read_bytes())
        options.extraCertChain = [Certificate.loadPEM(one).original for one in certificates[1:]]
    return options


def _certificate_file(endpoint: str) -> Path:
    given = dict(_ARGUMENT.findall(endpoint))
    return Path(re.sub(r"\\(.)", r"\1", given.get("certKey") or given.get("privateKey") or "server.pem"))


def why_not(fault: Exception) -> str | None:
    """What is wrong with what the files hold, where ``fault`` says so."""
    if isinstance(fault, VerifyError):
        return "the private key is not the certificate's"
    if isinstance(fault, crypto.Error):
        return "its files hold no certificate with its private key in PEM"
    return None


def day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


class Certificates:
    """Those of the ports of one process."""

    log = Logger()

    def __init__(self) -> None:
        self._shown: list[_Shown] = []

    def shown_at(self, port: str, options: Any, read: Callable[[], Any]) -> _Shown:
        """``options`` for a port with that name in the log, and what ``read`` gives when they are renewed."""
        self._shown.append(_Shown(port, options, read))
        return self._shown[-1]

    def renew(self) -> list[str]:
        """Read all of them again; what is new, in words. One that cannot be used is logged, and changes nothing."""
        found = []
        for shown in self._shown:
            try:
                if shown.renew():
                    found.append(f"{shown.port}: good until {day(shown.ends)}")
            except Exception as fault:
                self.log.error(
                    "the certificate at {port} was not taken over, the one before goes on: {why}",
                    port=shown.port,
                    why=why_not(fault) or str(fault) or type(fault).__name__,
                )
        return found


@implementer(IOpenSSLContextFactory)
class _Shown:
    """A context factory as Twisted's ports have it: a connection asks it for the context, and keeps what it got."""

    def __init__(self, port: str, options: Any, read: Callable[[], Any]) -> None:
        self.port = port
        self._options = options
        self._read = read

    @property
    def ends(self) -> datetime:
        found: datetime = self._options.certificate.to_cryptography().not_valid_after_utc
        return found

    def getContext(self) -> Any:
        return self._options.getContext()

    def renew(self) -> bool:
        """Whether there is a new one now. What has not changed is left alone, and with it the clients' tickets."""
        fresh = self._read()
        if _sent(fresh) == _sent(self._options):
            return False
        fresh.getContext()  # made here, where what is wrong with it can still be said
        self._options = fresh
        return True


def _sent(options: Any) -> list[bytes]:
    return [dump_certificate(FILETYPE_ASN1, one) for one in (options.certificate, *options.extraCertChain)]
