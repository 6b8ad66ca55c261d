"""Pictures that fit: a stored one beside a plain object of the same size, and the memory of 50 made at once.

``python -m benchmarks.storage --pictures [--rounds 3] [--seconds 2]`` measures these alone. It needs the extra
``images``, and a service with ``SETTINGS``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pyvips

from benchmarks.bare_client import BareClient
from benchmarks.load import Request, wrk
from benchmarks.memory import MIB, held_during, resident
from benchmarks.report import Row, interleaved
from benchmarks.running import Running
from benchmarks.storage_memory import OBJECTS
from project_service.settings.model import Images

# All pictures are to be made, however long that takes: otherwise the last are refused with ``overloaded``.
SETTINGS = {"PROJECT_SERVICE__IMAGES__WAIT_SECONDS": "600"}
PICTURES = 50
WIDTH, HEIGHT = 6000, 4000
# Of the stored picture: one whose bytes a worker keeps in memory, and one that comes from the store each time.
WIDTHS = {"small": 100, "large": 800}


def measure(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    yield from _stored(running, rounds, seconds)
    yield from _made(running)


def _stored(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    key = {"X-Service-Key": running.service_key}
    sent = {"Host": "bench", **key}
    with BareClient(running.url) as client:
        client.request(
            "PUT", f"{OBJECTS}view.jpg", {**sent, "Content-Type": "image/jpeg"}, picture(1600, 1200)
        )
        for name, width in WIDTHS.items():
            path = f"{OBJECTS}view.jpg?width={width}"
            size = client.request("GET", path, sent)
            client.request("PUT", f"{OBJECTS}plain-{name}", sent, os.urandom(size))
            rendition, plain = (
                Request(running.url + path, key),
                Request(f"{running.url}{OBJECTS}plain-{name}", key),
            )
            wrk(rendition, 1), wrk(plain, 1)
            rate, limit = interleaved(rounds, *(partial(_rate, one, seconds) for one in (rendition, plain)))
            what = f"picture: stored, {size / 1024:.0f} KiB"
            yield Row(what, f"{rate:.0f}/s", f"object {limit:.0f}/s", rate / limit, 0.9)


def _rate(request: Request, seconds: float) -> float:
    return wrk(request, seconds).rate


def _made(running: Running) -> Iterator[Row]:
    """All in different sizes of different objects, which nobody has requested before."""
    headers = {"Host": "bench", "X-Service-Key": running.service_key}
    payload = picture(WIDTH, HEIGHT)
    with BareClient(running.url) as client:
        for number in range(PICTURES):
            sent = {**headers, "Content-Type": "image/jpeg"}
            client.request("PUT", f"{OBJECTS}p{number}.jpg", sent, payload)

    def one(number: int) -> None:
        with BareClient(running.url) as client:
            client.request("GET", f"{OBJECTS}p{number}.jpg?width=1200&format=webp", headers)

    def all_of_them() -> None:
        with ThreadPoolExecutor(PICTURES) as pool:
            list(pool.map(one, range(PICTURES)))

    began = time.monotonic()
    with _Largest(running.pids) as largest:
        held = held_during(all_of_them, *running.workers)
    took = time.monotonic() - began
    limit = Images().memory_bytes / MIB
    what = f"{PICTURES} first pictures of {WIDTH * HEIGHT // 10**6} megapixels"
    beside = f"{largest.processes} processes, {took:.0f} s"
    yield Row(f"memory of a process: {what}", f"{largest.mib:.0f} MiB", beside, largest.mib, limit, "at most")
    yield Row(
        f"memory of the workers: {what}",
        f"+{held.growth:.0f} MiB",
        f"from {held.before:.0f} MiB",
        held.growth,
        64,
        "at most",
    )


class _Largest:
    """The most memory in MiB that a process for pictures has while the block runs, and how many there are."""

    def __init__(self, parents: tuple[int, ...]) -> None:
        self.mib = 0.0
        self.processes = 0
        self._parents = parents
        self._over = Event()
        self._watching = Thread(target=self._watch)

    def __enter__(self) -> _Largest:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watching.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            found = list(image_processes(self._parents))
            self.processes = max(self.processes, len(found))
            for pid in found:
                with suppress(OSError):
                    self.mib = max(self.mib, resident(pid))


def image_processes(parents: tuple[int, ...]) -> Iterator[int]:
    """The pids of the processes that resize pictures for ``parents``."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent in parents and b"pictures/process.py" in stat.with_name("cmdline").read_bytes():
                yield int(stat.parent.name)


def picture(width: int, height: int) -> bytes:
    """A photograph as far as JPEG is concerned: soft, with some noise."""
    bands = [
        pyvips.Image.gaussnoise(width, height, mean=128, sigma=60, seed=one).gaussblur(4) for one in range(3)
    ]
    image = bands[0].bandjoin(bands[1:]).cast("uchar").copy(interpretation="srgb")
    data: bytes = image.jpegsave_buffer(Q=88)
    return data
