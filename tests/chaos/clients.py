"""Many HTTP clients in one process, as cheap as they can be: ``python -m tests.chaos.clients SPEC`` prints JSON.

SPEC is JSON: ``url``, ``request`` (the head, without its end), ``clients``, ``seconds``, ``pause`` (between an answer
and the next request). They ignore ``Retry-After``.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from attrs import asdict, define, field, frozen

ROOT = Path(__file__).parents[2]
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
CONNECT_SECONDS = 30.0


@frozen
class Outcome:
    """``latencies`` are of successes alone, sorted, in seconds."""

    seconds: float
    statuses: dict[str, int]
    broken: int
    latencies: list[float]
    refusals: list[float]
    retry_after_missing: int

    @property
    def goodput(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """Milliseconds."""
        return _at(self.latencies, share)

    def __str__(self) -> str:
        summary = (
            f"{self.goodput:6.0f}/s  p50 {self.percentile(0.5):6.1f} ms  p99 {self.percentile(0.99):6.1f} ms"
        )
        refused = sum(count for status, count in self.statuses.items() if status == "503")
        if refused:
            summary += f"  503: {refused / self.seconds:5.0f}/s  p50 {_at(self.refusals, 0.5):6.1f} ms"
        return summary + (f"  broken: {self.broken}" if self.broken else "")


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))] * 1000 if values else 0.0


@frozen
class Clients:
    """A process with such clients, which is running. ``outcome`` waits for its end."""

    process: subprocess.Popen[str]

    @classmethod
    def start(
        cls, url: str, path: str, key: str, clients: int, seconds: float, pause: float = 0.0, more: str = ""
    ) -> Clients:
        host = urlsplit(url).netloc
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Service-Key: {key}\r\n{more}"
        spec = {"url": url, "request": head, "clients": clients, "seconds": seconds, "pause": pause}
        command = [sys.executable, "-m", "tests.chaos.clients", json.dumps(spec)]
        return cls(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))

    def outcome(self) -> Outcome:
        output, _ = self.process.communicate()
        assert self.process.returncode == 0, "the clients failed"
        return Outcome(**json.loads(output))


@define(eq=False)
class _Client:
    socket: socket.socket
    received: bytearray = field(factory=bytearray)
    begun: float = 0.0


class _Run:
    def __init__(self, spec: dict[str, Any]) -> None:
        where = urlsplit(spec["url"])
        self._address = (where.hostname or "", where.port or 80)
        self._request = f"{spec['request']}\r\n".encode()
        self._pause = spec["pause"]
        self._poll = selectors.EpollSelector()
        self._resting: list[tuple[float, _Client]] = []
        self._statuses: Counter[str] = Counter()
        self._latencies: list[float] = []
        self._refusals: list[float] = []
        self._broken = self._unoutput = 0
        self._clients = [self._connect() for _ in range(spec["clients"])]

    def _connect(self) -> _Client:
        client = _Client(socket.create_connection(self._address, CONNECT_SECONDS))
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.socket.setblocking(False)
        self._poll.register(client.socket, selectors.EVENT_READ, client)
        return client

    def run(self, seconds: float) -> Outcome:
        begun = monotonic()
        for client in self._clients:
            self._ask(client)
        while (now := monotonic()) < begun + seconds:
            while self._resting and self._resting[0][0] <= now:
                self._ask(self._resting.pop(0)[1])
            rest = self._resting[0][0] - now if self._resting else 0.1
            for key, _ in self._poll.select(min(0.1, rest)):
                self._read(key.data)
        took = monotonic() - begun
        return Outcome(
            took,
            dict(self._statuses),
            self._broken,
            sorted(self._latencies),
            sorted(self._refusals),
            self._unoutput,
        )

    def _ask(self, client: _Client) -> None:
        client.begun = monotonic()
        client.received.clear()
        try:
            client.socket.sendall(self._request)
        except OSError:
            self._again(client)

    def _read(self, client: _Client) -> None:
        try:
            data = client.socket.recv(262144)
        except OSError:
            data = b""
        if not data:
            self._again(client)
            return
        client.received += data
        end = client.received.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(client.received, 0, end)
        if len(client.received) < end + 4 + int(length[1] if length else 0):
            return
        self._answered(client, bytes(client.received[:end]))

    def _answered(self, client: _Client, head: bytes) -> None:
        now = monotonic()
        status = head[9:12].decode()
        self._statuses[status] += 1
        if status == "200":
            self._latencies.append(now - client.begun)
        else:
            self._refusals.append(now - client.begun)
            self._unoutput += b"\r\nretry-after:" not in head.lower()
        if self._pause:
            self._resting.append((now + self._pause, client))
        else:
            self._ask(client)

    def _again(self, client: _Client) -> None:
        self._broken += 1
        self._poll.unregister(client.socket)
        client.socket.close()
        fresh = self._connect()
        client.socket = fresh.socket
        self._poll.modify(client.socket, selectors.EVENT_READ, client)
        self._ask(client)


def main() -> None:
    spec = json.loads(sys.argv[1])
    found = _Run(spec).run(spec["seconds"])
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
