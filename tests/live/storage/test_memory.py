"""The memory that a service takes while bytes flow through it, measured from outside."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import requests
from attrs import frozen

from benchmarks.memory import MIB, held_during
from benchmarks.storage_resumable import PART, PARTS_IN_MEMORY, Senders
from tests.live.daemon import Daemon, pid_of
from tests.live.services import WithDatabase

SIZE = 48 * MIB


@frozen
class Served:
    url: str
    headers: dict[str, str]
    pid: int
    store_pid: int

    def object_url(self, key: str) -> str:
        return f"{self.url}/storage/buckets/private/objects/{key}"

    def files(self) -> set[str]:
        """The regular files that a process has open."""
        targets = set()
        for fd in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if fd.is_file():
                    targets.add(str(fd.readlink()))
        return targets

    def growth(self, work: Callable[[], None]) -> float:
        """By how many MiB the service's memory was larger at its peak while ``work`` ran."""
        return held_during(work, self.pid).growth


@pytest.fixture(scope="module")
def served(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data_dir = with_database(Path(tmp_path_factory.mktemp("memory")) / "var")
    with Daemon(data_dir) as daemon:
        url = daemon.wait_until_ready()
        known = json.loads((data_dir / "credentials.json").read_text())
        headers = {"X-Service-Key": known["service_key"]}
        yield Served(url, headers, daemon.process.pid, pid_of(data_dir, "weed"))


def test_uploads_hold_two_parts_each(served: Served) -> None:
    """And no file: the bytes of an upload are in memory or in the store."""
    block, seen = os.urandom(MIB), set[str]()

    def upload(number: int) -> None:
        def stream() -> Iterator[bytes]:
            for _ in range(SIZE // MIB):
                seen.update(served.files())
                yield block

        url = served.object_url(f"m{number}")
        requests.put(url, headers=served.headers, data=stream(), timeout=120).raise_for_status()

    def work() -> None:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(upload, range(6)))

    upload(0)
    # From here on no module is imported for the first time.
    before = served.files()
    seen.clear()
    assert served.growth(work) <= 6 * 2 * 8 + 32
    assert seen <= before


def test_resumable_uploads_hold_two_parts_each_while_the_store_answers_nothing(served: Served) -> None:
    """``make bench`` has 64 of them, of 64 MiB."""
    count, payload = 6, os.urandom(4 * PART)

    with Senders(served.url, served.headers, payload, count, "t") as senders:
        grown = served.growth(lambda: senders.fill_memory(served.store_pid))
    assert grown <= count * PARTS_IN_MEMORY * PART / MIB + 32
    for number in range(count):
        got = requests.get(served.object_url(f"t{number}"), headers=served.headers, timeout=120)
        assert got.content == payload


def test_slow_readers_cost_hardly_any_memory(served: Served) -> None:
    """Together they ask for ten times the limit."""
    requests.put(served.object_url("slow"), headers=served.headers, data=os.urandom(SIZE), timeout=120)
    lines = "".join(f"{name}: {value}\r\n" for name, value in served.headers.items())
    head = f"GET /storage/buckets/private/objects/slow HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode()
    host, port = served.url.removeprefix("http://").split(":")
    readers: list[socket.socket] = []

    def work() -> None:
        for _ in range(100):
            reader = socket.create_connection((host, int(port)), timeout=60)
            reader.sendall(head)
            readers.append(reader)
        for _ in range(20):
            for reader in readers:
                assert reader.recv(16384)

    try:
        assert served.growth(work) <= 100 * 0.5 + 32
    finally:
        for reader in readers:
            reader.close()
