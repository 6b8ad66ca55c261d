"""From endpoint strings to open ports, in this process or handed over by the parent."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from attrs import frozen
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import serverFromString
from twisted.internet.fdesc import setNonBlocking
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.unix import Port as UnixPort
from twisted.logger import Logger
from zope.interface import implementer

from project_service.network.certificates import Certificates, require_regular_files, why_not, with_chain
from project_service.network.proxy_protocol import proxied
from project_service.network.tls import let_clients_half_close

log = Logger()

Binder = Callable[[Factory], Awaitable[list[IListeningPort]]]

# Connections that wait to be accepted; the kernel may allow fewer (net.core.somaxconn).
BACKLOG = 1024
# Prefix of endpoints behind a proxy that does not speak HTTP and names the client by the PROXY protocol instead.
PROXIED = "haproxy:"
TLS = "ssl:"
# Prefix of sockets that systemd has opened (systemd.socket).
ACTIVATED = "systemd:"


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
                let_clients_half_close(ports[-1])
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
    if text.startswith(ACTIVATED) and found.addressFamily == socket.AF_UNIX:
        return _ActivatedUnix(reactor, found.fileno)
    if text.startswith(TLS):
        options = with_chain(found._sslContextFactory, text)
        if certificates is not None:
            found._sslContextFactory = certificates.shown_at(
                shown(text), options, lambda: endpoint_from(reactor, text)._sslContextFactory
            )
    return found


@implementer(IStreamServerEndpoint)
@frozen
class _ActivatedUnix:
    """The Unix socket at ``descriptor``, which systemd has opened."""

    reactor: Any
    descriptor: int

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        setNonBlocking(self.descriptor)
        port = adopt_unix(self.reactor, self.descriptor, protocolFactory, BACKLOG)
        os.close(self.descriptor)
        return succeed(port)


def adopt_unix(reactor: Any, descriptor: int, factory: Any, queue: int) -> Any:
    """Listen on a Unix socket that belongs to another process, with a copy of ``descriptor``.

    ``adoptStreamPort`` would make the socket's file accessible to everybody, which only the owner of the file may do,
    remove it at the end, and shut the socket down for all processes.
    """
    port: Any = UnixPort._fromListeningDescriptor(reactor, descriptor, factory)
    # Twisted leaves a name alone that starts with NUL, as it then stands in no file system.
    port._bindPath = b"\0" + port._bindPath
    port._shouldShutdown = False
    port.backlog = queue
    port.startListening()
    return port


async def close(port: IListeningPort) -> None:
    """Returns when nothing is accepted there any more. One that does not close cleanly is logged."""
    try:
        stopped = port.stopListening()
        if stopped is not None:
            await stopped
    except OSError:
        log.failure("a port did not close cleanly")


async def leave(port: Any) -> None:
    """As ``close``, for a port from which other processes still accept. Shutting it down would make that fail."""
    port._shouldShutdown = False
    await close(port)


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
    if isinstance(inner, OSError):
        return inner.strerror or str(inner)
    return why_not(fault) or str(fault) or type(fault).__name__
