"""The values authentication is about. Pure: no Twisted, no database."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import field, frozen
from email_validator import SPECIAL_USE_DOMAIN_NAMES, EmailNotValidError, validate_email

from project_service.clocks import timestamp
from project_service.errors import require_text, validation_failed

# The validator's documented switch: a project may live on an intranet, and tests on ``.test``.
SPECIAL_USE_DOMAIN_NAMES.clear()

# The whole address in octets: RFC 5321 section 4.5.3.1.3 less the angle brackets.
EMAIL_MAX_BYTES = 254


def envelope(address: str) -> str:
    """The address with its domain in ASCII, as SMTP without extensions takes it; raises ``EmailNotValidError``."""
    found = validate_email(address, check_deliverability=False, allow_display_name=True)
    return found.ascii_email or found.normalized


def moment(seconds: float) -> datetime:
    """A clock's seconds as an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)


@frozen
class Email:
    """``address`` is what is shown and mailed to; ``key`` is what is compared."""

    address: str
    key: str

    @classmethod
    def parse(cls, text: object) -> Email:
        """An address without regard to DNS (RFC 6531 letters allowed); raises ``validation_failed``."""
        text = require_text("email", text)
        # The validator's own work grows with the length of what it is given.
        if len(text.encode("utf-8", "surrogatepass")) > EMAIL_MAX_BYTES:
            raise validation_failed({"email": f"must be at most {EMAIL_MAX_BYTES} bytes"})
        try:
            found = validate_email(text, check_deliverability=False)
        except (EmailNotValidError, UnicodeError):
            raise validation_failed({"email": "is not an email address"}) from None
        return cls(address=found.normalized, key=folded(found.normalized))

    @classmethod
    def parse_new(cls, text: object) -> Email:
        """As ``parse``, for a new account: letters must be able to reach it.

        The SMTP client has no SMTPUTF8 (RFC 6531), without which what is before the @ is ASCII.
        """
        email = cls.parse(text)
        if not email.address.rpartition("@")[0].isascii():
            raise validation_failed({"email": "must be ASCII before the @"})
        return email


def folded(address: str) -> str:
    """The form in which two addresses are the same: case-folded and composed (Unicode section 3.13).

    Of the domain the letter case alone: ß folded is ss, and as domains (RFC 5891) those are two.
    """
    local, at, domain = address.rpartition("@")
    return unicodedata.normalize("NFC", local.casefold()) + at + domain.lower()


@frozen
class User:
    """A user as everyone who may see him does."""

    id: str
    email: str
    created_at: datetime
    metadata: Mapping[str, Any] = field(factory=dict)

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "email": self.email,
            "created_at": timestamp(self.created_at),
            "metadata": dict(self.metadata),
        }


@frozen
class Account:
    """A user with what only the service and its operator see."""

    user: User
    password_hash: bytes = field(repr=False, default=b"")
    disabled_at: datetime | None = None
    confirmed_at: datetime | None = None
    last_login_at: datetime | None = None

    def view(self) -> dict[str, Any]:
        """What ``/admin/users`` and the command line show; never the hash."""
        return {
            **self.user.view(),
            "disabled": self.disabled_at is not None,
            "email_confirmed": self.confirmed_at is not None,
            "last_login_at": None if self.last_login_at is None else timestamp(self.last_login_at),
        }


def email_of(user: User) -> Email:
    """The stored address, which was checked when it was stored."""
    return Email(user.email, folded(user.email))


@frozen
class SessionInfo:
    """One session in the list a user sees of his own."""

    id: str
    created_at: datetime
    refreshed_at: datetime
    expires_at: datetime
    user_agent: str
    address: str

    def view(self, current: str | None = None) -> dict[str, Any]:
        return {
            "id": self.id,
            "created_at": timestamp(self.created_at),
            "refreshed_at": timestamp(self.refreshed_at),
            "expires_at": timestamp(self.expires_at),
            "user_agent": self.user_agent,
            "address": self.address,
            "current": self.id == current,
        }


@frozen
class IssuedSession:
    """What signup, login and refresh hand out: ``Session`` in ``/openapi.json``."""

    user: User
    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    expires_at: int

    def view(self) -> dict[str, Any]:
        return {
            "user": self.user.view(),
            "access_token": self.access_token,
            "refresh_token": self.refresh_token,
            "expires_at": self.expires_at,
            "token_type": "Bearer",
        }


@frozen
class Origin:
    """Where a request came from, for limits, the session list and the audit."""

    address: str = ""
    user_agent: str = ""
    request_id: str = ""
