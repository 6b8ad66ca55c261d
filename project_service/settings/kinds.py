"""Kinds of settings. A kind is a function that converts a value from TOML or the environment, or raises
``ValueError`` with the reason.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from attrs import frozen

from project_service.files import regular
from project_service.http import head
from project_service.whole_numbers import from_digits

Kind = Callable[[Any], Any]

# In characters: PostgREST's reference, "jwt-secret".
_LEAST_SECRET = 32


@frozen(repr=False, str=False)
class Secret:
    """A value that prints as ``***``. ``reveal()`` returns it."""

    _value: str

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    if "\0" in value:
        raise ValueError("must not contain NUL")
    if not (value.isascii() or _is_unicode(value)):
        raise ValueError("must be UTF-8")
    return value


def _is_unicode(value: str) -> bool:
    """False for a value from the environment whose bytes are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def secret(value: Any) -> Secret:
    return Secret(text(value))


def shared_secret(value: Any) -> Secret:
    """A secret that signs tokens. A shorter one could be guessed with the help of a token."""
    if len(text(value)) < _LEAST_SECRET:
        raise ValueError(f"must have at least {_LEAST_SECRET} characters")
    return Secret(value)


def or_file(kind: Kind) -> Kind:
    """As ``kind``, but ``@name`` stands for the content of a file, as with PostgREST. The reason contains neither
    name nor content."""

    def read(value: Any) -> Any:
        if not isinstance(value, str) or not value.startswith("@"):
            return kind(value)
        try:
            held = regular(Path(value.removeprefix("@"))).read_text("utf-8")
        except OSError as fault:
            raise ValueError(f"names a file by its @ that cannot be read: {fault.strerror}") from None
        except ValueError:
            raise ValueError("names a file by its @ that is not UTF-8") from None
        return kind(held.rstrip("\r\n"))

    return read


def flag(value: Any) -> bool:
    """A boolean; in the environment ``true`` or ``false``."""
    if isinstance(value, bool):
        return value
    found = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("must be true or false")
    return found


def whole(least: int, most: int | None = None) -> Kind:
    def read(value: Any) -> int:
        if isinstance(value, str):
            value = from_digits(value.removeprefix("+"))
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("must be a whole number")
        if value < least or (most is not None and value > most):
            raise ValueError(f"must be {_range(least, most)}")
        return value

    return read


def _range(least: int, most: int | None) -> str:
    return f"at least {least}" if most is None else f"from {least} to {most}"


# The largest integer in PostgreSQL. In seconds it is 68 years, which can safely be added to a date.
MOST_WHOLE = 2**31 - 1
# PostgreSQL and the reactor count milliseconds in 32 bits, so this is the longest time in seconds.
MOST_SECONDS = 2147483


def seconds(least: float = 0.0) -> Kind:
    def read(value: Any) -> float:
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError("must be a number of seconds")
        if not least <= value <= MOST_SECONDS:
            raise ValueError(f"must be from {least:g} to {MOST_SECONDS} seconds")
        return float(value)

    return read


def choice(*allowed: str) -> Kind:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return str(value)

    return read


def optional(kind: Kind) -> Kind:
    """As ``kind``, but no value, or an empty one, is None."""

    def read(value: Any) -> Any:
        return None if value is None or value == "" else kind(value)

    return read


def several(kind: Kind, least: int = 0) -> Kind:
    """A list of ``kind``; in the environment a JSON array."""

    def read(value: Any) -> tuple[Any, ...]:
        value = from_json(value, "a list")
        if not isinstance(value, list | tuple):
            raise ValueError("must be a list")
        if len(value) < least:
            raise ValueError("must not be empty")
        return tuple(kind(item) for item in value)

    return read


def matching(pattern: str, what: str) -> Kind:
    """A text that matches ``pattern`` as a whole. ``what`` says in the reason what it must be."""
    whole_of = re.compile(rf"(?:{pattern})\Z")

    def read(value: Any) -> str:
        if not whole_of.match(text(value)):
            raise ValueError(f"must be {what}")
        return str(value)

    return read


# Values that become part of a header in requests to the store.
word = matching(r"[!-~]+", "printable ASCII without blanks")
# All names that stores have ever accepted, some with a tenant before a colon. The rules for new buckets are stricter,
# and the store's business.
store_bucket = matching(
    r"[A-Za-z0-9][A-Za-z0-9._:-]{2,254}", "the name of a bucket in the store, such as project-service"
)
header_name = matching(rf"[{head.TCHAR}]+", "the name of a header")


