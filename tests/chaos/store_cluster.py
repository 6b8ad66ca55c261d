"""Three SeaweedFS volume servers that keep two copies of everything (replication 001), and the loss of one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from time import monotonic

import requests

from project_service.embedded.seaweed import SOCKETS, program_file
from tests.chaos.reading import Reading
from tests.live.daemon import answers, eventually
from tests.live.loaded_service import judge, load_on, make_ledger, started
from tests.live.mixed_load import PACE_SECONDS, PARTS, Load
from tests.temporary import free_port

VOLUME_SERVERS = 3


class StoreCluster:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._master = _ports()
        self._filer = _ports()
        self._s3 = free_port()
        self._key, self._secret = token_hex(10), token_hex(20)
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def section(self) -> str:
        """``[store]`` of a service's configuration."""
        return (
            f'[store]\nendpoint_url = "http://127.0.0.1:{self._s3}"\nbucket = "cluster"\n'
            f'access_key_id = "{self._key}"\nsecret_access_key = "{self._secret}"\n'
            "connect_timeout_seconds = 2\nidle_timeout_seconds = 3\n"
        )

    def start(self) -> None:
        master = f"127.0.0.1:{self._master[0]}.{self._master[1]}"
        ports = _port_options(self._master)
        self._serve("master", *ports, "-defaultReplication=001", "-volumeSizeLimitMB=64", "-telemetry=false")
        for number in range(VOLUME_SERVERS):
            name = f"volume-{number}"
            self._serve(name, *_port_options(_ports()), f"-mserver={master}", "-max=20", "-preStopSeconds=0")
        identity = {"accessKey": self._key, "secretKey": self._secret}
        config = self._directory / "identities.json"
        config.write_text(
            json.dumps({"identities": [{"name": "test", "credentials": [identity], "actions": ["Admin"]}]})
        )
        filer = f"127.0.0.1:{self._filer[0]}.{self._filer[1]}"
        self._serve("filer", *_port_options(self._filer), f"-master={master}", "-defaultReplicaPlacement=001")
        eventually(lambda: _listens(f"http://127.0.0.1:{self._filer[0]}"), "the filer")
        off = ["-port.iceberg=0", "-port.lance=0", "-iam=false"]
        self._serve(
            "s3", *_port_options((self._s3, free_port())), f"-filer={filer}", f"-config={config}", *off
        )
        eventually(lambda: _listens(f"http://127.0.0.1:{self._s3}"), "the S3 port")

    def lose_one(self) -> None:
        """Kills one by SIGKILL; it does not come back."""
        self._servers["volume-0"].kill()
        self._servers.pop("volume-0").wait()

    def stop(self) -> None:
        for server in self._servers.values():
            server.kill()
            server.wait()
        for port in (self._filer[0], self._s3):
            for socket in SOCKETS.glob(f"seaweedfs-*-{port}.sock"):
                socket.unlink(missing_ok=True)

    def _serve(self, name: str, *options: str) -> None:
        kind = name.partition("-")[0]
        data = self._directory / name
        data.mkdir()
        places = {"master": f"-mdir={data}", "volume": f"-dir={data}", "filer": f"-defaultStoreDir={data}"}
        address = ["-ip.bind=127.0.0.1"] if kind == "s3" else ["-ip=127.0.0.1", places[kind]]
        with (self._directory / f"{name}.log").open("wb") as log:
            self._servers[name] = subprocess.Popen(
                [program_file(), "-logtostderr", kind, *address, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=data,
                env={"PATH": "/usr/bin:/bin", "HOME": str(data), "TMPDIR": str(data)},
            )


def _ports() -> tuple[int, int]:
    return free_port(), free_port()


def _port_options(ports: tuple[int, int]) -> list[str]:
    return [f"-port={ports[0]}", f"-port.grpc={ports[1]}"]


def _listens(url: str) -> bool:
    try:
        requests.get(url, timeout=5)
    except requests.RequestException:
        return False
    return True


def lose_a_volume_server(directory: Path) -> None:
    """Raises ``AssertionError`` where reads or writes do not go on or anything acknowledged is gone."""
    servers = directory / "servers"
    servers.mkdir()
    cluster = StoreCluster(servers)
    try:
        cluster.start()
        with started(directory, more=cluster.section):
            eventually(lambda: _stores(directory), "an object that is stored")
            make_ledger(directory)
            with load_on(directory) as load, Reading(load, PACE_SECONDS) as reading:
                eventually(lambda: load.has_gone_on(dict.fromkeys(PARTS, 0), 60), "objects on every server")
                _during(load, reading, cluster.lose_one)
    finally:
        cluster.stop()


def _during(load: Load, reading: Reading, fault: Callable[[], None]) -> None:
    since = monotonic()
    fault()
    before, read = load.acknowledged(), reading.counted["download"]
    eventually(lambda: load.has_gone_on(before, 60), "acknowledgements of all three parts")
    eventually(lambda: reading.counted["download"] > read + 100, "downloads of objects on every server")
    print(f"reads {dict(reading.counted)}, refused {reading.refused}, broken off {reading.broken}")
    assert reading.wrong == [], reading.wrong[:10]
    eventually(lambda: answers(f"{load.base_url}/ready"), "readiness")
    load.stop()
    judge(load, "a volume server of three killed, for good", since)


def _stores(directory: Path) -> bool:
    """Whether the store takes objects: its first volumes are made when the first one is written."""
    load = load_on(directory)
    url = f"{load.base_url}/storage/buckets/private/objects/first"
    return requests.put(url, data=b"first", headers=load.headers, timeout=30).status_code in {200, 201}
