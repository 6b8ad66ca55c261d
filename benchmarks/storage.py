"""Objects beside their limit: the same bytes to and from the store directly, by the same clients in the same rounds.

``python -m benchmarks.storage [--rounds 3] [--seconds 2]`` measures storage alone, and memory in full.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg2

from benchmarks import (
    storage_images,
    storage_listing,
    storage_memory,
    storage_resumable,
    storage_rules,
    storage_uploads,
)
from benchmarks.bare_client import BareClient, BareStore
from benchmarks.load import Costed, Request, wrk
from benchmarks.memory import MIB
from benchmarks.report import HEADING, Row, interleaved, show
from benchmarks.running import Running, service
from benchmarks.storage_memory import OBJECTS
from benchmarks.storage_uploads import SMALL

LARGE = 64 * MIB


def measure(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    """What ``make bench`` shows of large objects and of ``features``; memory with objects a quarter of the full
    size."""
    yield from large(running, rounds)
    yield from features(running, rounds, seconds)
    yield from storage_memory.measure(running, LARGE)


def features(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    """Resumable uploads, rules about who sees objects, and pictures in other sizes."""
    yield from storage_resumable.measure(running, rounds)
    yield from storage_rules.measure(running, rounds, seconds)
    yield from storage_images.measure(running, rounds, seconds)


def small(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    store = BareStore.behind(running)
    key = {"X-Service-Key": running.service_key}
    with BareClient(running.url) as client:
        for name in ("small", "fetched"):
            client.request("PUT", OBJECTS + name, {"Host": "bench", **key}, os.urandom(SMALL))
    path = stored_path(running, "small")
    kept = Request(running.url + OBJECTS + "small", key)
    # All but a byte, since a piece is not kept in memory; of an object of its own, which is never read whole.
    fetched = Costed(
        Request(running.url + OBJECTS + "fetched", {**key, "Range": "bytes=1-"}), (running.cpu_seconds,)
    )
    wrk(kept, 1), wrk(fetched.request, 1)
    rate, fetching, limit = interleaved(
        rounds,
        lambda: wrk(kept, seconds).rate,
        lambda: fetched.rate(seconds),
        lambda: wrk(Request(*store.headers(path)), seconds).rate,
    )
    beside = f"store {limit:.0f}/s"
    yield Row("object: 4 KiB GET", f"{rate:.0f}/s", beside, rate / limit, 0.4)
    yield Row("object: 4 KiB GET, fetched", f"{fetching:.0f}/s", beside, fetching / limit, 0.4)
    (cost,) = fetched.microseconds
    yield Row("CPU of a 4 KiB GET, fetched", f"{cost:.0f} us", "our processes", cost, 250, "at most")
    yield from storage_uploads.measure(running, rounds, seconds)


def large(running: Running, rounds: int) -> Iterator[Row]:
    store = BareStore.behind(running)
    headers = {"Host": "bench", "X-Service-Key": running.service_key}
    payload = os.urandom(LARGE)  # which no store can make smaller
    with BareClient(running.url) as ours, BareClient(store.address.origin) as direct:
        ours.request("PUT", OBJECTS + "large", headers, payload)
        path = stored_path(running, "large")

        def down() -> float:
            return _rate(lambda: ours.request("GET", OBJECTS + "large", headers))

        def down_direct() -> float:
            return _rate(lambda: store.request(direct, "GET", path))

        def up() -> float:
            return _rate(lambda: ours.request("PUT", OBJECTS + "upload", headers, payload))

        def up_direct() -> float:
            return _rate(lambda: store.request(direct, "PUT", "bench/upload", payload))

        down(), down_direct()
        rate, limit = interleaved(3 * rounds, down, down_direct)
        yield _beside("object: 64 MiB GET", rate, limit, 0.9)
        rate, limit = interleaved(3 * rounds, up, up_direct)
        yield _beside("object: 64 MiB upload", rate, limit, 0.8)


def _rate(transfer: Callable[[], object]) -> float:
    """MiB a second of one large object."""
    started = time.perf_counter()
    transfer()
    return LARGE / MIB / (time.perf_counter() - started)


def _beside(work: str, ours: float, store: float, goal: float) -> Row:
    return Row(work, f"{ours:.0f} MiB/s", f"store {store:.0f} MiB/s", ours / store, goal)


def stored_path(running: Running, key: str) -> str:
    """Where the store has the bytes of an object of the bucket ``private``."""
    with closing(psycopg2.connect(running.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("select version from storage.objects where bucket = 'private' and key = %s", (key,))
        found = cursor.fetchone()
    assert found is not None
    return f"private/{found[0]}"


def main() -> None:
    options = argparse.ArgumentParser(description="Storage beside its limit.")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=2.0, help="of each measurement of small objects")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--listing", action="store_true", help="also pages of 1,000,000 objects")
    options.add_argument("--rules", action="store_true", help="only objects under rules about who sees them")
    options.add_argument("--resumable", action="store_true", help="only resumable uploads")
    options.add_argument("--pictures", action="store_true", help="only pictures in other sizes")
    given = options.parse_args()
    print(HEADING)
    with service(given.workers, storage_images.SETTINGS) as running:
        if given.resumable:
            show(storage_resumable.measure(running, given.rounds))
            show([storage_memory.resumable(running)])
            return
        if given.rules:
            show(storage_rules.measure(running, given.rounds, given.seconds))
            return
        if given.pictures:
            show(storage_images.measure(running, given.rounds, given.seconds))
            return
        show(small(running, given.rounds, given.seconds))
        show(large(running, given.rounds))
        show(storage_resumable.measure(running, given.rounds))
        show(storage_memory.measure(running, 256 * MIB))
        if given.listing:
            show(storage_listing.measure(running))


if __name__ == "__main__":
    main()
