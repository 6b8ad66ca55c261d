"""Authentication, measured beside its limit: what bcrypt alone does on this machine.

Run it with ``python benchmarks/auth.py`` in the environment of ``make venv``; it starts a service of its own below a
temporary directory and takes about a minute. Every ratio comes from one run on one machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bcrypt

ROOT = Path(__file__).parents[1]
CLIENTS = 16
PASSWORD = "a long enough one"
READY = re.compile(r"project-service is ready on http://([^:]+):(\d+)")


class Client:
    """One kept-alive connection."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=60)

    def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())


@contextmanager
def service(workers: str) -> Iterator[tuple[str, int]]:
    """A service with the default bcrypt cost and no limit on signups, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="project-service-bench-") as place:
        Path(place).chmod(0o755)
        command = [sys.executable, "-c", "from twisted.scripts.twistd import run; run()"]
        command += ["--nodaemon", "--pidfile=", "project-service", "--data-dir", f"{place}/var"]
        command += ["--listen", "tcp:0:interface=127.0.0.1", "--workers", workers]
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PROJECT_SERVICE__AUTH__SIGNUPS_MAX_PER_ADDRESS": "0",
        }
        running = subprocess.Popen(
            command, cwd=place, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            yield _address(running)
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)


def _address(running: subprocess.Popen[str]) -> tuple[str, int]:
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if found := READY.search(line):
            # Keep reading, so that the service never waits for its log.
            threading.Thread(target=lambda: [None for _ in running.stdout or ()], daemon=True).start()
            return found[1], int(found[2])
    raise RuntimeError("the service did not start:\n" + "".join(lines))


def rate(clients: int, seconds: float, work: Callable[[int], None], settle: float = 0.0) -> float:
    """Calls of ``work(client)`` per second that end in a window during which every thread is at it.

    The window opens ``settle`` seconds after the start, when the first calls have gone through the queue.
    """
    counts = [0] * clients
    opens = time.perf_counter() + settle
    closes = opens + seconds

    def loop(client: int) -> None:
        while time.perf_counter() < closes:
            work(client)
            counts[client] += opens <= time.perf_counter() < closes

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(loop, range(clients)))
    return sum(counts) / seconds


def latencies(seconds: float, work: Callable[[], None], pause: float = 0.005) -> list[float]:
    """How long ``work`` takes, again and again with a pause, in milliseconds."""
    found = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        work()
        found.append((time.perf_counter() - started) * 1000)
        time.sleep(pause)
    return found


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def bare_bcrypt(seconds: float) -> float:
    """Checks per second at the default cost on all CPUs, with nothing else."""
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(12))
    return rate(
        len(os.sched_getaffinity(0)), seconds, lambda _: _must(bcrypt.checkpw(PASSWORD.encode(), hashed))
    )


def _must(fine: bool) -> None:
    if not fine:
        raise AssertionError("a call failed")


def measure(host: str, port: int, seconds: float) -> dict[str, float]:
    sessions: list[dict[str, Any]] = []
    clients = [Client(host, port) for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        status, answer = client.call(
            "POST", "/auth/signup", {"email": f"user{number}@example.test", "password": PASSWORD}
        )
        _must(status == 201)
        sessions.append(answer["data"])

    def log_in(number: int) -> None:
        body = {"email": f"user{number}@example.test", "password": PASSWORD}
        _must(clients[number].call("POST", "/auth/login", body)[0] == 200)

    def read_user(number: int) -> None:
        _must(clients[number].call("GET", "/auth/user", token=sessions[number]["access_token"])[0] == 200)

    def refresh(number: int) -> None:
        body = {"refresh_token": sessions[number]["refresh_token"]}
        status, answer = clients[number].call("POST", "/auth/refresh", body)
        _must(status == 200)
        sessions[number] = answer["data"]

    found: dict[str, float] = {}
    found["bcrypt"] = bare_bcrypt(seconds)
    found["logins"] = rate(CLIENTS, 2 * seconds, log_in, settle=4.0)
    # Once more after it: the machine is not the same from one second to the next.
    found["bcrypt"] = (found["bcrypt"] + bare_bcrypt(seconds)) / 2
    found["users"] = rate(CLIENTS, seconds, read_user)
    found["refreshes"] = rate(CLIENTS, seconds, refresh)

    watcher, token = Client(host, port), sessions[0]["access_token"]

    def watch() -> None:
        _must(watcher.call("GET", "/auth/user", token=token)[0] == 200)

    found["idle_p99_ms"] = p99(latencies(seconds, watch))
    with ThreadPoolExecutor(1) as beside:
        busy = beside.submit(rate, CLIENTS, seconds + 1, log_in)
        time.sleep(0.5)
        found["busy_p99_ms"] = p99(latencies(seconds, watch))
        busy.result()
    return found


def token_check() -> tuple[float, float]:
    """Microseconds of the check that is on every request: a token seen before, and one seen for the first time."""
    from project_service.auth import keyset
    from project_service.auth.model import User, moment
    from project_service.auth.tokens import Issuer, Verifier

    class NothingRevoked:
        def is_revoked(self, session_id: str) -> bool:
            return False

    issuer = Issuer(keyset.KeySet.parse(keyset.rotated(None, "ES256")), "bench", 3600)
    now = time.time()
    user = User("7b7a6a5c-0000-4000-8000-000000000001", "ada@example.test", moment(now))
    tokens = [issuer.mint(user, "session", now, str(number)).text for number in range(500)]
    verifier = Verifier(issuer, NothingRevoked(), time.time)
    started = time.perf_counter()
    for token in tokens:
        verifier.verify(token)
    first = (time.perf_counter() - started) / len(tokens)
    started = time.perf_counter()
    for _ in range(200):
        for token in tokens:
            verifier.verify(token)
    again = (time.perf_counter() - started) / len(tokens) / 200
    return again * 1e6, first * 1e6


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=6.0, help="for each measurement")
    options.add_argument("--workers", default="1")
    given = options.parse_args()
    known, first = token_check()
    with service(given.workers) as (host, port):
        found = measure(host, port, given.seconds)
    print("auth")
    print(f"  token check, seen before          {known:8.2f} us   (first time: {first:.0f} us)")
    print(f"  bare bcrypt.checkpw, all CPUs     {found['bcrypt']:8.2f} /s")
    print(
        f"  POST /auth/login, {CLIENTS} clients      {found['logins']:8.2f} /s   "
        f"ratio {found['logins'] / found['bcrypt']:.2f} (at least 0.90)"
    )
    print(f"  GET /auth/user, {CLIENTS} clients        {found['users']:8.0f} /s")
    print(f"  POST /auth/refresh, {CLIENTS} clients    {found['refreshes']:8.0f} /s")
    print(
        f"  p99 of GET /auth/user             {found['idle_p99_ms']:8.2f} ms  while {CLIENTS} clients log in "
        f"{found['busy_p99_ms']:.2f} ms, ratio {found['busy_p99_ms'] / found['idle_p99_ms']:.1f} (at most 5.0)"
    )


if __name__ == "__main__":
    main()
