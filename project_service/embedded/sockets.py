"""Chooses loopback ports that are free now and, if possible, the same as at the last start."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import asdict, field, frozen

from project_service import files

# The files with the passwords and keys that embedded mode makes for itself, and with the ports it uses.


NAME = "embedded.json"


@frozen
class Secrets:
    """All of them are left out of ``repr``."""

    superuser_password: str = field(repr=False)
    owner_password: str = field(repr=False)
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    # Signs the requests between SeaweedFS' parts, so that their ports refuse the machine's other users.
    store_signing_key: str = field(repr=False)


def load_or_make(data_dir: Path, token: Callable[[], str]) -> Secrets:
    """The secrets of the data directory. At its first use they are made of ``token()``.

    Raises ``ValueError`` if the file is damaged, or missing although there is a database.
    """
    path = data_dir / NAME
    value = files.read_json(path)
    if value is None:
        if (data_dir / "postgres" / "PG_VERSION").exists():
            raise ValueError(
                f"{path} is gone, and with it the passwords of the database beside it; restore it"
            )
        secrets = Secrets(*(token() for _ in range(5)))
        files.write_json(path, asdict(secrets))
        return secrets
    try:
        return Secrets(**value)
    except TypeError:
        raise ValueError(f"{path} is not what project-service wrote; restore it") from None


def load_ports(data_dir: Path) -> dict[str, int]:
    """The ports of the last start by name; none if the file cannot be read."""
    try:
        value = files.read_json(data_dir / "run" / "ports.json") or {}
    except ValueError:
        return {}
    return {name: port for name, port in value.items() if isinstance(port, int)}


def save_ports(data_dir: Path, ports: Mapping[str, int]) -> None:
    files.write_json(data_dir / "run" / "ports.json", dict(ports))


# Even with SeaweedFS' offset added they are below the range that the kernel uses for outgoing connections (32768 up).
LOWEST, HIGHEST = 12000, 22000
# SeaweedFS' worker expects the admin server's gRPC port at this distance from its port; it cannot be configured.
GRPC_OFFSET = 10000

NAMES = ("master", "master_grpc", "volume", "volume_grpc", "filer", "filer_grpc", "s3", "s3_grpc", "admin")
# The names whose port also needs the one GRPC_OFFSET above it.
PAIRED = frozenset({"admin"})
ATTEMPTS = 1000

# Where SeaweedFS puts its sockets, regardless of TMPDIR.
SOCKETS = Path("/tmp")  # noqa: S108  # only to see, and to remove, what it leaves

Pick = Callable[[int, int], int]
IsFree = Callable[[int], bool]


def choose(remembered: Mapping[str, int], is_free: IsFree, pick: Pick) -> dict[str, int]:
    """A port for every name: the remembered one if it is free, otherwise one that ``pick(lowest, highest)`` returns.

    Raises ``OSError`` if no free port is found.
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
    """The ports that ``name`` occupies if it is given ``port``, which comes first."""
    return (port, port + GRPC_OFFSET) if name in PAIRED else (port,)


class PortClaims:
    """Ports that this service uses or is about to use. While they are claimed no other project-service of the host
    takes them, not even between our check of a port and the store's use of it.

    This matters for copies of a data directory, which have the same remembered ports and the same keys for the store:
    if two were started at once, one could take the other's store for its own. Claims end with the process, or by
    ``release``.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def claim(self, port: int) -> bool:
        """Whether the port is claimed for us now. It says nothing about what listens there: see ``is_free``."""
        if port in self._held:
            return True
        # An abstract socket: its name holds for all users of the host, and is gone with the process.
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
    """Whether a server could listen on the port, on loopback and on all addresses; the store tries both.

    The store also makes a socket file for each port in the temporary folder. If another user has left a file of that
    name there, the port can never be used.
    """
    if any(_is_anothers(path) for path in SOCKETS.glob(f"seaweedfs-*-{port}.sock")):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set this too, so a port whose last connections are in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  # bound for an instant and never listened on
        except OSError:
            return False
    return True


def _is_anothers(path: Path) -> bool:
    """Whether we cannot remove the file: in the temporary folder only its owner and root can."""
    try:
        return os.geteuid() not in (0, path.lstat().st_uid)
    except FileNotFoundError:
        return False
