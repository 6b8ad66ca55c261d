"""Ten times the clients that the service can serve, and a crowd that only takes up connections.

Decides on ratios of one run on one machine. What is compared is the goodput of the time in which the serving process
was not kept waiting for a processor, so that a machine that does other things meanwhile is not taken for a service
that does not keep up.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import sleep

import requests
from attrs import frozen

from benchmarks.memory import resident
from tests.chaos.clients import Clients, Outcome
from tests.chaos.crowd import Crowd
from tests.live.daemon import Daemon, eventually
from tests.live.sql import run_sql

TIMES = 10
GOODPUT_AT_LEAST = 0.8
SLOWER_AT_MOST = 2.0
# Of resident memory, once it has served its peak.
GROWTH_AT_MOST = 1.25
PEAK_CLIENTS = (8, 16, 32)
PEAK_SECONDS = 5.0
CROWD_SECONDS = 20.0
IDLE, READERS, STREAMS, HALF = 5000, 900, 100, 300
USUAL_LIMIT = ("prlimit", "--nofile=1024:")
LARGE_BYTES = 64 * 1024 * 1024
ROW = "/dev/db/main/rest/orders?id=eq.7"
ALL_ROWS = "/dev/db/main/rest/wide"
SMALL = "/storage/buckets/public/objects/small"
LARGE = "/storage/buckets/public/objects/large"
USER = "/auth/user"
SLOW = "/dev/db/main/rest/rpc/slow"
# Clients of that function, which ask again after a moment; all of them can be served in time.
WAITING_CLIENTS = (15, 20, 200, 20)
PAUSE_SECONDS = 0.05
REFUSED = "project_service_requests_refused_total"
TABLES = """
create table orders (id int primary key, total numeric, note text);
insert into orders select i, i, 'note ' || i from generate_series(1, 10000) i;
create function slow() returns int language sql stable as 'select 1 from pg_sleep(0.2)';
create table wide (id int, filling text);
insert into wide select i, repeat('x', 1000) from generate_series(1, 100000) i;
grant select on orders, wide to anon, service_role;
notify pgrst, 'reload schema';
"""


@frozen
class Service:
    url: str
    key: str
    token: str
    pid: int

    def clients(self, path: str, clients: int, seconds: float, pause: float = 0.0) -> Clients:
        more = f"Authorization: Bearer {self.token}\r\n" if path == USER else ""
        return Clients.start(self.url, path, self.key, clients, seconds, pause, more)

    def resident(self) -> float:
        """MiB of the process that serves."""
        return resident(self.pid)

    def delayed(self) -> float:
        """For how many seconds its thread could have run and had no processor (Linux, sched-stats.txt)."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    def metric(self, name: str) -> float:
        shown = requests.get(f"{self.url}/metrics", timeout=30).text
        return sum(float(line.rpartition(" ")[2]) for line in shown.splitlines() if line.startswith(name))


@frozen
class Served:
    clients: int
    outcome: Outcome
    goodput: float


@frozen
class Load:
    """A load of so many clients."""

    service: Service
    clients: Clients
    count: int
    delayed: float

    @classmethod
    def start(cls, service: Service, path: str, count: int, seconds: float) -> Load:
        return cls(service, service.clients(path, count, seconds), count, service.delayed())

    def end(self) -> Served:
        outcome = self.clients.outcome()
        delayed = min(self.service.delayed() - self.delayed, 0.9 * outcome.seconds)
        goodput = len(outcome.latencies) / (outcome.seconds - delayed)
        print(f"{self.count:5} clients: {outcome}  ({goodput:.0f}/s with a processor)", flush=True)
        return Served(self.count, outcome, goodput)


def overload(directory: Path, seconds: float) -> None:
    """Raises ``AssertionError`` where goodput falls, memory grows, or others are served late."""
    # With the limits of a login shell, so that the service has to raise its own.
    with Daemon(directory / "var", "--config", str(_config(directory)), before=USUAL_LIMIT) as daemon:
        daemon.wait_until_ready()
        service = _prepared(directory, daemon)
        faults = [*_flood(service, ROW, seconds), *_flood(service, SMALL, seconds / 4)]
        faults += [*_flood(service, USER, seconds / 4), *_flood(service, SLOW, seconds / 4)]
        faults += [*_waiting(service), *_crowd(service)]
        assert not faults, "; ".join(faults)


def _config(directory: Path) -> Path:
    config = directory / "overload.toml"
    config.write_text('[server]\nlog_level = "warn"\n[database]\nstatement_timeout_seconds = 300\n')
    config.with_suffix(".toml").chmod(0o600)
    return config


def _prepared(directory: Path, daemon: Daemon) -> Service:
    known = json.loads((directory / "var" / "credentials.json").read_text())
    url, headers = known["base_url"], {"X-Service-Key": known["service_key"]}
    run_sql(known["dsn"], TABLES)
    account = {"email": "crowd@example.test", "password": "correct horse 7"}
    token = requests.post(f"{url}/auth/signup", json=account, timeout=60).json()["data"]["access_token"]
    for path, size in ((SMALL, 4096), (LARGE, LARGE_BYTES)):
        put = requests.put(url + path, data=b"x" * size, headers=headers, timeout=120)
        assert put.status_code == 201, put.text
    eventually(lambda: requests.get(url + ROW, headers=headers, timeout=9).status_code == 200, "the tables")
    return Service(url, known["service_key"], token, daemon.process.pid)


