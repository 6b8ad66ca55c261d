"""What a connection that is given up has not sent yet."""

from __future__ import annotations

import os
import socket
import struct


def drop_unsent(descriptor: int) -> None:
    """Make the socket send nothing more, also of what was written to it already. To be called before it is closed.

    By itself the kernel goes on sending for minutes. After an interruption of the network, the database would then
    execute a statement whose caller was refused long ago, and undo what the caller has done since then.
    """
    with socket.socket(fileno=os.dup(descriptor)) as seen:
        seen.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
