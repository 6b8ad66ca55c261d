"""Checks the certificates that the service would use, for ``project-service check``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from project_service.cli.frame import Failed
from project_service.network.certificates import day, why_not
from project_service.network.ports import PROXIED, TLS, endpoint_from
from project_service.settings.model import Settings


def secured(settings: Settings) -> list[str]:
    """The endpoints that speak TLS in the service itself."""
    listened = (*settings.server.listen, settings.server.admin_listen or "")
    return [one for one in listened if one.removeprefix(PROXIED).startswith(TLS)]


def certificate_of(reactor: Any, endpoint: str, now: datetime) -> str:
    """Says until when the certificate of an ``ssl:`` endpoint is valid. Raises ``Failed`` for one that clients would
    refuse."""
    try:
        # The endpoint is not opened, only made, for what it has read of the description.
        options: Any = endpoint_from(reactor, endpoint.removeprefix(PROXIED))._sslContextFactory
    except Exception as fault:
        why = why_not(fault)
        if why is None:
            raise
        raise Failed(why) from None
    certificate = options.certificate.to_cryptography()
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now <= ends:
        raise Failed(f"good from {day(begins)} to {day(ends)} only, and it is {day(now)}")
    return f"good until {day(ends)}"
