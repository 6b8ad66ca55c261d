"""Standbys that are read from lag, hang and die, and one is promoted: no read is older than promised.

Each row of a table is one writer's counter. A writer reads its own row after each acknowledged change, on the
connection that it wrote on or, from any worker, with the token that it got. Others read any row on connections of
their own. What they may see follows from a model: a read shows at least what had been acknowledged ``STALENESS``
before it was sent, and to its writer at least what was acknowledged to it. All times are of one clock, and those of
the client: an acknowledgement arrives later than it was given, and a read is sent before it arrives, so no tolerance
is needed.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import requests
from attrs import define, field

from tests.live.daemon import eventually
from tests.live.loaded_service import credentials, started
from tests.live.standbys import READERS, Standbys

STALENESS = 1.0
# A request may wait for its connection for as long as a busy machine takes to make one: while there is a primary none
# may fail.
ENVIRONMENT = {
    "PROJECT_SERVICE__SERVER__TRUSTED_PROXIES": '["127.0.0.1"]',
    "PROJECT_SERVICE__DATABASE__ACQUIRE_TIMEOUT_SECONDS": "15",
}
WRITERS, OBSERVERS = 3, 3
LONGEST_SECONDS = 30.0
SCHEMA = f"""
create role anon; create role authenticated; create role service_role;
grant anon, authenticated, service_role to project_service; grant pg_read_all_stats to project_service;
create table public.counters (id int primary key, value int not null default 0);
insert into public.counters select i from generate_series(1, {WRITERS}) as i;
grant select, update on public.counters to anon, service_role;
"""
DATABASE = """
[stages.dev.databases.main]
dsn = "{servers.dsn}"
read_dsn = "{servers.read_dsn}"
max_staleness_seconds = {staleness}
pool_size = 6
"""


@define(eq=False)
class Ledger:
    """What was acknowledged of each row, and when: ``times`` and ``values`` go up together."""

    times: dict[int, list[float]] = field(factory=lambda: {row: [] for row in range(1, WRITERS + 1)})
    values: dict[int, list[int]] = field(factory=lambda: {row: [] for row in range(1, WRITERS + 1)})

    def acknowledged(self, row: int, value: int) -> None:
        self.values[row].append(value)
        self.times[row].append(monotonic())

    def at_least(self, row: int, before: float) -> int:
        """What a read has to show that must show all that was acknowledged before a moment."""
        count = bisect_left(self.times[row], before)
        return self.values[row][count - 1] if count else 0


class Clients:
    """The writers and observers, each in a thread. ``wrong`` are the reads that showed less than they had to."""

    def __init__(self, base_url: str, key: str, random: Random) -> None:
        self._url = f"{base_url}/dev/db/main/rest/counters"
        self._key = key
        self._ledger = Ledger()
        self._over = threading.Event()
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        # While the primary is lost writes fail, and after a while reads do.
        self.may_fail = False
        seeds = [random.randrange(2**32) for _ in range(WRITERS + OBSERVERS)]
        self._threads = [
            threading.Thread(target=self._run, args=(number, Random(seed)), daemon=True)
            for number, seed in enumerate(seeds, 1)
        ]

    def _run(self, number: int, random: Random) -> None:
        session, work = requests.Session(), self._write if number <= WRITERS else self._observe
        session.headers["X-Service-Key"] = self._key
        # Each is a caller of its own.
        session.headers["X-Forwarded-For"] = f"10.0.0.{number}"
        while not self._over.is_set():
            try:
                work(session, number, random)
            except requests.RequestException as fault:
                self._failed(type(fault).__name__)
            sleep(0.002)

    def _failed(self, why: str) -> None:
        self.counts["failed"] += 1
        if not self.may_fail:
            self.wrong.append(f"a request failed: {why}")

    def _write(self, session: requests.Session, row: int, random: Random) -> None:
        value = self.counts[f"row {row}"] + 1
        # Counted before it is sent, since an answer may be lost.
        self.counts[f"row {row}"] = value
        reply = session.patch(
            self._url, params={"id": f"eq.{row}"}, json={"value": value}, timeout=LONGEST_SECONDS
        )
        if reply.status_code != 204:
            self._failed(f"PATCH {reply.status_code} {reply.text}")
            return
        self._ledger.acknowledged(row, value)
        self.counts["written"] += 1
        for _ in range(random.randrange(1, 6)):
            sleep(random.choice((0.0, 0.01, 0.2)))
            if random.random() < 0.5:
                self._read(session, row, value, "the writer")
            else:
                # A connection of its own, which may lead to the other worker.
                with requests.Session() as other:
                    other.headers.update(session.headers)
                    other.headers["Consistency-Token"] = reply.headers["Consistency-Token"]
                    self._read(other, row, value, "the token")

    def _observe(self, session: requests.Session, number: int, random: Random) -> None:
        row = random.randrange(1, WRITERS + 1)
        self._read(session, row, self._ledger.at_least(row, monotonic() - STALENESS), "an observer")

    def _read(self, session: requests.Session, row: int, least: int, who: str) -> None:
        reply = session.get(self._url, params={"id": f"eq.{row}"}, timeout=LONGEST_SECONDS)
        if reply.status_code != 200:
            self._failed(f"GET {reply.status_code} {reply.text}")
            return
        self.counts[f"reads by {who}"] += 1
        shown = reply.json()[0]["value"]
        if shown < least:
            self.wrong.append(f"{who} of row {row} was shown {shown} instead of {least} or more")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(LONGEST_SECONDS)

    def go_on(self, reads: int = 30) -> None:
        """Wait until so many more reads of each kind, and some writes, have been answered; then judge."""
        before, kinds = self.counts.copy(), ("the writer", "the token", "an observer")
        eventually(
            lambda: (
                bool(self.wrong)
                or (
                    all(self.counts[f"reads by {who}"] >= before[f"reads by {who}"] + reads for who in kinds)
                    and self.counts["written"] > before["written"]
                )
            ),
            "requests of all kinds",
        )
        self.judge()

    def judge(self) -> None:
        assert not self.wrong, f"{len(self.wrong)} wrong, the first: {self.wrong[0]}"


@define(eq=False)
class Faults:
    """What happens to the standbys. Commits wait for ``one``, so that nothing acknowledged is lost when it takes
    over: it may lag, but neither hang nor die before."""

    servers: Standbys
    clients: Clients
    base_url: str

    def lag(self, random: Random) -> None:
        """A standby stops to replay for longer than the promise, and catches up."""
        name = random.choice(READERS)
        self.servers.pause(name)
        since = monotonic()
        self.clients.go_on()
        while monotonic() < since + STALENESS * 1.5:
            self.clients.go_on(10)
        self.servers.go_on(name)

    def both_lag(self, random: Random) -> None:
        """Then only the primary serves."""
        for name in READERS:
            self.servers.pause(name)
        since = monotonic()
        while monotonic() < since + STALENESS * 2:
            self.clients.go_on(10)
        for name in READERS:
            self.servers.go_on(name)

    def hang(self, random: Random) -> None:
        with self.servers.hanging("two"):
            self.clients.go_on()

    def die(self, random: Random) -> None:
        self.servers.kill("two")
        self.clients.go_on()
        self.servers.serve("two")

    def promote(self) -> None:
        """The primary dies, ``one`` takes over, and ``two`` follows it."""
        self.clients.may_fail = True
        self.servers.kill("primary")
        self.servers.promote_to_primary("one")
        self.servers.sql("one", "alter system reset synchronous_standby_names")
        self.servers.sql("one", "select pg_reload_conf()")
        self.servers.follow("two", "one")
        self.clients.go_on()
        # Of what is the primary now nothing is stale. Until every worker knows that, it may still fail at one.
        self.wait_for(*READERS)
        self.clients.may_fail = False

    def served_by(self) -> set[int]:
        """The ports of the standbys that all workers read from."""
        found = set()
        for line in self.metrics("reader_staleness_seconds{"):
            labels, _, seconds = line.rpartition(" ")
            if float(seconds) <= STALENESS:
                found.add(int(labels.rpartition(":")[2].rstrip('"}')))
        return found

    def wait_for(self, *names: str) -> None:
        """Wait until these standbys are read from by all processes, and no others."""
        expected = {self.servers.port(name) for name in names}
        eventually(lambda: self.served_by() == expected, f"reads from {', '.join(names)}")

    def metrics(self, name: str) -> list[str]:
        lines = requests.get(f"{self.base_url}/metrics", timeout=LONGEST_SECONDS).text.splitlines()
        return [line for line in lines if line.startswith(f"project_service_{name}")]


def readers(directory: Path, random: Random, rounds: int) -> None:
    """Raises ``AssertionError`` for a read that was older than promised, or that failed while a primary was there."""
    folder = directory / "servers"
    folder.mkdir(mode=0o700)
    os.environ.update(ENVIRONMENT)
    servers = Standbys(folder)
    try:
        servers.start()
        servers.sql("primary", SCHEMA)
        servers.sql("primary", "alter system set synchronous_standby_names = 'one'")
        servers.sql("primary", "select pg_reload_conf()")
        servers.in_step()
        more = DATABASE.format(servers=servers, staleness=STALENESS)
        with started(directory, more=more, storage="") as _:
            known = credentials(directory)
            clients = Clients(known["base_url"], known["service_key"], random)
            faults = Faults(servers, clients, known["base_url"])
            faults.wait_for(*READERS)
            with clients.at_work():
                _go(faults, clients, random, rounds)
            clients.judge()
            _show(clients, faults)
    finally:
        for name in ENVIRONMENT:
            del os.environ[name]
        servers.stop()


def _go(faults: Faults, clients: Clients, random: Random, rounds: int) -> None:
    clients.go_on()
    for _ in range(rounds):
        kinds: list[Callable[[Random], Any]] = [faults.lag, faults.both_lag, faults.hang, faults.die]
        random.shuffle(kinds)
        for fault in kinds:
            fault(random)
            faults.wait_for(*READERS)
            clients.go_on()
    faults.promote()
    clients.go_on()


def _show(clients: Clients, faults: Faults) -> None:
    print(
        "  "
        + ", ".join(f"{count} {what}" for what, count in sorted(clients.counts.items()) if what[:4] != "row ")
    )
    for line in faults.metrics("reads_total{"):
        print(f"  {line}")
