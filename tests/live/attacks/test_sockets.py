"""Hostile bytes on real sockets: the attack corpus, and 20,000 malformed requests to a whole service."""

from __future__ import annotations

import json
import random
import re
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
import requests
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.threads import deferToThread

from project_service.http import connection, exchange
from project_service.http.connection import ConnectionFactory
from tests.attacks.app import PROBE, PROBED, answers_in, fault_in, router
from tests.attacks.corpus import CORPUS, Case, Then
from tests.fakes.common import App
from tests.http.edge.random_requests import STATUS, spoiled
from tests.live.daemon import Daemon, eventually
from tests.live.services import WithDatabase

PATIENCE_SECONDS = 120.0
ROUNDS = 20_000
# Long enough for most responses; an incomplete request gets none.
MOMENT_SECONDS = 0.02
PROBE_ANSWER = (PROBED[1] or "").encode()


@pytest.mark.parametrize("size", [1 << 20, 1], ids=["whole", "byte by byte"])
@pytest_twisted.ensureDeferred
async def test_the_attack_corpus_on_real_sockets(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from twisted.internet import reactor

    monkeypatch.setattr(exchange, "DRAIN_SECONDS", 0.1)
    # Clients that are slow in sending are not reset while their response is on its way.
    monkeypatch.setattr(connection, "LINGER_SECONDS", PATIENCE_SECONDS)
    clock: Any = reactor
    factory = ConnectionFactory(App(router()).edge, clock, 60.0, 100)
    port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
    try:
        faults = await deferToThread(run_all, port.getHost().port, size)
    finally:
        await port.stopListening()
        await factory.close_all()
    assert faults == []


def run_all(port: int, size: int) -> list[str]:
    with ThreadPoolExecutor(8) as threads:
        found = threads.map(partial(run, port, size), CORPUS)
    return [fault for fault in found if fault is not None]


def run(port: int, size: int, case: Case) -> str | None:
    """Send a case and another request behind it. Returns what is wrong with the responses."""
    waits = any(outcome.then == "waiting" for outcome in case.outcomes)
    # Large cases go a little faster.
    step = max(size, len(case.sent) // 2000)
    pieces = [case.sent[start : start + step] for start in range(0, len(case.sent), step)]
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):
            for piece in pieces if waits else [*pieces, PROBE]:
                client.sendall(piece)
            if waits:
                client.shutdown(socket.SHUT_WR)
        answers = answers_in(received(client), case.sent.startswith(b"HEAD "))
    then: Then = "waiting" if waits and not answers else "closed"
    if answers and answers[-1] == PROBED:
        then = "open"
        del answers[-1]
    return fault_in(case, answers, then)


def received(client: socket.socket) -> bytes:
    """What is received until the connection ends or the other request is answered."""
    pieces: list[bytes] = []
    with suppress(ConnectionError):
        while piece := client.recv(65536):
            pieces.append(piece)
            # It may come in two.
            if PROBE_ANSWER in b"".join(pieces[-2:]):
                break
    return b"".join(pieces)


def good_requests(anon: str, token: str) -> list[bytes]:
    """Requests that reach all three parts and their databases and stores."""
    key = f"Host: a\r\nX-Service-Key: {anon}\r\nAuthorization: Bearer {token}\r\n"
    chunked = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    form = '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nabc\r\n--b--\r\n'
    objects = "/storage/buckets/private/objects"
    texts = [
        f"GET /dev/db/main/rest/?select=a,b(c)&d=eq.1 HTTP/1.1\r\n{key}\r\n",
        f"GET /dev/db/main/rest/t?or=(a.eq.1,b.in.(1,2)) HTTP/1.1\r\n{key}Range: 0-9\r\n\r\n",
        f'POST /dev/db/main/rest/rpc/f HTTP/1.1\r\n{key}{chunked}8\r\n{{"a": 1}}\r\n0\r\n\r\n',
        f"GET /auth/user HTTP/1.1\r\n{key}\r\n",
        f'POST /auth/refresh HTTP/1.1\r\n{key}{chunked}17\r\n{{"refresh_token": "none"}}\r\n0\r\n\r\n',
        f"GET {objects}?prefix=a/&max_keys=2 HTTP/1.1\r\n{key}\r\n",
        f'GET {objects}/%C3%A9/x HTTP/1.1\r\n{key}Range: bytes=0-1\r\nIf-None-Match: "x"\r\n\r\n',
        f"PUT {objects}/k HTTP/1.1\r\n{key}Content-Length: 3\r\n\r\nabc",
        f"POST {objects} HTTP/1.1\r\n{key}Content-Type: multipart/form-data; boundary=b\r\n"
        f"Content-Length: {len(form)}\r\n\r\n{form}",
        f"DELETE {objects}/k HTTP/1.1\r\n{key}\r\n",
        "GET /storage/download?token=x HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
    return [text.encode() for text in texts] + [case.sent for case in CORPUS if len(case.sent) < 1000]


def answer_to(address: tuple[str, int], raw: bytes) -> bytes:
    """Send bytes and hang up after a moment. Returns what was received until then."""
    with socket.create_connection(address, PATIENCE_SECONDS) as client:
        with suppress(OSError):  # it may be closed already
            client.sendall(raw)
            select.select([client], [], [], MOMENT_SECONDS)
            client.shutdown(socket.SHUT_WR)
        answer = received(client)
    assert not answer or STATUS.match(answer), answer[:200]
    return answer


def test_malformed_requests_do_not_harm_the_service(with_database: WithDatabase, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[server]\nlog_level = "warn"\n')
    chance = random.Random(20261121)
    with Daemon(with_database(tmp_path / "var"), "--config", str(config)) as daemon:
        url = daemon.wait_until_ready()
        anon = json.loads((tmp_path / "var" / "credentials.json").read_text())["anon_key"]
        account = {"email": "fuzz@example.test", "password": "a long enough one"}
        session = requests.post(f"{url}/auth/signup", json=account, timeout=60).json()["data"]
        good = good_requests(anon, session["access_token"])
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        statuses: set[int] = set()
        with ThreadPoolExecutor(16) as threads:
            for answer in threads.map(
                partial(answer_to, address), (spoiled(chance, good) for _ in range(ROUNDS))
            ):
                statuses |= {int(found) for found in STATUS.findall(answer)}
        # The service still does its work, though it may first want a moment of calm.
        key = {"X-Service-Key": anon}
        signed_in = {**key, "Authorization": f"Bearer {session['access_token']}"}
        stored = f"{url}/storage/buckets/private/objects/after"
        for what, method, target, more in (
            ("signing in", "POST", f"{url}/auth/login", {"json": account}),
            ("storing", "PUT", stored, {"headers": signed_in, "data": b"x"}),
            ("reading", "GET", stored, {"headers": signed_in}),
            ("the table API", "GET", f"{url}/dev/db/main/rest/", {"headers": key}),
        ):
            eventually(lambda: requests.request(method, target, timeout=60, **more).ok, what)  # noqa: B023  # called at once
        eventually(
            lambda: "requests_in_flight 0.0" in requests.get(f"{url}/metrics", timeout=60).text,
            "the end of every request",
        )
        metrics = requests.get(f"{url}/metrics", timeout=60).text
        assert daemon.stop() == 0
    assert not re.findall(r'.*status="500".*', metrics)
    assert "Traceback" not in daemon.text, daemon.text
    assert {400, 401, 404} <= statuses
