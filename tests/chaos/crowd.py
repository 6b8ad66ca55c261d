"""A crowd that takes up connections and next to no work: ``python -m tests.chaos.crowd SPEC``.

SPEC is JSON: ``url``, ``key``, ``members``, a list of kind, path and number. Kinds: ``idle`` (kept alive after one
request), ``reader`` and ``stream`` (they take a kilobyte a second; of a stream no answer need have begun), ``half``
(a head that never ends). Says what there is when all have connected, and again for each line of its standard input.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import urlsplit

from attrs import define, frozen

from project_service.process import allow_descriptors

ROOT = Path(__file__).parents[2]
# A reader that takes this much a second is slow, and not a client that does nothing.
READ_BYTES = 1024
WINDOW_BYTES = 4096
STREAM_SECONDS = 0.05
END = "\r\n"


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
        for kind, path, count in spec["members"]:
            for _ in range(count):
                self._join(
                    kind, f"GET {path} HTTP/1.1\r\n{self._head}{'X-Endless: ' if kind == 'half' else END}"
                )

    def _join(self, kind: str, request: str) -> None:
        handle = socket.socket()
        if kind in {"reader", "stream"}:
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
        handle.settimeout(30)
        handle.connect(self._address)
        handle.sendall(request.encode())
        member = _Member(handle, kind)
        if kind in {"idle", "reader"}:
            member.status = handle.recv(READ_BYTES)[9:12]
        elif kind == "stream":
            # A hundred in one moment would be a burst, which is another matter.
            sleep(STREAM_SECONDS)
        handle.setblocking(False)
        self.members.append(member)

    def live(self) -> None:
        """Once a second everybody reads a little, until standard input ends."""
        poll = selectors.DefaultSelector()
        poll.register(sys.stdin, selectors.EVENT_READ)
        print(json.dumps(self.counted()), flush=True)
        while True:
            for member in self.members:
                self._read(member)
            if poll.select(1):
                if not sys.stdin.readline():
                    return
                print(json.dumps(self.counted()), flush=True)

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

    def counted(self) -> dict[str, int]:
        """By kind and status (``-``: no answer yet), and ``KIND closed``."""
        counts = Counter(f"{one.kind} {one.status.decode() or '-'}" for one in self.members)
        counts.update(f"{one.kind} closed" for one in self.members if one.closed)
        return dict(counts)


@frozen
class Crowd:
    """The process of a crowd, and what it prints."""

    process: subprocess.Popen[str]

    @classmethod
    def gather(cls, url: str, key: str, members: list[tuple[str, str, int]]) -> Crowd:
        spec = {"url": url, "key": key, "members": members}
        command = [sys.executable, "-m", "tests.chaos.crowd", json.dumps(spec)]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        crowd = cls(process)
        crowd._said()
        return crowd

    def count(self) -> Counter[str]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._said()

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _said(self) -> Counter[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the crowd could not gather"
        return Counter(json.loads(line))


def main() -> None:
    allow_descriptors()
    _Crowd(json.loads(sys.argv[1])).live()


if __name__ == "__main__":
    main()
