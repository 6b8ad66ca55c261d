"""The kinds of settings: functions that convert a value from TOML or the environment, or raise ``ValueError`` with
what is wrong with it. No reason quotes a value that may be secret.
"""

from __future__ import annotations

import ipaddress
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from configparser import ConfigParser, SectionProxy
from configparser import Error as NotAnIniFile
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import orjson
from attrs import frozen

from project_service.files import regular
from project_service.redirects import pattern
from project_service.whole_numbers import from_digits

Kind = Callable[[Any], Any]

# The largest integer in PostgreSQL. In seconds it is 68 years, which can safely be added to a date.
MAX_INTEGER = 2**31 - 1
# PostgreSQL and the reactor count milliseconds in 32 bits, so this is the longest time in seconds.
MAX_SECONDS = 2147483
# In characters (PostgREST's reference, "jwt-secret").
_MIN_SHARED_SECRET = 32


@frozen(repr=False, str=False)
class Secret:
    """A value that prints as ``***``. ``reveal()`` returns it."""

    _value: str

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__


# Texts


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    if "\0" in value:
        raise ValueError("must not contain NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        # It comes from the environment, where bytes can be anything.
        raise ValueError("must be UTF-8") from None
    return value


def secret(value: Any) -> Secret:
    return Secret(text(value))


def shared_secret(value: Any) -> Secret:
    """A secret that signs tokens. A shorter one could be guessed with the help of a token."""
    if len(text(value)) < _MIN_SHARED_SECRET:
        raise ValueError(f"must have at least {_MIN_SHARED_SECRET} characters")
    return Secret(value)


def matching(pattern: str, description: str) -> Kind:
    """A text that matches ``pattern`` as a whole."""
    compiled = re.compile(rf"(?:{pattern})\Z")

    def read(value: Any) -> str:
        if not compiled.match(text(value)):
            raise ValueError(f"must be {description}")
        return str(value)

    return read


# Values that become part of a header in requests to the store.
visible_ascii = matching(r"[!-~]+", "printable ASCII without blanks")
# All names that stores have ever accepted, some with a tenant before a colon. The rules for new buckets are stricter,
# and the store's business.
store_bucket = matching(
    r"[A-Za-z0-9][A-Za-z0-9._:-]{2,254}", "the name of a bucket in the store, such as project-service"
)
# RFC 9110, section 5.6.2 ("token").
header_name = matching(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "the name of a header")
# As the names of templates have it (RFC 5646). Which languages there are is known to what uses it.
language = matching(r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8})*", "a language such as en or pt-BR")
# A Twisted server endpoint. Whether its port and certificate can be used shows only when it is opened.
endpoint = matching(
    r"(?:tcp6?:(?:port=)?[0-9]{1,5}|ssl:(?:port=)?[0-9]{1,5}|unix:|systemd:|haproxy:).*",
    "endpoints such as tcp:8080:interface=127.0.0.1, ssl:443:… or unix:/run/…",
)


def secret_header(value: Any) -> Secret:
    """A secret that is sent in a header."""
    return Secret(visible_ascii(value))


def choice(*allowed: str) -> Kind:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return str(value)

    return read


def own_schema(value: Any) -> str:
    """A schema that may be exposed. PostgreSQL's own may not."""
    if text(value) in ("pg_catalog", "information_schema"):
        raise ValueError(f"must not name {value}: PostgreSQL's own schemas are never exposed")
    return str(value)


def role(value: Any) -> str:
    """A role to act as. PostgreSQL takes ``none`` for the role that logged in, which may own everything."""
    if text(value) == "none":
        raise ValueError('must not be "none"; anon_role = "" lets nobody in without a token')
    return str(value)


def claim_path(value: Any) -> str:
    from project_service.role_claim import parse_role_claim

    try:
        parse_role_claim(text(value))
    except ValueError as fault:
        raise ValueError(f"is {fault}") from None
    return str(value)


# Numbers and booleans


def flag(value: Any) -> bool:
    """A boolean; in the environment ``true`` or ``false``."""
    if isinstance(value, bool):
        return value
    parsed = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None
    if parsed is None:
        raise ValueError("must be true or false")
    return parsed


def integer(minimum: int, maximum: int | None = None) -> Kind:
    def read(value: Any) -> int:
        if isinstance(value, str):
            value = from_digits(value.removeprefix("+"))
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("must be a whole number")
        if value < minimum or (maximum is not None and value > maximum):
            allowed = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise ValueError(f"must be {allowed}")
        return value

    return read


