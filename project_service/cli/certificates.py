"""What ``check`` says of the certificates that the service would serve with."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from OpenSSL import crypto
from twisted.internet.error import VerifyError

from project_service.cli.frame import Failed
from project_service.ports import PROXIED, described
from project_service.settings import Settings


def secured(settings: Settings) -> list[str]:
    """The endpoints at which TLS ends in the service."""
    listened = (*settings.server.listen, settings.server.admin_listen or "")
    return [one for one in listened if one.removeprefix(PROXIED).startswith("ssl:")]


def certificate_of(reactor: Any, endpoint: str, now: datetime) -> str:
    """Until when the certificate of an ``ssl:`` endpoint is good; raises ``Failed`` for one that clients refuse."""
    try:
        # Nothing is opened; the endpoint is only asked for what it was described with.
        options: Any = described(reactor, endpoint.removeprefix(PROXIED))._sslContextFactory
    except crypto.Error:
        raise Failed("its files hold no certificate with its private key in PEM") from None
    except VerifyError:
        raise Failed("the private key is not the certificate's") from None
    certificate = options.certificate.to_cryptography()
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now <= ends:
        raise Failed(f"good from {_day(begins)} to {_day(ends)} only, and it is {_day(now)}")
    return f"good until {_day(ends)}"


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
