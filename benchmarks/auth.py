"""Authentication beside its limits: bcrypt alone on all CPUs, and a route that answers with a constant."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import bcrypt

from benchmarks.load import CLIENTS, Request, wrk
from benchmarks.report import Row, interleaved
from benchmarks.running import Running

PASSWORD = "a long enough one"
# The first logins of a window wait in the queue of the ones before it.
SETTLE_SECONDS = 2.0
# So that as many accounts as there are clients can be made from one address.
SETTINGS = {"PROJECT_SERVICE__AUTH__SIGNUPS_MAX_PER_ADDRESS": "0"}


class Client:
    """One kept-alive connection."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)

    def post(self, path: str, body: Any, **headers: str) -> Any:
        """What is answered, or its ``data``; asks again where there is too much to do, as on a machine that is busy
        with more."""
        while True:
            sent = {"Content-Type": "application/json", **headers}
            self._connection.request("POST", path, json.dumps(body), sent)
            response = self._connection.getresponse()
            answer = json.loads(response.read())
            if response.status < 300:
                return answer.get("data", answer)
            if response.status != 503:
                raise SystemExit(f"POST {path}: {answer}")
            time.sleep(float(response.headers["Retry-After"]))


def measure(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    clients = [Client(running.url) for _ in range(CLIENTS)]
    accounts = [{"email": f"user{number}@example.test", "password": PASSWORD} for number in range(CLIENTS)]
    sessions = [
        client.post("/auth/signup", account) for client, account in zip(clients, accounts, strict=True)
    ]
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(12))

    def log_in(number: int) -> None:
        clients[number].post("/auth/login", accounts[number])

    def check(number: int) -> None:
        if not bcrypt.checkpw(PASSWORD.encode(), hashed):
            raise SystemExit("bcrypt refuses its own hash")

    logins, checks = interleaved(
        rounds,
        lambda: rate(CLIENTS, 2 * seconds, log_in, SETTLE_SECONDS),
        lambda: rate(len(os.sched_getaffinity(0)), seconds, check),
    )
    yield Row("login", f"{logins:.2f}/s", f"bare bcrypt {checks:.2f}/s", logins / checks, 0.95)

    user = Request(f"{running.url}/auth/user", {"Authorization": f"Bearer {sessions[0]['access_token']}"})
    constant = Request(f"{running.url}/live")
    users, constants = interleaved(
        rounds, lambda: wrk(user, seconds).rate, lambda: wrk(constant, seconds).rate
    )
    yield Row("GET /auth/user", f"{users:.0f}/s", f"a constant {constants:.0f}/s", users / constants, 0.25)


def rate(clients: int, seconds: float, work: Callable[[int], None], settle: float = 0.0) -> float:
    """Calls of ``work(client)`` per second that end in a window during which every thread is at it, ``settle``
    seconds after the start."""
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
