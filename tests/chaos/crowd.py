"""A crowd that takes up connections and next to no work: ``python -m tests.chaos.crowd SPEC``.

SPEC is JSON: ``url``, ``key``, ``idle`` (kept alive after one request), ``readers`` (``[path, how many]`` each, a
kilobyte a second), ``half`` (heads that never end). Says ``{"there": …}`` when all have connected, and at the end of
its standard input what became of them.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from attrs import define, frozen

from project_service.process import allow_descriptors

ROOT = Path(__file__).parents[2]
# A reader that takes this much a second is slow, and not a client that does nothing.
READ_BYTES = 1024
WINDOW_BYTES = 4096
AT_ONCE = 50


@define(eq=False)
class _Member:
    socket: socket.socket
    kind: str
    received: int = 0
    status: bytes = b""
    closed: bool = False


class _Crowd:
    def __init__(self, spec: dict[str, Any]) -> None:
        where = urlsplit(spec["url"])
        self._address = (where.hostname or "", where.port or 80)
        self._head = f"Host: {where.netloc}\r\nX-Service-Key: {spec['key']}\r\n"
        self.members: list[_Member] = []
        for _ in range(spec["idle"]):
            self._join("idle", f"GET /live HTTP/1.1\r\n{self._head}\r\n")
        for path, count in spec["readers"]:
            for _ in range(count):
                self._join("reader", f"GET {path} HTTP/1.1\r\n{self._head}\r\n")
        for _ in range(spec["half"]):
            self._join("half", f"GET /live HTTP/1.1\r\n{self._head}X-Unfinished: ")

    def _join(self, kind: str, request: str) -> None:
        handle = socket.socket()
        if kind == "reader":
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
        handle.settimeout(30)
        handle.connect(self._address)
        handle.sendall(request.encode())
        member = _Member(handle, kind)
        if kind == "idle":
            member.status = handle.recv(4096)[9:12]
        handle.setblocking(False)
        self.members.append(member)

    def live(self) -> None:
        """Once a second everybody reads a little, until standard input ends."""
        poll = selectors.DefaultSelector()
        poll.register(sys.stdin, selectors.EVENT_READ)
        told = False
        while not poll.select(0 if not told else 1):
            began = monotonic()
            for member in self.members:
                self._read(member)
            if not told and all(member.status for member in self.members if member.kind == "reader"):
                told = True
                print(json.dumps({"there": monotonic() - began}), flush=True)

    def _read(self, member: _Member) -> None:
        try:
            data = member.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            member.closed = True
        elif not member.status:
            member.status = data[9:12]
        member.received += len(data)

    def told(self) -> dict[str, Any]:
        def count(kind: str, **wanted: object) -> int:
            return sum(
                all(getattr(member, name) == value for name, value in wanted.items())
                for member in self.members
                if member.kind == kind
            )

        return {
            "idle_open": count("idle", closed=False),
            "idle_served": count("idle", status=b"200"),
            "readers_open": count("reader", closed=False),
            "readers_served": count("reader", status=b"200"),
            "readers_refused": count("reader", status=b"503"),
            "read_bytes": sum(member.received for member in self.members),
            "half_open": count("half", closed=False),
        }


@frozen
class Crowd:
    """The process, and what it says."""

    process: subprocess.Popen[str]

    @classmethod
    def gather(cls, url: str, key: str, idle: int, readers: list[tuple[str, int]], half: int) -> Crowd:
        spec = {"url": url, "key": key, "idle": idle, "readers": readers, "half": half}
        command = [sys.executable, "-m", "tests.chaos.crowd", json.dumps(spec)]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        crowd = cls(process)
        crowd._said()
        return crowd

    def leave(self) -> dict[str, int]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        told = self._said()
        self.process.wait()
        return told

    def _said(self) -> dict[str, int]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the crowd could not gather"
        said: dict[str, int] = json.loads(line)
        return said


def main() -> None:
    allow_descriptors()
    crowd = _Crowd(json.loads(sys.argv[1]))
    crowd.live()
    for member in crowd.members:
        # What came since the last look, and whether the end has come.
        for _ in range(2):
            crowd._read(member)
    print(json.dumps(crowd.told()), flush=True)


if __name__ == "__main__":
    main()
