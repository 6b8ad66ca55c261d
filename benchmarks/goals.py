"""What an everyday request may cost, and what storage's features may, each line beside its goal.

    YARDSTICK=FOLDER CALLS=FOLDER python -m benchmarks.goals [--rounds 3] [--seconds 2] [--workers 2]

``YARDSTICK`` names the folder of ``straight.py``, which answers the same table requests from the same database in the
shortest way that there is; ``CALLS`` that of ``calls.py``, which counts the calls and modules that a request passes.
Without them their lines are left out.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import storage, storage_images, tables
from benchmarks.auth import PASSWORD, SETTINGS, Client
from benchmarks.load import CLIENTS, Costed, Request, beside_slow, wrk
from benchmarks.report import HEADING, Row, interleaved, show
from benchmarks.running import ROOT, Running, service, yardstick
from tests.temporary import free_port

# Of the yardstick's requests a second.
_BESIDE = ((tables.ROW, 0.75), (tables.PAGE, 0.9), (tables.LEVELS, 0.75), (tables.INSERT, 0.75))
# By the names that calls.py prints: at most so many calls of ours, and modules where there is a goal.
_CALLS = {
    "row by key": (60, 20),
    "insert": (90, None),
    "object 4 KiB, range": (100, None),
    "upload 4 KiB": (220, 30),
    "list 100": (60, None),
    "GET /auth/user": (50, None),
}


def measure(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    """``running`` has just been started, and has none of the tables yet."""
    idle = running.memory()
    yield Row("memory of an idle worker", f"{idle:.0f} MiB", "-", idle, 70, "at most")
    running.sql(tables.SCHEMA)
    yield from _beside_yardstick(running, rounds, seconds)
    yield _signed_in(running, rounds, seconds)
    yield _of_clients(running, rounds, seconds)
    yield from _row(running, rounds, seconds)
    yield _beside_slow(running, rounds, seconds)
    yield from storage.small(running, rounds, seconds)
    yield from _calls()


def _beside_yardstick(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    folder = os.environ.get("YARDSTICK")
    if not folder:
        print("YARDSTICK does not name the yardstick's folder: nothing is measured beside it")
        return
    command = [str(Path(folder, "straight.py").resolve()), running.dsn]
    command += ["--port", str(free_port()), "--key", running.anon_key]
    with yardstick(command) as (address, _):
        for case, goal in _BESIDE:
            here, there = case.request(running), case.request(running, address)
            rate, limit = _side_by_side(here, there, rounds, seconds)
            yield Row(f"table: {case.name}", f"{rate:.0f}/s", f"yardstick {limit:.0f}/s", rate / limit, goal)


def _side_by_side(one: Request, other: Request, rounds: int, seconds: float) -> list[float]:
    """Requests a second of both."""
    wrk(one, 1), wrk(other, 1)
    return interleaved(rounds, lambda: wrk(one, seconds).rate, lambda: wrk(other, seconds).rate)


def _signed_in(running: Running, rounds: int, seconds: float) -> Row:
    account = {"email": "owner@example.test", "password": PASSWORD}
    session = Client(running.url).post("/auth/signup", account)
    running.sql(
        f"insert into own_items select *, '{session['user']['id']}' from items; vacuum analyze own_items"
    )
    token = {"Authorization": f"Bearer {session['access_token']}"}
    own = tables.Case("", "/own_items?id=eq.7", headers=token).request(running)
    signed_in, anon = _side_by_side(own, tables.ROW.request(running), rounds, seconds)
    name = "table: a user's row, row-level security"
    return Row(name, f"{signed_in:.0f}/s", f"by the anon key {anon:.0f}/s", signed_in / anon, 0.85)


def _of_clients(running: Running, rounds: int, seconds: float) -> Row:
    """A row where clients of the Supabase family look for it: the table API under another path, at the same cost."""
    there, here = (
        Costed(case.request(running), (running.cpu_seconds,)) for case in (tables.CLIENT_ROW, tables.ROW)
    )
    interleaved(rounds, lambda: there.rate(seconds), lambda: here.rate(seconds))
    (theirs,), (own,) = there.microseconds, here.microseconds
    reference = f"at the database's path {own:.0f} us"
    return Row("CPU of a row at /rest/v1: ours", f"{theirs:.0f} us", reference, theirs / own, 1.05, "at most")


def _row(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    request = tables.ROW.request(running)
    row = Costed(request, (running.cpu_seconds, running.database_cpu_seconds))
    (peak,) = interleaved(rounds, lambda: row.rate(seconds))
    ours, postgres = row.microseconds
    yield Row("CPU of a row: ours", f"{ours:.0f} us", f"{len(running.workers)} workers", ours, 90, "at most")
    yield Row("CPU of a row: PostgreSQL's", f"{postgres:.0f} us", "its backends", postgres, 50, "at most")
    # Each client waits between its requests.
    load = wrk(request, 3 * seconds, pause_ms=CLIENTS / (peak / 2) * 1000)
    name = f"p99 / p50 of a row at {load.rate / peak:.0%} of the peak"
    yield Row(name, f"{load.p99:.2f} ms", f"p50 {load.p50:.2f} ms", load.p99 / load.p50, 2.5, "at most")


def _beside_slow(running: Running, rounds: int, seconds: float) -> Row:
    quick, slow = tables.ROW.request(running), tables.SLOW.request(running)
    rates: list[float] = []

    def among_slow() -> float:
        with beside_slow(slow, 20, 10, rates):
            load = wrk(quick, seconds, may_fail=True)
        return math.inf if load.failed else load.p99

    alone, beside = interleaved(rounds, lambda: wrk(quick, seconds).p99, among_slow)
    reference = f"alone {alone:.2f} ms, {min(rates):.0f} slow/s"
    return Row(
        "p99 of a row, a slow query every 10 ms",
        f"{beside:.2f} ms",
        reference,
        beside / alone,
        1.5,
        "at most",
    )


def _calls() -> Iterator[Row]:
    folder = os.environ.get("CALLS")
    if not folder:
        print("CALLS does not name the folder of calls.py: no calls are counted")
        return
    command = [sys.executable, str(Path(folder) / "calls.py"), str(ROOT)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    for kind, (most_calls, most_modules) in _CALLS.items():
        counted = re.search(rf"(?m)^{re.escape(kind)} +(\d+) +(\d+) +(\d+)$", printed)
        if counted is None:
            raise SystemExit(f"calls.py does not say what it should of {kind}:\n{printed}")
        calls, libraries, modules = map(int, counted.groups())
        yield Row(f"calls: {kind}", str(calls), f"in libraries {libraries}", calls, most_calls, "at most")
        if most_modules is not None:
            yield Row(f"modules: {kind}", str(modules), "-", modules, most_modules, "at most")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options.add_argument("--workers", type=int, default=2)
    given = options.parse_args()
    print(HEADING)
    with service(given.workers, {**SETTINGS, **storage_images.SETTINGS}) as running:
        rows = show(measure(running, given.rounds, given.seconds))
        rows += show(storage.features(running, given.rounds, given.seconds))
    print(f"{sum(row.verdict == 'met' for row in rows)} of {len(rows)} goals met")


if __name__ == "__main__":
    main()