# Bytes in a unit: as on a disk's label in thousands, with an "i" in 1024s (IEC 80000-13).
_UNITS = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,12})?) ?([a-z]{1,3})", re.IGNORECASE | re.ASCII)
SIZE_FORM = "a number of bytes, such as 1048576, 10MB (of 1000 * 1000) or 1MiB (of 1024 * 1024)"


def bytes_of(text: str) -> int | None:
    """The number of bytes that ``text`` is, a plain number or one with a unit; None for any other text."""
    parsed = _SIZE.fullmatch(text)
    if parsed is None or parsed[2].lower() not in _UNITS:
        return from_digits(text.removeprefix("+"))
    number = Fraction(parsed[1]) * _UNITS[parsed[2].lower()]
    return int(number) if number.denominator == 1 else None


def size(minimum: int, maximum: int | None = None) -> Kind:
    """A number of bytes, perhaps with a unit."""
    within = integer(minimum, maximum)

    def read(value: Any) -> int:
        if isinstance(value, str):
            value = bytes_of(value.strip())
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be {SIZE_FORM}")
        return int(within(value))

    return read


def seconds(minimum: float = 0.0) -> Kind:
    def read(value: Any) -> float:
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError("must be a number of seconds")
        if not minimum <= value <= MAX_SECONDS:
            raise ValueError(f"must be from {minimum:g} to {MAX_SECONDS} seconds")
        return float(value)

    return read


def ratio(value: Any) -> float:
    """A share of a whole, from 0 to 1."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError("must be a number from 0 to 1")
    return float(value)


def workers(value: Any) -> int | str:
    if value == "auto":
        return "auto"
    try:
        return int(integer(1, 256)(value))
    except ValueError as fault:
        raise ValueError(f'{fault}, or "auto"') from None


def console(value: Any) -> bool | str:
    """Who sees the console: a boolean, or "loopback" for clients on this machine."""
    if value == "loopback":
        return "loopback"
    try:
        return flag(value)
    except ValueError as fault:
        raise ValueError(f'{fault}, or "loopback"') from None


# Kinds made of other kinds


def optional(kind: Kind) -> Kind:
    """As ``kind``, but no value, or an empty one, is None."""

    def read(value: Any) -> Any:
        return None if value is None or value == "" else kind(value)

    return read


def list_of(kind: Kind, *, nonempty: bool = False) -> Kind:
    """A list of ``kind``; in the environment a JSON array."""

    def read(value: Any) -> tuple[Any, ...]:
        value = _from_json(value, "a list")
        if not isinstance(value, list | tuple):
            raise ValueError("must be a list")
        if nonempty and not value:
            raise ValueError("must not be empty")
        return tuple(kind(item) for item in value)

    return read


def list_or_commas(kind: Kind, *, nonempty: bool = False) -> Kind:
    """As ``list_of``, but a string with commas is allowed too, as in PostgREST's configuration."""
    read_list = list_of(kind, nonempty=nonempty)

    def read(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str) and not value.lstrip().startswith("["):
            value = [item.strip() for item in value.split(",") if item.strip()]
        return tuple(read_list(value))

    return read


def table_of(kind: Kind) -> Kind:
    """A table whose values are of ``kind``; in the environment a JSON object."""

    def read(value: Any) -> dict[str, Any]:
        value = _from_json(value, "a table")
        if not isinstance(value, Mapping):
            raise ValueError("must be a table")
        return {str(name): kind(item) for name, item in value.items()}

    return read


