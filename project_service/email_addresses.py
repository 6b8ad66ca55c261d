"""E-mail addresses, with one set of rules for the settings and for accounts."""

from __future__ import annotations

from email_validator import SPECIAL_USE_DOMAIN_NAMES, ValidatedEmail, validate_email

# This is the documented way to allow special domains: a project may be on an intranet, and tests use ``.test``.
SPECIAL_USE_DOMAIN_NAMES.clear()


def validated(address: str, *, display_name: bool = False) -> ValidatedEmail:
    """The parsed address; letters outside ASCII are allowed (RFC 6531), and DNS is not asked. With ``display_name``
    a name may stand before it. Raises ``EmailNotValidError``, a ``ValueError``."""
    return validate_email(address, check_deliverability=False, allow_display_name=display_name)


def envelope(address: str) -> str:
    """The address, without a name before it, and with its domain in ASCII, as SMTP needs it without extensions.

    Raises ``EmailNotValidError``. The part before the @ may still be outside ASCII.
    """
    parsed = validated(address, display_name=True)
    return parsed.ascii_email or parsed.normalized
