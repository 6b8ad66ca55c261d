"""Resumable uploads (tus): beside plain PUTs of the same bytes, and what many of them hold in memory while the store
answers nothing.

``python -m benchmarks.storage --resumable [--rounds 3]`` measures these alone.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from attrs import define, field

from benchmarks.bare_client import BareClient, header
from benchmarks.memory import MIB
from benchmarks.report import Row, interleaved
from benchmarks.running import Running

SIZE = 1024 * MIB
UPLOADS = "/storage/buckets/private/resumable"
PART = 8 * MIB
PARTS_IN_MEMORY = 2
_TUS = {"Host": "bench", "Tus-Resumable": "1.0.0"}
_BYTES = "application/offset+octet-stream"
# Nobody could send anything for so long: the service takes no more.
_BLOCKED_SECONDS = 1.0


def measure(running: Running, rounds: int, size: int = SIZE) -> Iterator[Row]:
    """A tus upload of ``size`` bytes in one PATCH beside a plain PUT of them: time, and the service's CPU."""
    headers = {"X-Service-Key": running.service_key}
    payload = os.urandom(size)  # which no store can make smaller
    with BareClient(running.url) as client:

        def put() -> None:
            client.request(
                "PUT", "/storage/buckets/private/objects/put", {"Host": "bench"} | headers, payload
            )

        def resumable() -> None:
            client.request("PATCH", begin(client, headers, "tus", size), patch_headers(headers), payload)

        tus, plain = (_Upload(upload, size, running.cpu_seconds) for upload in (resumable, put))
        rate, limit = interleaved(rounds, tus.rate, plain.rate)
    what = f"tus upload of {size // MIB} MiB"
    yield Row(f"object: {what}", f"{rate:.0f} MiB/s", f"PUT {limit:.0f} MiB/s", rate / limit, 0.9)
    cpu, beside = tus.cpu_seconds, plain.cpu_seconds
    yield Row(f"CPU of a {what}", f"{cpu:.2f} s", f"PUT {beside:.2f} s", cpu / beside, 1.1, "at most")


@define
class _Upload:
    """One way to upload ``size`` bytes, and what ``clock`` says that it costs."""

    upload: Callable[[], None]
    size: int
    clock: Callable[[], float]
    _costs: list[float] = field(factory=list)

    def rate(self) -> float:
        """MiB a second, once more."""
        cpu, began = self.clock(), time.perf_counter()
        self.upload()
        seconds = time.perf_counter() - began
        self._costs.append(self.clock() - cpu)
        return self.size / MIB / seconds

    @property
    def cpu_seconds(self) -> float:
        return statistics.median(self._costs)


def begin(client: BareClient, headers: dict[str, str], key: str, size: int) -> str:
    """The path of a new upload of ``size`` bytes, which is to be the object ``key``."""
    head = client.exchange("POST", f"{UPLOADS}?key={key}", _TUS | headers | {"Upload-Length": str(size)})
    location = header(head, b"location")
    assert location is not None, head
    return location.decode()


def patch_headers(headers: dict[str, str], offset: int = 0) -> dict[str, str]:
    """Of a PATCH with the bytes of an upload from ``offset`` on."""
    return _TUS | headers | {"Upload-Offset": str(offset), "Content-Type": _BYTES}


@define(eq=False)
class _Sender:
    """A PATCH with ``payload``, the rest of one upload."""

    socket: socket.socket
    payload: memoryview
    sent: int = field(default=0, init=False)

    @property
    def done(self) -> bool:
        return self.sent == len(self.payload)

    def send(self) -> None:
        """As many bytes as the connection takes now, and not more than 1 MiB."""
        try:
            self.sent += self.socket.send(self.payload[self.sent : self.sent + MIB])
        except ConnectionError:
            raise RuntimeError(self.answer().decode("latin-1")) from None

    def answer(self) -> bytes:
        self.socket.setblocking(True)
        data = b""
        while b"\r\n\r\n" not in data:
            received = self.socket.recv(65536)
            if not received:
                raise RuntimeError("the connection was closed")
            data += received
        return data


class Senders:
    """``count`` tus uploads of ``payload`` at the same time, of ``f"{prefix}{number}"`` in the bucket ``private``.

    The first part of each has been sent by a PATCH of its own. One thread sends the rest of all of them, so that each
    gets as far as the others.
    """

    def __init__(self, url: str, headers: dict[str, str], payload: bytes, count: int, prefix: str) -> None:
        self._stack = ExitStack()
        where, rest = urlsplit(url), memoryview(payload)[PART:]
        lines = {**patch_headers(headers, PART), "Content-Length": str(len(rest))}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        with BareClient(url) as client:
            paths = [begin(client, headers, f"{prefix}{number}", len(payload)) for number in range(count)]
            for path in paths:
                client.request("PATCH", path, patch_headers(headers), payload[:PART])
        self._senders = []
        for path in paths:
            connection = socket.create_connection((where.hostname, where.port))
            self._stack.callback(connection.close)
            connection.sendall(f"PATCH {path} HTTP/1.1\r\n{head}\r\n".encode())
            connection.setblocking(False)
            self._senders.append(_Sender(connection, rest))

    def __enter__(self) -> Senders:
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    def fill_memory(self, store_pid: int) -> None:
        """Send while the store answers nothing, until the service takes no more: each upload then holds as much as it
        ever does. Let the store go on until all are objects. Raises ``RuntimeError`` unless all became one."""
        with _stopped(store_pid):
            while min(one.sent for one in self._senders) < PARTS_IN_MEMORY * PART:
                while self._send_some(_BLOCKED_SECONDS):
                    pass
        while not all(one.done for one in self._senders):
            self._send_some(None)
        for one in self._senders:
            answer = one.answer()
            if not answer.startswith(b"HTTP/1.1 204 ") or header(answer, b"content-location") is None:
                raise RuntimeError(answer.decode("latin-1"))

    def _send_some(self, timeout: float | None) -> bool:
        """Whether any could send within ``timeout`` seconds."""
        with selectors.DefaultSelector() as selector:
            for one in self._senders:
                if not one.done:
                    selector.register(one.socket, selectors.EVENT_WRITE, one)
            ready = selector.select(timeout)
        for key, _ in ready:
            key.data.send()
        return bool(ready)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
