"""The SeaweedFS cluster of docs/operating/stores.rst: its files as they stand there, with three addresses of loopback
for the three machines, and the proxy that hosts of the service have before it."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from secrets import randbelow, token_hex

import requests
from psycopg2.extensions import parse_dsn

from project_service.embedded.seaweed import program_file
from project_service.settings.model import Secret, Store
from tests.chaos.standby import Pair
from tests.live.daemon import eventually
from tests.live.programs import program
from tests.live.service.documented import blocks
from tests.live.sql import run_each
from tests.temporary import free_port

PAGE = "operating/stores.rst"
PROGRAMS = ("master", "volume", "filer", "s3")
MACHINES = 3
# What is other than on three machines: small volumes, and copies between addresses of loopback, which SeaweedFS would
# refuse.
_REHEARSED = {"volumeSizeLimitMB=4096": "volumeSizeLimitMB=8", "max=0": "max=30"}
_LOOPBACK = "volume.allowUntrustedRemoteEndpoints=true\n"


@contextmanager
def store_cluster(directory: Path) -> Iterator[StoreCluster]:
    """A cluster with a PostgreSQL of its own, in ``directory``, for as long as the block lasts."""
    servers, machines = directory / "postgresql", directory / "machines"
    servers.mkdir(mode=0o700)
    machines.mkdir()
    pair = Pair(servers)
    try:
        pair.start_primary()
        made = StoreCluster(machines, pair.admin_dsn)
        try:
            made.start()
            yield made
        finally:
            made.stop()
    finally:
        pair.stop()


class StoreCluster:
    """``start`` starts all of it, ``lose`` kills programs of a machine, ``bring_back`` starts them again. Machines
    are numbered from 0. The filers' database is made in the server of ``admin_dsn``, a superuser's."""

    def __init__(self, directory: Path, admin_dsn: str) -> None:
        self._directory = directory
        self._admin_dsn = admin_dsn
        # Other runs on this machine have other addresses, since the ports are always the same.
        net = f"127.{1 + randbelow(254)}.{randbelow(256)}"
        self.addresses = [f"{net}.{number}" for number in range(31, 31 + MACHINES)]
        self._proxy_port = free_port()
        self._secrets = {
            name: token_hex(16) for name in ("FILER_PASSWORD", "STORE_KEY_ID", "STORE_SECRET", "CLUSTER_KEY")
        }
        self._running: dict[tuple[int, str], subprocess.Popen[bytes]] = {}
        self._proxy: subprocess.Popen[bytes] | None = None

    @property
    def section(self) -> str:
        """``[store]`` of a service's configuration, as the page has it, with less patience."""
        return self._filled("store.toml") + "connect_timeout_seconds = 2\nidle_timeout_seconds = 3\n"

    @property
    def settings(self) -> Store:
        """The same, for a client of the store alone."""
        section = tomllib.loads(self._filled("store.toml"))["store"]
        return Store(**{**section, "secret_access_key": Secret(section["secret_access_key"])})

    def start(self) -> None:
        run_each(self._admin_dsn, *filter(str.strip, self._filled("filer.sql").split(";")))
        for machine in range(MACHINES):
            for folder in ("etc", "var/master", "var/volume"):
                (self._directory / str(machine) / folder).mkdir(parents=True)
            self._configure(machine)
            self.bring_back(machine)
        eventually(lambda: all(map(_healthy, self._gateways())), "the S3 gateways")
        (self._directory / "haproxy.cfg").write_text(self._filled("haproxy.cfg"))
        with (self._directory / "haproxy.log").open("wb") as log:
            command = [program("haproxy"), "-db", "-f", str(self._directory / "haproxy.cfg")]
            self._proxy = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        eventually(lambda: _healthy(f"http://127.0.0.1:{self._proxy_port}"), "the proxy before them")

    def lose(self, machine: int, programs: Sequence[str] = PROGRAMS) -> None:
        """Kill them by SIGKILL."""
        lost = [self._running.pop((machine, name)) for name in programs]
        for process in lost:
            process.kill()
        for process in lost:
            process.wait()

    def bring_back(self, machine: int, programs: Sequence[str] = PROGRAMS) -> None:
        for name in programs:
            self._running[machine, name] = self._weed(machine, f"{name}.log", *self._started(machine, name))

    def shell(self, caption: str) -> str:
        """What a file of ``weed shell`` commands prints, asked of the last machine's master."""
        command = ["shell", f"-master={self.addresses[-1]}:9333"]
        process = subprocess.run(
            [program_file(), *command],
            input=self._filled(caption),
            env=self._environment(MACHINES - 1),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return process.stdout + process.stderr

    def copies(self) -> set[int]:
        """How many copies volumes have."""
        return set(Counter(chain.from_iterable(self.volumes().values())).values())

    def volumes(self) -> dict[str, list[int]]:
        """Which volumes each volume server has that the masters know of, by its address."""
        listed: dict[str, list[int]] = {}
        for line in self.shell("list.weed").splitlines():
            if found := re.match(r"\s*DataNode ([\d.]+):\d+ hdd", line):
                here = listed.setdefault(found[1], [])
            elif found := re.match(r"\s*volume Id:(\d+),", line):
                here.append(int(found[1]))
        return listed

    def stop(self) -> None:
        for process in (*self._running.values(), *filter(None, [self._proxy])):
            process.kill()
            process.wait()

    def _gateways(self) -> list[str]:
        return [f"http://{address}:8333" for address in self.addresses]

    def _started(self, machine: int, name: str) -> list[str]:
        """The command line of the unit, for the instance ``name``."""
        unit = self._filled("seaweedfs@.service", machine)
        _, _, command = unit.partition("\nExecStart=/opt/seaweedfs/bin/weed ")
        return command.partition("\n")[0].replace("%i", name).split()

    def _weed(self, machine: int, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._directory / str(machine) / log).open("ab") as file:
            return subprocess.Popen(
                [program_file(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self._directory / str(machine) / "var",
                env=self._environment(machine),
            )

    def _configure(self, machine: int) -> None:
        etc = self._directory / str(machine) / "etc"
        for name in (*(f"{one}.options" for one in PROGRAMS), "filer.toml", "s3.json"):
            text = self._filled(name, machine)
            (etc / name).write_text(text + (_LOOPBACK if name == "volume.options" else ""))

    def _environment(self, machine: int) -> dict[str, str]:
        var = str(self._directory / str(machine) / "var")
        keys = dict(line.split("=", 1) for line in self._filled("environment").split())
        return {"PATH": os.environ["PATH"], "HOME": var, "TMPDIR": var, **keys}

    def _filled(self, caption: str, machine: int = 0) -> str:
        """A file of the page for one machine."""
        (text,) = (block.text for block in blocks(PAGE) if block.file == caption)
        text = re.sub(r"^(ip|ip\.bind)=.*", rf"\1={self.addresses[machine]}", text, flags=re.M)
        known = parse_dsn(self._admin_dsn)
        here = self._directory / str(machine)
        replaced = {
            **{f"10.0.0.{31 + number}": address for number, address in enumerate(self.addresses)},
            "127.0.0.1:8333": f"127.0.0.1:{self._proxy_port}",
            "/etc/seaweedfs": str(here / "etc"),
            "/var/lib/seaweedfs": str(here / "var"),
            '"db.example.com"': f'"{known["host"]}"',
            "port = 5432": f"port = {known['port']}",
            'sslmode = "require"': 'sslmode = "disable"',
            **_REHEARSED,
            **self._secrets,
        }
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text


def _healthy(url: str) -> bool:
    try:
        return requests.get(f"{url}/healthz", timeout=5).status_code == 200
    except requests.RequestException:
        return False
