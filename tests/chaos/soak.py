"""Hours in minutes: a mixed load for a while, and whether what the service holds stays flat (``make soak``).

Sampled every few seconds: resident memory and descriptors of each process of the service, connections to PostgreSQL
and to the store. Flat: the median of the last third is at most ``SLACK`` and a little above the middle third's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic

import psycopg2
from attrs import define, field

from project_service.embedded.data_directory import running_beside
from project_service.embedded.leftovers import PROC
from tests.chaos.reading import Reading
from tests.live.daemon import Daemon, pid_of, workers_of
from tests.live.loaded_service import credentials, judge, load_on, make_ledger, started, warmed_up
from tests.live.mixed_load import Load

SLACK = 0.05
# Growth that means nothing, by unit: a cache or a connection more or less.
TRIFLES = {"MB": 3.0, "files": 10.0, "": 3.0}
SWEEPING = "sweep_seconds = 30\n"
COUNT = "select count(*) from pg_stat_activity where application_name = 'project-service'"


@define
class Series:
    """One figure over time; ``judged`` when it is the service's own."""

    name: str
    unit: str
    read: Callable[[], float]
    judged: bool = True
    values: list[float] = field(factory=list)

    def at(self, begin: float, end: float) -> float:
        """The median between two moments, given as parts of the whole time."""
        count = len(self.values)
        return median(self.values[int(begin * count) : max(int(begin * count) + 1, int(end * count))])

    @property
    def flat(self) -> bool:
        middle, last = self.at(1 / 3, 2 / 3), self.at(2 / 3, 1)
        return last <= middle * (1 + SLACK) + TRIFLES[self.unit]


def resident(pid: int) -> float:
    return int((PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(pid: int) -> float:
    return len(list((PROC / str(pid) / "fd").iterdir()))


def connections_to(port: int) -> float:
    """Established TCP connections whose far end is ``port`` (proc_net_tcp(5))."""
    lines = (PROC / "net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)


def watched(directory: Path, daemon: Daemon, count: Callable[[], float]) -> list[Series]:
    processes = {"parent": daemon.process.pid}
    processes |= {f"worker {n}": pid for n, pid in enumerate(sorted(workers_of(daemon)), 1)}
    found = [
        Series(f"{name}: {what}", unit, partial(read, pid))
        for what, unit, read in (("memory", "MB", resident), ("descriptors", "files", descriptors))
        for name, pid in processes.items()
    ]
    known = running_beside(directory / "var")
    assert known is not None and known.store is not None and known.store.endpoint_url is not None
    s3 = int(known.store.endpoint_url.rpartition(":")[2])
    return [
        *found,
        Series("connections to PostgreSQL", "", count),
        Series("connections to the store", "", lambda: connections_to(s3)),
        Series("SeaweedFS: memory", "MB", lambda: resident(pid_of(directory / "var", "weed")), judged=False),
    ]


def sample(series: list[Series], load: Load, minutes: float, every: float) -> None:
    end = monotonic() + minutes * 60
    while monotonic() < end:
        for one in series:
            one.values.append(one.read())
        load.pause(every)


def table(series: list[Series], minutes: float) -> str:
    minute = 1 / minutes
    lines = [f"{'':28} {'first minute':>13} {'middle':>9} {'last minute':>12}"]
    for one in series:
        verdict = ("flat" if one.flat else "GROWS") if one.judged else "(not judged)"
        first, middle, last = (
            one.at(0, minute),
            one.at(0.5 - minute / 2, 0.5 + minute / 2),
            one.at(1 - minute, 1),
        )
        lines.append(f"{one.name:28} {first:13.1f} {middle:9.1f} {last:12.1f} {one.unit:5} {verdict}")
    return "\n".join(lines)


def soak(directory: Path, minutes: float, every: float, pace: float) -> bool:
    """True when everything stayed flat. Raises ``AssertionError`` for a wrong answer or anything lost."""
    with started(directory, storage=SWEEPING) as daemon:
        make_ledger(directory)
        with closing(psycopg2.connect(credentials(directory)["dsn"])) as connection:
            connection.autocommit = True
            cursor = connection.cursor()

            def count() -> float:
                cursor.execute(COUNT)
                return float(cursor.fetchall()[0][0])

            with load_on(directory, pace=pace) as load, Reading(load, pace) as reading:
                warmed_up(load)
                begun = monotonic()
                before = workers_of(daemon)
                series = watched(directory, daemon, count)
                sample(series, load, minutes, every)
                print(table(series, minutes), flush=True)
                assert workers_of(daemon) == before, "a worker died"
        print("reads:", dict(reading.counted), flush=True)
        assert reading.wrong == [], reading.wrong[:10]
        assert (reading.refused, reading.broken) == (0, 0)
        judge(load, f"{minutes:.0f} minutes of mixed load", begun)
    return all(one.flat for one in series if one.judged)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="between two samples")
    parser.add_argument(
        "--pace", type=float, default=0.03, metavar="SECONDS", help="between a client's requests"
    )
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="project-service-soak-") as directory:
        flat = soak(Path(directory), asked.minutes, asked.every, asked.pace)
    print("verdict:", "flat" if flat else "something grows", flush=True)
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
