"""Loopback ports that are free now and stay the same from one start to the next."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

# Below the range the kernel gives to outgoing connections (32768 up), also with SeaweedFS' offset added.
LOWEST, HIGHEST = 12000, 22000
# SeaweedFS' worker looks for the admin server's gRPC port at this distance and nowhere else.
GRPC_OFFSET = 10000

NAMES = ("master", "master_grpc", "volume", "volume_grpc", "filer", "filer_grpc", "s3", "s3_grpc", "admin")
# A port of these takes the one at GRPC_OFFSET with it.
PAIRED = frozenset({"admin"})
ATTEMPTS = 1000

# Where SeaweedFS puts its sockets, whatever TMPDIR says.
SOCKETS = Path("/tmp")  # noqa: S108  # only to see, and to remove, what it leaves

Pick = Callable[[int, int], int]
IsFree = Callable[[int], bool]


def choose(remembered: Mapping[str, int], is_free: IsFree, pick: Pick) -> dict[str, int]:
    """A port for every name: the remembered one where it is free, else one of ``pick(lowest, highest)``.

    Raises ``OSError`` when no free port turns up.
    """
    chosen: dict[str, int] = {}
    for name in NAMES:
        port = remembered.get(name)
        tries = 0
        while port is None or not _usable(name, port, chosen, is_free):
            if tries == ATTEMPTS:
                raise OSError(f"no free loopback port between {LOWEST} and {HIGHEST}")
            port, tries = pick(LOWEST, HIGHEST), tries + 1
        chosen[name] = port
    return chosen


def _usable(name: str, port: int, chosen: Mapping[str, int], is_free: IsFree) -> bool:
    taken = {one for other, number in chosen.items() for one in numbers(other, number)}
    return all(one not in taken and is_free(one) for one in numbers(name, port))


def numbers(name: str, port: int) -> tuple[int, ...]:
    """The ports that the one of ``name`` takes, its own first."""
    return (port, port + GRPC_OFFSET) if name in PAIRED else (port,)


class Claims:
    """Ports that a service of ours means to use, or uses: no other takes them, not even between our look at a port
    and the store's use of it. A copy of a data directory brings its ports and its store's keys along, so that of
    two copies that start at once one would take the other's store for its own.

    They end with the process, or by ``release``.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def claim(self, port: int) -> bool:
        """Whether it is ours now; what listens there is another question, see ``is_free``."""
        if port in self._held or sys.platform != "linux":
            return True
        # A name in no file system: for all users of the host, and gone with its process.
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(f"\0project-service-port-{port}")
        except OSError:
            mark.close()
            return False
        self._held[port] = mark
        return True

    def release(self) -> None:
        for mark in self._held.values():
            mark.close()
        self._held.clear()


def is_free(port: int) -> bool:
    """Whether a server could listen on the port, on loopback and on every address (the store tries both).

    The store puts a socket named after each port into the temporary folder too; one that another user left there is
    in its way for ever.
    """
    if any(_is_anothers(path) for path in SOCKETS.glob(f"seaweedfs-*-{port}.sock")):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do, so that a port whose last connections are still in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  # bound for an instant and never listened on
        except OSError:
            return False
    return True


def _is_anothers(path: Path) -> bool:
    """Whether we may not remove it: the temporary folder lets only owners (and root) do that."""
    try:
        return os.geteuid() not in (0, path.lstat().st_uid)
    except FileNotFoundError:
        return False
