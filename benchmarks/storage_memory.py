"""What the service takes in memory while bytes flow through it: 16 large uploads, 16 downloads, 200 slow readers, and
64 resumable uploads while the store answers nothing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import urlsplit

from benchmarks.bare_client import BareClient
from benchmarks.memory import MIB, held_during
from benchmarks.report import Row
from benchmarks.running import Running
from benchmarks.storage_resumable import PART, PARTS_IN_MEMORY, Senders

PARALLEL, READERS, RESUMABLE = 16, 200, 64
RESUMABLE_BYTES = 64 * MIB
PART_MIB = PART // MIB
OBJECTS = "/storage/buckets/private/objects/"


def measure(running: Running, size: int) -> Iterator[Row]:
    """Growth of all workers together, with objects of ``size`` bytes."""
    headers = {"Host": "bench", "X-Service-Key": running.service_key}
    payload = os.urandom(size)

    def each(transfer: Callable[[BareClient, int], object]) -> None:
        def one(number: int) -> None:
            with BareClient(running.url) as client:
                transfer(client, number)

        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(one, range(PARALLEL)))

    def upload(client: BareClient, number: int) -> None:
        client.request("PUT", f"{OBJECTS}m{number}", headers, payload)

    def download(client: BareClient, number: int) -> None:
        client.request("GET", f"{OBJECTS}m{number}", headers)

    what = f"of {size // MIB} MiB"
    yield _grown(
        running,
        f"memory: {PARALLEL} uploads {what}",
        lambda: each(upload),
        PARALLEL * PARTS_IN_MEMORY * PART_MIB + 32,
    )
    yield _grown(running, f"memory: {PARALLEL} downloads {what}", lambda: each(download), 32)
    yield _grown(
        running, f"memory: {READERS} slow readers {what}", lambda: _read_slowly(running, headers), 100
    )
    yield resumable(running)


def resumable(running: Running) -> Row:
    headers = {"X-Service-Key": running.service_key}
    work = f"memory: {RESUMABLE} tus uploads of {RESUMABLE_BYTES // MIB} MiB"
    goal = RESUMABLE * PARTS_IN_MEMORY * PART_MIB + 32
    with Senders(running.url, headers, os.urandom(RESUMABLE_BYTES), RESUMABLE, "tus") as senders:
        return _grown(running, work, lambda: senders.fill_memory(running.store_pid), goal)


def _read_slowly(running: Running, headers: dict[str, str]) -> None:
    """Everyone asks for a large object and reads 128 KiB a second of it."""
    where = urlsplit(running.url)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with ExitStack() as stack:
        readers = []
        for _ in range(READERS):
            reader = stack.enter_context(socket.create_connection((where.hostname, where.port)))
            reader.sendall(f"GET {OBJECTS}m0 HTTP/1.1\r\n{lines}\r\n".encode())
            # Two hundred in one moment would be a burst, which is another matter.
            begun = reader.recv(65536)
            if not begun.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"a slow reader was refused: {begun[:200]!r}")
            readers.append(reader)
        for _ in range(10):
            for reader in readers:
                if not reader.recv(65536):
                    raise RuntimeError("a slow reader was cut off")
            time.sleep(0.5)


def _grown(running: Running, work: str, flow: Callable[[], None], goal: float) -> Row:
    """Of all workers together."""
    held = held_during(flow, *running.workers)
    return Row(work, f"+{held.growth:.0f} MiB", f"from {held.before:.0f} MiB", held.growth, goal, "at most")
