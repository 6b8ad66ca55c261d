"""The hot path beside its limits, as one table: ``python -m benchmarks [--rounds 3] [--seconds 2] [--json FILE]``.

Ratios are of this run on this machine, medians of interleaved rounds, clients included. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

from benchmarks import (
    auth,
    auth_challenges,
    beside_bulk,
    console,
    goals,
    much_data,
    related,
    storage,
    storage_images,
    tables,
)
from benchmarks.load import wrk
from benchmarks.memory import calm
from benchmarks.report import HEADING, Row, save, save_table, show
from benchmarks.running import Running, service


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--json", type=Path, default=Path("benchmarks.json"))
    options.add_argument("--rst", type=Path, help="where to write the table for the documentation")
    given = options.parse_args()
    began = time.monotonic()
    print(HEADING)
    with service(
        given.workers, {**auth.SETTINGS, **auth_challenges.settings(), **storage_images.SETTINGS}
    ) as running:
        rows = _small(running, given.rounds, given.seconds)
        much_data.fill(running, 10, 10, 10)
        with service(given.workers, auth.SETTINGS) as large:
            large.sql(tables.SCHEMA)
            much_data.fill(large, much_data.TABLES, much_data.USERS, much_data.OBJECTS)
            rows += show(much_data.listing(large, given.rounds, given.seconds))
            rows += show(much_data.measure(running, large, given.rounds, given.seconds))
    rows += related.measured(2 * given.rounds + 1)
    rows += beside_bulk.measured(given.rounds, given.seconds)
    rows += console.measured(given.rounds)
    took = time.monotonic() - began
    about = {
        "cpus": len(os.sched_getaffinity(0)),
        "workers": given.workers,
        "python": platform.python_version(),
    }
    save(rows, given.json, {**about, "rounds": given.rounds, "seconds": given.seconds, "took": round(took)})
    if given.rst is not None:
        how = f"{given.workers} workers, {given.rounds} rounds of {given.seconds:g} s"
        save_table(rows, given.rst, f"Python {platform.python_version()}, {about['cpus']} CPUs, {how}.")
    met = sum(row.verdict == "met" for row in rows)
    print(f"{met} of {len(rows)} goals met, {took / 60:.1f} minutes, {given.json}")


def _small(running: Running, rounds: int, seconds: float) -> list[Row]:
    idle = running.memory()
    rows = show(goals.measure(running, rounds, seconds))
    rows += show(auth.measure(running, rounds, seconds))
    rows += show(auth_challenges.measure(running, rounds, seconds))
    rows += show(storage.measure(running, rounds, seconds))
    # The interpreter finds what is garbage while it works, and four times a minute what is free is given back.
    wrk(tables.ROW.request(running), seconds + 2)
    after = calm(running.memory, 20)
    rows += show(
        [
            Row(
                "memory after all that",
                f"{after:.0f} MiB",
                f"idle {idle:.0f} MiB",
                after / idle,
                1.3,
                "at most",
            )
        ]
    )
    return rows


if __name__ == "__main__":
    main()
