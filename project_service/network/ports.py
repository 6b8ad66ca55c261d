"""From endpoint strings to open ports, in this process or handed over by the parent."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import Factory
from twisted.logger import Logger

from project_service.network.certificates import Certificates, require_regular_files, why_not, with_chain
from project_service.network.proxy_protocol import proxied

log = Logger()

Binder = Callable[[Factory], Awaitable[list[IListeningPort]]]

# Connections that wait to be accepted; the kernel may allow fewer (net.core.somaxconn).
BACKLOG = 1024
# Prefix of endpoints behind a proxy that does not speak HTTP and names the client by the PROXY protocol instead.
PROXIED = "haproxy:"
TLS = "ssl:"


class CannotListen(Exception):
    """An endpoint could not be opened; the message names it and says why."""


def bind_endpoints(
    reactor: Any, endpoints: Sequence[str], certificates: Certificates | None = None
) -> Binder:
    """Opens ``endpoints`` (Twisted's strings, so TLS and Unix sockets too), all or none."""

    async def bind(factory: Factory) -> list[IListeningPort]:
        ports: list[IListeningPort] = []
        for text in endpoints:
            try:
                ports.append(await endpoint_from(reactor, text, certificates).listen(factory))
                if not _says_its_queue(text):
                    _lengthen_queue(ports[-1])
            except Exception as fault:
                for port in ports:
                    await close(port)
                raise cannot_listen(text, fault) from None
        return ports

    return bind


def cannot_listen(text: str, fault: Exception) -> CannotListen:
    return CannotListen(f"cannot listen on {shown(text)}: {_reason(fault)}")


def endpoint_from(reactor: Any, text: str, certificates: Certificates | None = None) -> Any:
    """The endpoint that ``text`` describes, not open yet.

    Where it has TLS, its certificate is registered with ``certificates``, which can renew it from then on.
    """
    if text.startswith(PROXIED):
        return proxied(endpoint_from(reactor, text.removeprefix(PROXIED), certificates))
    if text.startswith(TLS):
        require_regular_files(text)
    found: Any = serverFromString(reactor, text)
    if text.startswith(TLS):
        options = with_chain(found._sslContextFactory, text)
        if certificates is not None:
            found._sslContextFactory = certificates.shown_at(
                shown(text), options, lambda: endpoint_from(reactor, text)._sslContextFactory
            )
    return found


async def close(port: IListeningPort) -> None:
    """Returns when nothing is accepted there any more. One that does not close cleanly is logged."""
    try:
        stopped = port.stopListening()
        if stopped is not None:
            await stopped
    except OSError:
        log.failure("a port did not close cleanly")


def queue_length(reactor: Any, endpoint: str) -> int:
    """How many connections may wait to be accepted at a port that was opened as ``endpoint``."""
    return int(endpoint_from(reactor, endpoint)._backlog) if _says_its_queue(endpoint) else BACKLOG


def _says_its_queue(endpoint: str) -> bool:
    return "backlog=" in endpoint


def _lengthen_queue(port: Any) -> None:
    """Twisted's queue takes 50 connections. Clients of a larger burst would get no answer at all from the kernel and
    try again only a second later."""
    handle = getattr(port, "socket", None)
    if handle is not None:
        handle.listen(BACKLOG)


def take_turns(port: Any) -> None:
    """Make ``port`` accept one connection in each turn of the reactor.

    Twisted's ports accept all that wait. Of several processes that share one socket, the first to wake up would then
    serve a whole burst of clients alone.
    """

    class OneByOne(type(port)):  # type: ignore[misc]  # whichever kind of port it is
        # Twisted raises the number after every turn that used it up, hence a property that ignores being set.
        numberAccepts = property(lambda self: 1, lambda self, count: None)

    port.__class__ = OneByOne


def url_of(address: Any, secure: bool = False) -> str | None:
    """The URL a person would type for a port at ``address``, or None for a Unix socket."""
    host = getattr(address, "host", None)
    if host is None:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104  # shown, not bound
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{'https' if secure else 'http'}://{host}:{address.port}"


def shown(endpoint: str) -> str:
    """``endpoint`` as it may be logged: without the path of the private key."""
    return ":".join(part for part in endpoint.split(":") if not part.startswith("privateKey="))


def _reason(fault: Exception) -> str:
    inner = getattr(fault, "socketError", None)
    if isinstance(inner, OSError | socket.error):
        return inner.strerror or str(inner)
    return why_not(fault) or str(fault) or type(fault).__name__
