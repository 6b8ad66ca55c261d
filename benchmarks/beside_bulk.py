"""A row while others send and fetch bulk: how long it waits for turns of the reactor in which bytes are moved.

``python -m benchmarks.beside_bulk [--rounds 3] [--seconds 3] [--workers 1]``
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from attrs import frozen

from benchmarks import tables
from benchmarks.bare_client import BareClient
from benchmarks.load import Load, Request, wrk
from benchmarks.memory import MIB
from benchmarks.report import HEADING, Row, interleaved, show
from benchmarks.running import Running, service
from benchmarks.storage_memory import OBJECTS

CLIENTS = 4
LARGE = 64 * MIB
# The mean pause of each of wrk's clients: what they ask for together leaves most of the worker free.
_PAUSE_MS = 40.0
_TEXT = "x" * 980
_NOTES = "/dev/db/main/rest/notes"


@frozen
class Bulk:
    """What each of the other clients repeats."""

    name: str
    method: str
    path: str
    body: Callable[[], bytes]
    headers: dict[str, str]


_FORM = {"Content-Type": "application/json", "Prefer": "return=minimal"}
_KINDS = (
    Bulk("64 MiB uploads", "PUT", OBJECTS + "bulk", lambda: os.urandom(LARGE), {}),
    Bulk("64 MiB downloads", "GET", OBJECTS + "bulk", lambda: b"", {}),
    Bulk("1 MiB JSON bodies", "POST", _NOTES, lambda: _json(MIB), _FORM),
)


def _json(size: int) -> bytes:
    """Rows of about a kilobyte, as many as fit."""
    row = b'{"text":"%b"}' % _TEXT.encode()
    return b"[%b]" % b",".join([row] * ((size - 2) // (len(row) + 1)))


def measure(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    """``running`` has the tables of ``benchmarks.tables``, and one worker."""
    row = tables.ROW.request(running)
    with BareClient(running.url) as client:
        headers = {"Host": "bench", "X-Service-Key": running.service_key}
        client.request("PUT", OBJECTS + "bulk", headers, os.urandom(LARGE))

    def alone() -> float:
        return _paced(row, seconds).p99

    for kind in _KINDS:

        def beside(kind: Bulk = kind) -> float:
            with _repeated(running, kind):
                return _paced(row, seconds).p99

        usual, found = interleaved(rounds, alone, beside)
        name = f"p99 of a row beside {CLIENTS} clients: {kind.name}"
        yield Row(name, f"{found:.1f} ms", f"alone {usual:.1f} ms", found, 5, "at most")


def _paced(row: Request, seconds: float) -> Load:
    return wrk(row, seconds, pause_ms=_PAUSE_MS)


@contextmanager
def _repeated(running: Running, kind: Bulk) -> Iterator[None]:
    """While the block runs, ``CLIENTS`` connections repeat what ``kind`` says, from processes of their own."""
    context = multiprocessing.get_context("spawn")
    headers = {"Host": "bench", "X-Service-Key": running.service_key, **kind.headers}
    processes = []
    try:
        for number in range(CLIENTS):
            ready, begun = context.Pipe()
            # Each replaces an object of its own.
            path = kind.path + (str(number) if kind.method == "PUT" else "")
            arguments = (running.url, kind.method, path, headers, kind.body(), begun)
            process = context.Process(target=_repeat, args=arguments, daemon=True)
            process.start()
            processes.append(process)
            ready.recv()
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _repeat(
    url: str, method: str, path: str, headers: dict[str, str], body: bytes, begun: Connection
) -> None:
    with BareClient(url) as client:
        begun.send(None)
        while True:
            client.request(method, path, headers, body)


def measured(rounds: int, seconds: float, workers: int = 1) -> list[Row]:
    with service(workers) as running:
        running.sql(tables.SCHEMA)
        return show(measure(running, rounds, seconds))


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options.add_argument("--workers", type=int, default=1)
    given = options.parse_args()
    print(HEADING)
    measured(given.rounds, given.seconds, given.workers)


if __name__ == "__main__":
    main()
