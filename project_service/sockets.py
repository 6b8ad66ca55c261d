"""What twisted's socket transports do not say of themselves."""

from __future__ import annotations

import fcntl
import struct
import termios
from typing import Any

from twisted.internet.tcp import Connection

# What one call may give to the kernel: all that is read of the store in one.
SEND_BYTES = 512 * 1024


def socket_progress(transport: Any) -> object:
    """Changes whenever the peer has taken bytes: those left in our buffers and in the kernel's."""
    transport = _innermost(transport)
    handle = getattr(transport, "socket", None)
    if handle is None:
        return None
    queued = struct.unpack("i", fcntl.ioctl(handle.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
    return (queued, _buffered(transport))


def read_widely(transport: Any, size: int) -> None:
    """Read so much at a time from now on: for large bodies, since each read costs a turn of the reactor."""
    _innermost(transport).bufferSize = size


def tune(transport: Any) -> None:
    """Small writes leave at once, large ones in one call of the kernel."""
    if hasattr(transport, "setTcpNoDelay"):
        transport.setTcpNoDelay(True)
    _innermost(transport).SEND_LIMIT = SEND_BYTES


def write_now(transport: Any, data: bytes) -> None:
    """``transport.write``, but at once where nothing waits before it: saves the reactor a turn and two calls of
    ``epoll_ctl``. What the socket does not take is written in the usual way."""
    if not isinstance(transport, Connection) or not _ready(transport):
        transport.write(data)
        return
    left = memoryview(data)
    while left:
        sent: Any = transport.writeSomeData(left)  # type: ignore[arg-type]  # any buffer will do
        if isinstance(sent, Exception) or not sent:
            # Full, or lost: the transport goes on, or finds out and tells its protocol in a turn of its own.
            transport.write(bytes(left))
            return
        left = left[sent:]


def _ready(transport: Any) -> bool:
    return bool(
        transport.connected
        and not transport.TLS
        and not transport.disconnecting
        and not transport._writeDisconnected
        and not _buffered(transport)
    )


def _buffered(transport: Any) -> int:
    waiting: int = len(transport.dataBuffer) - transport.offset + transport._tempDataLen
    return waiting


def _innermost(transport: Any) -> Any:
    while getattr(transport, "transport", None) is not None:
        transport = transport.transport
    return transport