def _flood(service: Service, path: str, seconds: float) -> list[str]:
    """The peak, then ten times as many clients that come again at once."""
    print(f"--- {path}")
    Load.start(service, path, PEAK_CLIENTS[0], 2.0).end()
    best = max(
        (Load.start(service, path, count, PEAK_SECONDS).end() for count in PEAK_CLIENTS),
        key=lambda one: one.goodput,
    )
    before, refused = service.resident(), service.metric(REFUSED)
    load = Load.start(service, path, TIMES * best.clients, seconds)
    health = _health(service, seconds)
    flood = load.end()
    after, refused = service.resident(), service.metric(REFUSED) - refused
    # A machine is not equally fast all the time, so the peak is measured before and afterwards.
    again = Load.start(service, path, best.clients, PEAK_SECONDS).end()
    share, flooded = 2 * flood.goodput / (best.goodput + again.goodput), flood.outcome
    print(f"      goodput {share:.2f} of the peak; counted as refused: {refused:.0f}")
    print(f"      resident {before:.0f} -> {after:.0f} MiB; /live answered in {health * 1000:.0f} ms at most")
    faults = []
    if share < GOODPUT_AT_LEAST:
        faults.append(f"{path}: goodput {share:.2f} of the peak")
    if after > GROWTH_AT_MOST * before:
        faults.append(f"{path}: memory {before:.0f} -> {after:.0f} MiB")
    if set(flooded.statuses) - {"200", "503"} or flooded.broken or flooded.retry_after_missing:
        faults.append(f"{path}: {flooded.statuses}, {flooded.broken} broken connections")
    return faults


def _waiting(service: Service) -> list[str]:
    """More clients than connections, but no more than can be served in time: nobody is refused."""
    print(f"--- {SLOW}, again after {PAUSE_SECONDS} s")
    faults = []
    for count in WAITING_CLIENTS:
        outcome = service.clients(SLOW, count, PEAK_SECONDS, PAUSE_SECONDS).outcome()
        print(f"{count:5} clients: {outcome}", flush=True)
        if set(outcome.statuses) != {"200"}:
            faults.append(f"{SLOW}: {outcome.statuses} for {count} clients")
    return faults


def _health(service: Service, seconds: float) -> float:
    """The longest that /live took meanwhile, asked once a second. Every answer has to be good."""
    longest = 0.0
    for _ in range(int(seconds)):
        for path in ("/live", "/ready"):
            answer = requests.get(service.url + path, timeout=30)
            assert answer.status_code == 200, f"{path} returned {answer.status_code} under overload"
            longest = max(longest, answer.elapsed.total_seconds())
        sleep(1)
    return longest


def _crowd(service: Service) -> list[str]:
    print(f"--- {IDLE} idle connections, {READERS + STREAMS} slow readers, {HALF} half-sent requests")
    usual = _others(service)
    before = service.resident()
    crowd = Crowd.gather(service.url, service.key, [("idle", "/live", IDLE)])
    print(f"      resident {before:.0f} -> {service.resident():.0f} MiB with the idle ones", end="")
    more = [("reader", LARGE, READERS), ("stream", ALL_ROWS, STREAMS), ("half", "/live", HALF)]
    others = Crowd.gather(service.url, service.key, more)
    print(f" -> {service.resident():.0f} with all")
    crowded = _others(service)
    counted = crowd.count() + others.count()
    print(f"      {dict(counted)}; resident {service.resident():.0f} MiB", flush=True)
    faults = []
    if (
        counted["idle 200"] < IDLE
        or counted["idle closed"]
        or counted["reader 200"] < READERS
        or counted["reader closed"]
    ):
        faults.append(f"the crowd was not served: {counted}")
    for path in usual:
        slower = crowded[path].percentile(0.99) / max(usual[path].percentile(0.99), 0.001)
        print(f"{path:40} alone:   {usual[path]}")
        print(f"{'':40} crowded: {crowded[path]}  p99 x {slower:.2f}")
        if slower > SLOWER_AT_MOST:
            faults.append(f"{path}: p99 x {slower:.2f} beside the crowd")
        if set(crowded[path].statuses) != {"200"}:
            faults.append(f"{path}: {crowded[path].statuses} beside the crowd")
    eventually(lambda: crowd.count()["idle closed"] == IDLE, "the end of idle connections")
    eventually(lambda: others.count()["half closed"] == HALF, "the end of half-sent requests")
    crowd.leave()
    others.leave()
    return faults


def _others(service: Service) -> dict[str, Outcome]:
    """A light load of each kind at the same time."""
    under_way = {path: service.clients(path, 2, CROWD_SECONDS, pause=0.02) for path in (ROW, SMALL, USER)}
    return {path: clients.outcome() for path, clients in under_way.items()}
