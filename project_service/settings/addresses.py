"""Kinds of settings that are addresses: more of ``kinds``."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from project_service.settings.kinds import matching, text


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
