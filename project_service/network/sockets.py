"""Twisted's socket transports, tuned and looked into by means that they do not offer themselves."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from contextlib import suppress
from typing import Any

from twisted.internet.tcp import Connection

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
    """Whether the peer has refused what it was sent, because nobody is there any more. To be asked once."""
    handle = getattr(_innermost(transport), "socket", None)
    return handle is not None and handle.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def forget_unsent(transport: Any) -> None:
    """Free what a connection that is lost has not sent. Its protocol is part of reference cycles, so that would
    otherwise wait for the garbage collector."""
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

    Reno is the one that every process may choose (tcp(7), ``tcp_allowed_congestion_control``).
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
        sent: Any = transport.writeSomeData(left)
        if isinstance(sent, Exception) or not sent:
            # The socket is full or the connection is lost. Either way the transport goes on by itself: it sends the
            # rest later, or notices the loss and tells its protocol in a turn of its own.
            transport.write(bytes(left))
            return
        left = left[sent:]


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
