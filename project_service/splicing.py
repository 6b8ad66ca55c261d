"""Bytes that pass from one socket to another inside the kernel. Source: splice(2), pipe(7).

Measured in turns with reading and writing (medians of 96): an object of 64 MiB costs 31.8 ms of CPU instead of 41.5.
That needs one pipe that lasts, of 1 MiB, and ``SPLICE_F_MORE``: with a new pipe for each piece it was 36 ms, without
the flag 36, with a pipe of the usual size 82.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Callable
from typing import Any

from attrs import frozen
from twisted.internet.tcp import Connection

from project_service.network import is_ready

# A pipe has room for a number of pieces, whatever their size: in one of the usual 64 KiB there would be 16.
_PIPE_BYTES = 1024 * 1024
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
# From so many bytes on, the last ones may wait for what follows, or for 200 ms if nothing does: whole segments cost
# less. With fewer, the source is slower than the target, and nothing waits.
_BUSY_BYTES = 64 * 1024


def ask_first(transport: Any, take: Callable[[int], bool]) -> None:
    """From now on call ``take`` with the socket's descriptor whenever there is something to be read. If it returns
    False, the transport reads as usual.

    Does nothing for a transport whose bytes have to be decrypted first. Twisted has no public means to leave bytes in
    the socket, so the transport's ``doRead`` is replaced (``tests/unit/http/test_twisted_internals.py``).
    """
    if not isinstance(transport, Connection) or transport.TLS:
        return
    read = transport.doRead

    def take_or_read() -> Any:
        return None if take(transport.fileno()) else read()

    transport.doRead = take_or_read  # type: ignore[method-assign]  # the reactor looks it up for each event


def ask_no_more(transport: Any) -> None:
    """Undo ``ask_first`` once the connection is lost, since the two form a reference cycle."""
    vars(transport).pop("doRead", None)


@frozen
class _Pipe:
    """The descriptors of both ends. It is closed when its owner is collected."""

    reading: int
    writing: int
    close: Callable[[], object]


class Splicing:
    """Moves bytes through one pipe, which is empty between two moves and is made when it is first needed."""

    def __init__(self) -> None:
        self._pipe: _Pipe | None = None
        self._possible = True

    def move(self, source: int, target: Any, max_bytes: int) -> int:
        """Move up to ``max_bytes`` from the socket with the descriptor ``source`` to the transport ``target``, and
        return their number.

        What the target's socket does not take at once becomes memory of this process, as after ``write``. A failure
        of ``target`` shows as after ``write``; a failed ``source`` looks afterwards as if it were at its end.

        0 if the bytes have to be read and written instead: ``target`` is not a plain connection or still has
        something to send, there is nothing to be read, or the system does not allow it.
        """
        pipe = self._open_pipe() if self._possible and is_ready(target) else None
        if pipe is None:
            return 0
        try:
            moved = left = _splice(source, pipe.writing, max_bytes)
            while left and (sent := _splice(pipe.reading, target.fileno(), left)):
                left -= sent
            if left:
                target.write(_read(pipe.reading, left))
        except BaseException:
            # What is left in it belongs to one client and must not reach another.
            self._pipe = None
            pipe.close()
            raise
        return moved

    def _open_pipe(self) -> _Pipe | None:
        """The pipe; None if there can be none: for now, or ever if it may not be large enough."""
        if self._pipe is not None:
            return self._pipe
        try:
            ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        pipe = _Pipe(*ends, weakref.finalize(self, _close, *ends))
        try:
            fcntl.fcntl(pipe.writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            # The pipes of one user have 64 MiB together, unless the administrator decided otherwise.
            self._possible = False
            pipe.close()
            return None
        self._pipe = pipe
        return pipe


def _splice(source: int, target: int, size: int) -> int:
    try:
        return os.splice(source, target, size, flags=_FLAGS | os.SPLICE_F_MORE * (size >= _BUSY_BYTES))
    except OSError:
        return 0


def _read(pipe: int, size: int) -> bytes:
    """All that is in the pipe: ``size`` bytes."""
    data = os.read(pipe, size)
    while len(data) < size:
        data += os.read(pipe, size - len(data))
    return data


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