def _from_json(value: Any, expected: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        raise ValueError(f"must be {expected} (as JSON in the environment)") from None


def or_file(kind: Kind) -> Kind:
    """As ``kind``, but ``@name`` stands for the content of a file, as with PostgREST."""

    def read(value: Any) -> Any:
        if not isinstance(value, str) or not value.startswith("@"):
            return kind(value)
        try:
            content = regular(Path(value.removeprefix("@"))).read_text("utf-8")
        except OSError as fault:
            raise ValueError(f"names a file by its @ that cannot be read: {fault.strerror}") from None
        except ValueError:
            raise ValueError("names a file by its @ that is not UTF-8") from None
        return kind(content.rstrip("\r\n"))

    return read


# Addresses


def connection_string(value: Any) -> Secret:
    """A libpq connection string or URI."""
    from project_service.dsn import read_dsn

    read_dsn(text(value))
    return Secret(value)


def read_dsns(value: Any) -> tuple[Secret, ...]:
    """The connection strings of standbys: one, or a list of them (in the environment a JSON array)."""
    from project_service.dsn import read_dsn

    def one(item: Any) -> Secret:
        read_dsn(text(item), standbys=True)
        return Secret(item)

    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = [value]
    return tuple(list_of(or_file(one))(value))


def url(value: Any) -> str:
    """An http or https address without query and fragment; a trailing slash is removed."""
    parsed = _web_address(value)
    if parsed.username or parsed.password or parsed.query or parsed.fragment:
        raise ValueError("must not hold a user name, password, query or fragment")
    return str(value).rstrip("/")


def page_url(value: Any) -> str:
    """The http or https address of a page, which may have a query and a fragment, as it was written."""
    parsed = _web_address(value)
    if parsed.username or parsed.password:
        raise ValueError("must not hold a user name or password")
    return str(value)


def issuer_url(value: Any) -> str:
    """The issuer of OpenID Connect, as it was written: a slash at its end belongs to it."""
    url(value)
    if not value.isascii():
        raise ValueError("must be percent-encoded, with its host as xn--…")
    return str(value)


# Of PostgreSQL, without quotes; such a name can be written into a statement.
_SQL_NAME = r"[a-z_][a-z0-9_$]{0,62}"
_SQL_HOOK = re.compile(rf"sql:{_SQL_NAME}\.{_SQL_NAME}\Z")


def hook(value: Any) -> str:
    """``sql:schema.function``, or the http or https address of a hook. Whether it may be http is not looked at."""
    if text(value).startswith("sql:"):
        if not _SQL_HOOK.match(value):
            raise ValueError("must be sql:schema.function, both in lower case, or an https address")
        return str(value)
    try:
        page_url(value)
    except ValueError:
        raise ValueError("must be sql:schema.function or an https address") from None
    if not value.isascii():
        raise ValueError("must be percent-encoded, with its host as xn--…")
    return str(value)


_HOOK_SECRET = re.compile(r"v1,whsec_([A-Za-z0-9+/]{32,}={0,2})\Z")


def hook_secret(value: Any) -> Secret:
    """A secret of Standard Webhooks, or several with "|" between them while it is being changed."""
    for one in text(value).split("|"):
        found = _HOOK_SECRET.match(one)
        try:
            decoded = b"" if found is None else b64decode(found[1], validate=True)
        except ValueError:
            decoded = b""
        if not 24 <= len(decoded) <= 64:
            raise ValueError("must be v1,whsec_ and 24 to 64 bytes in base64")
    return Secret(value)


def redirect_url(value: Any) -> str:
    """The address of a page that forms may lead to, or one with a / at its end that all such addresses begin with."""
    if not urlsplit(page_url(value)).path:
        raise ValueError("must have a path, such as https://www.example.com/")
    if not value.isascii():
        # It is sent in the header Location.
        raise ValueError("must be percent-encoded, with its host as xn--…, since it is sent in a header")
    return str(value)


def redirect_pattern(value: Any) -> str:
    """Where links of e-mails and providers may lead in the end (``redirects.py``)."""
    return pattern(text(value))


def application_url(value: Any) -> str:
    """The address of an application, to which links lead that may not lead elsewhere."""
    if "*" in redirect_pattern(value):
        raise ValueError("must not have a *")
    return str(value)


def token_page_url(value: Any) -> str:
    """The address of a page to which e-mails link, with a parameter ``token`` added."""
    if re.search("[?&]token=", page_url(value)):
        raise ValueError("must not have the parameter token, which e-mails add")
    return str(value)


def _web_address(value: Any) -> SplitResult:
    address = text(value)
    try:
        parsed = urlsplit(address)
    except ValueError:
        raise ValueError("must be an http or https address") from None
    # urlsplit silently removes line breaks, which would end a header or a line of an e-mail.
    usable = address.isprintable() and " " not in address
    if parsed.scheme not in ("http", "https") or not parsed.hostname or not usable:
        raise ValueError("must be an http or https address")
    try:
        _ = parsed.port
    except ValueError:
        raise ValueError("must have a port from 0 to 65535") from None
    return parsed


def web_origin(value: Any) -> str:
    """``*``, or an origin as browsers send it: scheme, host and port only."""
    if value == "*":
        return "*"
    try:
        parsed = urlsplit(text(value))
    except ValueError:
        parsed = urlsplit("")
    if not (parsed.scheme and parsed.netloc) or value != f"{parsed.scheme}://{parsed.netloc}":
        raise ValueError('must be origins such as https://www.example.com, or "*"')
    return str(value)


def one_origin(value: Any) -> str:
    """As ``web_origin``, but not ``*``."""
    if value == "*":
        raise ValueError("must be origins such as https://www.example.com")
    return web_origin(value)


def host_name(value: Any) -> str:
    """A host without scheme, port and path."""
    name = text(value)
    try:
        is_host = urlsplit(f"//{name}").hostname == name
    except ValueError:
        is_host = False
    if not is_host or not name.isascii():
        raise ValueError("must be a host such as example.com")
    return name


def network(value: Any) -> str:
    try:
        ipaddress.ip_network(text(value), strict=False)
    except ValueError:
        raise ValueError("must be IP addresses or networks such as 10.0.0.0/8") from None
    return str(value)


def mailbox(value: Any) -> str:
    """An e-mail address, with or without a name before it."""
    from project_service.email_addresses import envelope

    try:
        address = envelope(text(value))
    except ValueError:
        raise ValueError(
            "must be an e-mail address, such as Example <no-reply@example.com>, "
            'or with any other name in quotes "Söhne & Co." <no-reply@example.com>'
        ) from None
    # The SMTP client does not support SMTPUTF8 (RFC 6531).
    if not address.isascii():
        raise ValueError("must be ASCII before the @")
    return str(value)


_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN = re.compile(rf"(?![0-9.]+\Z){_LABEL}(\.{_LABEL})*")
_ADDRESS = re.compile(r"\[(IPv6:)?([0-9A-Fa-f.:]+)\]")


def helo_name(value: Any) -> str:
    """The name of a host, or an address in brackets, as an argument of EHLO (RFC 5321 section 4.1.2)."""
    name = text(value)
    literal = _ADDRESS.fullmatch(name)
    try:
        if literal is not None:
            valid = ipaddress.ip_address(literal[2]).version == (6 if literal[1] else 4)
        else:
            valid = len(name) <= 255 and _DOMAIN.fullmatch(name) is not None
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("must be a host's name, such as www.example.com, or an address, such as [192.0.2.1]")
    return name


# Files


def secret_file(value: Any) -> Secret:
    """The path of a file whose content is a secret. The line break at its end does not belong to it."""
    try:
        content = regular(Path(text(value))).read_text("utf-8").rstrip("\r\n")
    except OSError as fault:
        raise ValueError(f"names a file that cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("names a file that is not UTF-8") from None
    if not content:
        raise ValueError("names a file that is empty")
    return Secret(content)


_HEADER_LINE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[ \t]*[!-~]+(?: [!-~]+)*[ \t]*")


def headers_file(value: Any) -> Secret:
    """The path of a file of headers whose values are secrets, a line ``name: value`` for each."""
    content = secret_file(value)
    if not all(_HEADER_LINE.fullmatch(line) for line in content.reveal().split("\n")):
        raise ValueError("names a file with a line other than name: value, in printable ASCII")
    return content


def pem_file(value: Any) -> str:
    """The path of a file with certificates in PEM."""
    try:
        content = regular(Path(text(value))).read_bytes()
    except OSError as fault:
        raise ValueError(f"names a file that cannot be read: {fault.strerror}") from None
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise ValueError("names a file that holds no certificate in PEM")
    return str(value)


@frozen
class StoreKeys:
    """The store's key pair, as it was in the file at ``path`` when that was read."""

    path: str
    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None


def store_keys_file(value: Any) -> StoreKeys:
    """The path of a file in the format of AWS's tools (``~/.aws/credentials``), which also renew it. The section
    ``[default]`` is read."""
    # No interpolation: a secret may have a percent sign.
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(regular(Path(text(value))).read_text("utf-8"))
    except OSError as fault:
        raise ValueError(f"names a file that cannot be read: {fault.strerror}") from None
    except (NotAnIniFile, UnicodeDecodeError):
        raise ValueError("names a file that is not in the form of AWS's credentials") from None
    if not parser.has_section("default"):
        raise ValueError("names a file without a section [default]")
    section = parser["default"]
    return StoreKeys(
        str(value),
        _credential(section, "aws_access_key_id"),
        Secret(_credential(section, "aws_secret_access_key")),
        Secret(_credential(section, "aws_session_token")) if section.get("aws_session_token") else None,
    )


def _credential(section: SectionProxy, name: str) -> str:
    try:
        return str(visible_ascii(section.get(name, "")))
    except ValueError:
        raise ValueError(f"names a file in which {name} is missing or not printable ASCII") from None
