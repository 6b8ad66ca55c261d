"""As little of a client as there can be: one socket, whole requests, bodies thrown away as they come.

Fetches from the service and from the store behind it alike, so that what is compared is what answers.
"""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from hashlib import sha256
from types import TracebackType
from urllib.parse import urlsplit

from attrs import field, frozen

from benchmarks.running import Running
from project_service.embedded.data_directory import running_beside
from project_service.storage.s3.signing import EMPTY_SHA256, Address, Signer

_READ_BYTES = 1024 * 1024


class BareClient:
    """One kept-alive connection to ``url``; anything but a success raises ``RuntimeError``."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname, where.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._room = bytearray(_READ_BYTES)

    def request(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> int:
        """Sends, reads the answer to its end, returns the length of its body."""
        return _length(self.exchange(method, target, headers, body))

    def exchange(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        """As ``request``, but returns the head of the answer."""
        length = {"Content-Length": str(len(body))} if body else {}
        lines = [f"{method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in (headers | length).items())]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        if body:
            self._socket.sendall(body)
        head, _, begun = self._head().partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(head.decode("latin-1"))
        left = _length(head) - len(begun)
        while left > 0:
            left -= self._some(self._socket.recv_into(self._room))
        return head

    def _head(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self._socket.recv(65536)
            self._some(len(piece))
            data += piece
        return data

    def _some(self, count: int) -> int:
        if not count:
            raise RuntimeError("the connection was closed")
        return count

    def __enter__(self) -> BareClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def header(head: bytes, name: bytes) -> bytes | None:
    """``name`` is in lower case."""
    for line in head.split(b"\r\n"):
        if line.lower().startswith(name + b":"):
            return line.split(b":", 1)[1].strip()
    return None


def _length(head: bytes) -> int:
    return int(header(head, b"content-length") or 0)


@frozen
class BareStore:
    """The store behind a service, asked directly. Signing, with its hash of the payload, is part of each request."""

    address: Address
    signer: Signer = field(repr=False)

    @classmethod
    def behind(cls, running: Running) -> BareStore:
        found = running_beside(running.data_dir)
        assert found is not None
        assert found.store is not None
        store = found.store
        return cls(Address(store.endpoint_url or "", store.bucket), Signer.of(store))

    def request(self, client: BareClient, method: str, key: str, body: bytes = b"") -> int:
        url = self.address.url(key)
        digest = sha256(body).hexdigest() if body else EMPTY_SHA256
        plain = {"host": self.address.host}
        headers = self.signer.headers(method, url, plain, digest, datetime.now(UTC))
        return client.request(method, url[len(self.address.origin) :], headers, body)

    def headers(self, key: str) -> tuple[str, dict[str, str]]:
        """URL and headers of a GET that may be sent again and again for a quarter of an hour."""
        url = self.address.url(key)
        plain = {"host": self.address.host}
        signed = self.signer.headers("GET", url, plain, EMPTY_SHA256, datetime.now(UTC))
        # wrk adds one of its own where there is none of exactly this name.
        return url, {"Host": signed.pop("host"), **signed}
