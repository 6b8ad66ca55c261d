"""Small uploads beside their yardstick, which makes one PUT and one row of each (``straight_upload``).

``python -m benchmarks.storage_uploads [--rounds 5] [--seconds 3] [--workers 1]``
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator

from attrs import frozen

from benchmarks.load import CLIENTS, Costed, Request, wrk
from benchmarks.report import HEADING, Row, interleaved, show
from benchmarks.running import Running, cpu_seconds, service, yardstick
from benchmarks.storage_memory import OBJECTS

SMALL = 4096


@frozen
class NewKeys(Request):
    """Each request to a key of its own below the URL's path."""

    def script(self, pause_ms: float) -> str:
        own = "local n = 0\nfunction request() n = n + 1 return wrk.format(nil, wrk.path .. n) end"
        return f"{super().script(pause_ms)}\n{own}"


class Uploads:
    """Uploads of 4 KiB to ``address``, and what each costs by ``clock``, in seconds of CPU."""

    def __init__(self, address: str, key: str, clock: Callable[[], float]) -> None:
        self._to, self._key = address + OBJECTS, key
        self._numbers = itertools.count()
        self._costed = Costed(Request(self._to), (clock,))

    def rate(self, seconds: float) -> float:
        """Uploads a second, once more."""
        below = f"{self._to}puts/{next(self._numbers)}/"
        self._costed.request = NewKeys(below, {"X-Service-Key": self._key}, "PUT", "x" * SMALL)
        return self._costed.rate(seconds)

    @property
    def microseconds(self) -> float:
        (cost,) = self._costed.microseconds
        return cost


def measure(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    """The yardstick is one process; several workers have more CPUs than it."""
    ours = Uploads(running.url, running.service_key, running.cpu_seconds)
    with yardstick(["-m", "benchmarks.straight_upload", str(running.data_dir)]) as (address, pid):
        straight = Uploads(address, running.service_key, lambda: cpu_seconds(pid))
        wrk(NewKeys(f"{running.url}{OBJECTS}warm/", {"X-Service-Key": running.service_key}, "PUT", "x"), 1)
        rate, limit = interleaved(rounds, lambda: ours.rate(seconds), lambda: straight.rate(seconds))
    cost, least = ours.microseconds, straight.microseconds
    yield Row("object: 4 KiB PUT", f"{rate:.0f}/s", f"yardstick {limit:.0f}/s", rate / limit, 0.7)
    yield Row("object: 4 KiB PUTs a second", f"{rate:.0f}/s", f"{CLIENTS} clients", rate, 400)
    yield Row("CPU of a 4 KiB PUT", f"{cost:.0f} us", f"yardstick {least:.0f} us", cost, 900, "at most")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options.add_argument("--workers", type=int, default=1)
    given = options.parse_args()
    print(HEADING)
    with service(given.workers) as running:
        show(measure(running, given.rounds, given.seconds))


if __name__ == "__main__":
    main()