def pem_file(value: Any) -> str:
    """The path of a file with certificates in PEM."""
    try:
        held = regular(Path(text(value))).read_bytes()
    except OSError as fault:
        raise ValueError(f"names a file that cannot be read: {fault.strerror}") from None
    if b"-----BEGIN CERTIFICATE-----" not in held:
        raise ValueError("names a file that holds no certificate in PEM")
    return str(value)


def mailbox(value: Any) -> str:
    """An email address, with or without a name before it."""
    from project_service.auth.values import envelope

    try:
        address = envelope(text(value))
    except ValueError:
        raise ValueError(
            "must be an email address, such as Example <no-reply@example.com>, "
            'or with any other name in quotes "Söhne & Co." <no-reply@example.com>'
        ) from None
    # The SMTP client does not support SMTPUTF8 (RFC 6531).
    if not address.isascii():
        raise ValueError("must be ASCII before the @")
    return str(value)


def claim_path(value: Any) -> str:
    from project_service.role_claim import parse_role_claim

    try:
        parse_role_claim(text(value))
    except ValueError as fault:
        raise ValueError(f"is {fault}") from None
    return str(value)


def listed(kind: Kind, least: int = 0) -> Kind:
    """As ``several``, but one string with commas is allowed too, as with PostgREST."""
    read = several(kind, least)

    def listed_or_read(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str) and not value.lstrip().startswith("["):
            value = [one.strip() for one in value.split(",") if one.strip()]
        return tuple(read(value))

    return listed_or_read


def own_schema(value: Any) -> str:
    """A schema that may be exposed, which PostgreSQL's own may not."""
    if text(value) in ("pg_catalog", "information_schema"):
        raise ValueError(f"must not name {value}: PostgreSQL's own schemas are never exposed")
    return str(value)


def role(value: Any) -> str:
    """A role to act as. PostgreSQL takes ``none`` for whoever logged in, which may be the owner of everything."""
    if text(value) == "none":
        raise ValueError('must not be "none"; anon_role = "" lets nobody in without a token')
    return str(value)


def table_of(kind: Kind) -> Kind:
    """A table whose values are of ``kind``; in the environment a JSON object."""

    def read(value: Any) -> dict[str, Any]:
        value = from_json(value, "a table")
        if not isinstance(value, Mapping):
            raise ValueError("must be a table")
        return {str(name): kind(item) for name, item in value.items()}

    return read


def from_json(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        raise ValueError(f"must be {what} (as JSON in the environment)") from None


def dsn(value: Any) -> Secret:
    """A libpq connection string or URI. The reason never contains it."""
    from project_service.dsn import read_dsn

    read_dsn(text(value))
    return Secret(value)


# Kinds of settings that are addresses: more of ``kinds``.


def network(value: Any) -> str:
    try:
        ipaddress.ip_network(text(value), strict=False)
    except ValueError:
        raise ValueError("must be IP addresses or networks such as 10.0.0.0/8") from None
    return str(value)


# A Twisted server endpoint. Whether its port and certificate can be used shows only when it is opened.
endpoint = matching(
    r"(?:tcp6?:(?:port=)?[0-9]{1,5}|ssl:(?:port=)?[0-9]{1,5}|unix:|systemd:|haproxy:).*",
    "endpoints such as tcp:8080:interface=127.0.0.1, ssl:443:… or unix:/run/…",
)


def web_origin(value: Any) -> str:
    """``*``, or an origin as browsers send it: scheme, host and port only."""
    try:
        parts = urlsplit(text(value))
        whole_of = f"{parts.scheme}://{parts.netloc}" if parts.scheme and parts.netloc else "*"
    except ValueError:
        whole_of = "*"
    if value not in (whole_of, "*"):
        raise ValueError('must be origins such as https://www.example.com, or "*"')
    return str(value)


def _is_a_word(value: str) -> bool:
    return value.isprintable() and " " not in value


def url(value: Any) -> str:
    """An http or https address without a trailing slash."""
    text(value)
    try:
        parts = urlsplit(value)
    except ValueError:
        raise ValueError("must be an http or https address") from None
    # urlsplit silently removes line breaks, which would end a header or a line of a letter.
    if parts.scheme not in ("http", "https") or not parts.hostname or not _is_a_word(value):
        raise ValueError("must be an http or https address")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must not hold a user name, password, query or fragment")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("must have a port from 0 to 65535") from None
    return str(value).rstrip("/")
