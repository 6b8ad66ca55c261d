"""Whether a start could open the service's endpoints, for ``project-service check``."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import orjson
from twisted.internet.protocol import Factory
from twisted.internet.threads import deferToThread

from project_service.cli.invocation import Failed
from project_service.network import (
    ACTIVATED,
    PROXIED,
    TLS,
    CannotListen,
    bind_endpoints,
    close,
    endpoint_from,
)

# How long a service that already listens may take to answer.
ANSWER_SECONDS = 3.0
_ALL_INTERFACES = ("", "0.0.0.0", "::")  # noqa: S104  # nothing is bound to them
_LOOPBACKS = ("127.0.0.1", "::1")
_REQUEST = b"GET /.well-known/jwks.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def could_listen(reactor: Any, endpoint: str, kids: Collection[str]) -> str:
    """What to say of ``endpoint``, which is opened as a start does it and closed at once. It is as it should be
    if the running service has it open: that has one of our token keys, ``kids``, or shows none.

    Raises ``Failed`` for one that cannot be opened.
    """
    if endpoint.removeprefix(PROXIED).startswith(ACTIVATED):
        return "opened by systemd"
    try:
        ports = await bind_endpoints(reactor, [endpoint])(Factory())
    except CannotListen as fault:
        served = await deferToThread(_served_kids, reactor, endpoint)
        if served is None:
            raise Failed(str(fault)) from None
        if served and kids and not set(served) & set(kids):
            raise Failed(f"{fault} (another project's service has it)") from None
        return "the running service has it"
    for port in ports:
        await close(port)
    return "can be opened"


def _served_kids(reactor: Any, endpoint: str) -> list[str] | None:
    """The ids of the token keys of the service that listens at ``endpoint``; none if that serves only health and
    metrics. None if it is no such service. Blocks."""
    try:
        answer = _answer(reactor, endpoint)
    except (OSError, ValueError):
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"\r\nx-request-id:" not in head.lower():
        return None
    try:
        return [str(key["kid"]) for key in orjson.loads(body).get("keys", ())]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _connected(interface: str, port: int) -> socket.socket:
    """A connection to what keeps ``interface`` from being opened. A port of all interfaces cannot be opened if
    something listens on one of them, of IPv4 or IPv6; what the service has open is mostly a loopback address."""
    for host in _LOOPBACKS if interface in _ALL_INTERFACES else (interface,):
        with suppress(OSError):
            return socket.create_connection((host, port), ANSWER_SECONDS)
    raise ConnectionRefusedError(f"nothing answers on port {port}")


def _answer(reactor: Any, endpoint: str) -> bytes:
    """What a GET of the public token keys returns there."""
    opened: Any = endpoint_from(reactor, endpoint.removeprefix(PROXIED))
    connection: socket.socket
    if hasattr(opened, "_address"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(opened._address)
    else:
        connection = _connected(opened._interface, opened._port)
    with connection:
        if endpoint.startswith(PROXIED):
            connection.sendall(b"PROXY UNKNOWN\r\n")
        if endpoint.removeprefix(PROXIED).startswith(TLS):
            # Whose certificate it is does not matter: nothing secret is sent.
            context = ssl._create_unverified_context()  # noqa: S323  # see above
            connection = context.wrap_socket(connection)
        connection.sendall(_REQUEST)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer
