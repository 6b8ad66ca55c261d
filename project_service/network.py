"""Sockets: transports that write at once, the PROXY protocol, and from endpoint strings to open ports.

Where Twisted has no public means, its internals are used: each place says why, and
``tests/unit/http/test_twisted_internals.py`` fails if Twisted changes there.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import socket
import struct
import termios
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from attrs import frozen
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import _WrapperServerEndpoint, serverFromString
from twisted.internet.fdesc import setNonBlocking
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IListeningPort,
    IProtocolFactory,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import Factory
from twisted.internet.tcp import Connection
from twisted.internet.unix import Port as UnixPort
from twisted.logger import Logger
from twisted.protocols.haproxy._exceptions import InvalidProxyHeader
from twisted.protocols.haproxy._v1parser import V1Parser
from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory
from zope.interface import implementer

from project_service.certificates import (
    Certificates,
    argument_naming,
    let_clients_half_close,
    require_regular_files,
    why_not,
    with_chain,
)

# Transports. Twisted buffers what it is given in ``dataBuffer`` (from ``offset`` on) and ``_tempDataBuffer``, and has
# no method for how much that is. It has to be known before bytes bypass it, and to limit memory and idle clients.


# How many bytes one system call may hand to the kernel: as many as one read from the store brings.
SEND_BYTES = 512 * 1024


def socket_progress(transport: Any) -> object:
    """A value that changes whenever the peer has taken bytes: how many are left in our buffers and the kernel's.

    None for a transport without a socket, which never seems to move.
    """
    transport = _innermost(transport)
    handle = getattr(transport, "socket", None)
    if handle is None:
        return None
    queued = struct.unpack("i", fcntl.ioctl(handle.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
    return (queued, _buffered(transport))


def unsent(transport: Any) -> int:
    """How many bytes are in our buffers, and not yet in the kernel's. 0 for a transport without a socket."""
    transport = _innermost(transport)
    return _buffered(transport) if isinstance(transport, Connection) else 0


def is_reset(transport: Any) -> bool:
    """Whether the peer has reset the connection. To be asked once, since the kernel forgets it then."""
    handle = getattr(_innermost(transport), "socket", None)
    return handle is not None and handle.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def forget_unsent(transport: Any) -> None:
    """Free what a lost connection has not sent. Twisted keeps it, and the transport is part of a reference cycle."""
    transport = _innermost(transport)
    if isinstance(transport, Connection):
        transport.dataBuffer, transport.offset = b"", 0
        transport._tempDataBuffer, transport._tempDataLen = [], 0


def read_widely(transport: Any, size: int) -> None:
    """Read up to ``size`` bytes at a time from now on. For large bodies: each read costs a turn of the reactor."""
    _innermost(transport).bufferSize = size


def tune(transport: Any) -> None:
    """Send small writes without delay (TCP_NODELAY), up to ``SEND_BYTES`` with one system call, and over loopback
    without pacing."""
    if hasattr(transport, "setTcpNoDelay"):
        transport.setTcpNoDelay(True)
    innermost = _innermost(transport)
    innermost.SEND_LIMIT = SEND_BYTES
    if isinstance(innermost, Connection):
        _send_unpaced(innermost.socket)


def _send_unpaced(handle: socket.socket) -> None:
    """Over loopback, have the kernel send as fast as the peer takes it, even where the host's congestion control is
    one that paces (BBR): its timers are a tenth of what a large download costs, and there is no network to spare.

    Every process may choose Reno (tcp(7), ``tcp_allowed_congestion_control``).
    """
    if handle.family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):  # the peer has left already, or the host forbids to choose
            peer = handle.getpeername()[0].removeprefix("::ffff:")  # as a socket for both kinds has IPv4
            if peer == "::1" or peer.startswith("127."):
                handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def write_now(transport: Any, data: bytes) -> None:
    """As ``transport.write``, but sent immediately where nothing is waiting to be sent before it.

    That saves a turn of the reactor and two calls of ``epoll_ctl``. What the socket does not take is left to
    ``transport.write``.
    """
    if not is_ready(transport):
        transport.write(data)
        return
    left = memoryview(data)
    while left:
        try:
            left = left[transport.socket.send(left[:SEND_BYTES]) :]
        except OSError:
            # The socket is full or the connection is lost. The transport sends the rest later, or reports the loss in
            # a turn of its own.
            transport.write(bytes(left))
            return


def is_ready(transport: Any) -> bool:
    """Whether bytes may go to the socket directly: there is one, without TLS or another wrapper, it is not closing,
    and nothing is buffered before them."""
    return bool(
        isinstance(transport, Connection)
        and transport.connected
        and not transport.TLS
        and not transport.disconnecting
        and not transport._writeDisconnected
        and not transport._tempDataLen
        and len(transport.dataBuffer) == transport.offset
    )


def _buffered(transport: Any) -> int:
    waiting: int = len(transport.dataBuffer) - transport.offset + transport._tempDataLen
    return waiting


def _innermost(transport: Any) -> Any:
    """The transport that owns the socket, beneath TLS and PROXY wrappers."""
    while getattr(transport, "transport", None) is not None:
        transport = transport.transport
    return transport


# The PROXY protocol (HAProxy and others) in front of a port: Twisted's, with a parser of version 1 that refuses bad
# addresses, and with half-closed connections. Source: HAProxy, "The PROXY protocol", section 2.1.


# With fewer bytes in the first read Twisted closes the connection, since it cannot tell what the client speaks.
_MIN_BYTES = 8
# A complete header of version 1, for clients without an IP address. Twisted's parser insists on more after the last
# word.
_UNKNOWN = b"PROXY UNKNOWN"


def proxied(endpoint: Any) -> Any:
    """``endpoint``, on which every connection has to begin with a PROXY header; others are closed.

    ``getPeer`` of a transport is then the client that the header names, or the proxy itself if it names none.
    """
    return _WrapperServerEndpoint(endpoint, _Factory)


class _Version1(V1Parser):
    @classmethod
    def parse(cls, line: bytes) -> Any:
        """The addresses in the header; raises ``InvalidProxyHeader``, also for a bad address or port."""
        try:
            info: Any = super().parse(line + b" " if line == _UNKNOWN else line)
            for address in (info.source, info.destination):
                if isinstance(address, IPv4Address | IPv6Address):
                    ipaddress.ip_address(address.host)
        except ValueError:
            # Twisted lets a ValueError out to the reactor for bad numbers or bytes, and takes any text as an address.
            raise InvalidProxyHeader from None
        return info


@implementer(IHalfCloseableProtocol)
class _Wrapper(HAProxyProtocolWrapper):
    def readConnectionLost(self) -> None:
        inner = IHalfCloseableProtocol(self.wrappedProtocol, None)
        if inner is None or self._proxyInfo is None:
            self.loseConnection()
        else:
            inner.readConnectionLost()

    def writeConnectionLost(self) -> None:
        """Our direction has been closed (``IHalfCloseableProtocol``). The protocol inside has no need to know."""

    def dataReceived(self, data: bytes) -> None:
        first = self._parser is None and self._proxyInfo is None
        if first and len(data) >= _MIN_BYTES and data.startswith(V1Parser.PROXYSTR):
            self._parser = _Version1()
        super().dataReceived(data)


class _Factory(HAProxyWrappingFactory):
    protocol: type[HAProxyProtocolWrapper] = _Wrapper


# Ports.

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
                if not _has_backlog(text):
                    _lengthen_queue(ports[-1])
            except Exception as fault:
                for port in ports:
                    await close(port)
                raise cannot_listen(text, fault) from None
        for text, port in zip(endpoints, ports, strict=True):
            log.info("listening on {where}", where=_where(text, port))
        return ports

    return bind


def _where(text: str, port: IListeningPort) -> str:
    """An open port as an operator knows it: https://0.0.0.0:443, unix:/run/service.sock."""
    address: Any = port.getHost()
    if getattr(address, "host", None) is None:
        return shown(text)
    host = f"[{address.host}]" if ":" in address.host else address.host
    scheme = "https" if text.removeprefix(PROXIED).startswith(TLS) else "http"
    behind = " (with the PROXY protocol)" if text.startswith(PROXIED) else ""
    return f"{scheme}://{host}:{address.port}{behind}"


def cannot_listen(text: str, fault: Exception) -> CannotListen:
    argument = argument_naming(text, getattr(fault, "filename", None))
    return CannotListen(
        f"cannot listen on {shown(text)}: {_reason(fault)}{f' ({argument})' if argument else ''}"
    )


def endpoint_from(reactor: Any, text: str, certificates: Certificates | None = None) -> Any:
    """The endpoint that ``text`` describes, not open yet.

    Where it has TLS, its certificate is registered with ``certificates``, which can renew it from then on.
    """
    if text.startswith(PROXIED):
        return proxied(endpoint_from(reactor, text.removeprefix(PROXIED), certificates))
    if text.startswith(TLS):
        require_regular_files(text)
    endpoint: Any = serverFromString(reactor, text)
    if text.startswith(ACTIVATED) and endpoint.addressFamily == socket.AF_UNIX:
        return _ActivatedUnix(reactor, endpoint.fileno)
    if text.startswith(TLS):
        # An endpoint that is made from a string can be given another context factory only so.
        options = with_chain(endpoint._sslContextFactory, text)
        if certificates is not None:
            endpoint._sslContextFactory = certificates.shown_at(
                shown(text), options, lambda: endpoint_from(reactor, text)._sslContextFactory
            )
    return endpoint


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

    Twisted's public means, ``adoptStreamPort``, would make the socket's file accessible to everybody, which only the
    owner of the file may do, remove it at the end, and shut the socket down for all processes.
    """
    port: Any = UnixPort._fromListeningDescriptor(reactor, descriptor, factory)
    # Twisted does not touch the file if the name starts with NUL, since that is not a name in the file system.
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
    """As ``close``, for a port at which other processes still accept: Twisted would shut it down for all of them."""
    port._shouldShutdown = False
    await close(port)


def queue_length(reactor: Any, endpoint: str) -> int:
    """How many connections may wait to be accepted at a port that was opened as ``endpoint``."""
    return int(endpoint_from(reactor, endpoint)._backlog) if _has_backlog(endpoint) else BACKLOG


def _has_backlog(endpoint: str) -> bool:
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
    serve a whole burst of clients alone. Twisted has no setting for this, and raises ``numberAccepts`` after every
    turn that used it up, hence a property that ignores being set.
    """

    class OneByOne(type(port)):  # type: ignore[misc]  # whichever kind of port it is
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


# An endpoint with a port of its own: its scheme, the port, and what follows.
_WITH_PORT = re.compile(r"(?P<scheme>tcp|tcp4|tcp6|ssl):(?:port=)?(?P<port>[0-9]+)(?P<rest>:.*)?\Z")
_INTERFACE = re.compile(r":interface=((?:\\:|[^:])+)")


def url_configured(endpoint: str) -> str | None:
    """The URL that a person would type for ``endpoint`` on its own host. None for one without a fixed port."""
    match = _WITH_PORT.match(endpoint.removeprefix(PROXIED))
    if match is None or int(match["port"]) == 0:
        return None
    interface = _INTERFACE.search(match["rest"] or "")
    host = interface[1].replace("\\:", ":") if interface is not None else "127.0.0.1"
    kind = IPv6Address if ":" in host else IPv4Address
    return url_of(kind("TCP", host, int(match["port"])), match["scheme"] == "ssl")


def shown(endpoint: str) -> str:
    """``endpoint`` as it may be logged: without the path of the private key."""
    return ":".join(part for part in endpoint.split(":") if not part.startswith("privateKey="))


def _reason(fault: Exception) -> str:
    inner = getattr(fault, "socketError", None)
    if isinstance(inner, OSError):
        return inner.strerror or str(inner)
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror  # without the names of Twisted's lock files
    return why_not(fault) or str(fault) or type(fault).__name__
