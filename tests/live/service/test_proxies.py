"""Behind nginx, Caddy and HAProxy, each configured as docs/operations.rst shows."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from attrs import frozen
from requests.adapters import HTTPAdapter

from tests.live.daemon import Daemon, eventually
from tests.live.service.real_proxies import Front, caddy, haproxy, haproxy_tcp, nginx
from tests.live.services import WithDatabase
from tests.temporary import free_port

CLIENT = "127.0.0.2"
OBJECTS = "/storage/buckets/private/objects"
LARGE = 16 * 1024 * 1024
# More than a proxy and all sockets on the way can buffer.
LIMIT = WIDE = 96 * 1024 * 1024
IN_FLIGHT = "project_service_requests_in_flight"
ASKED = 'project_service_requests_total{method="HEAD",route="/live",status="200"}'


@frozen
class Service:
    daemon: Daemon
    url: str
    proxied: str
    key: str

    def in_flight(self) -> float:
        """How many requests are by now: ``/metrics`` may be some time old, unless it counts one of this moment."""
        before = self._metric(ASKED)
        assert requests.head(f"{self.url}/live", timeout=60).ok
        eventually(lambda: self._metric(ASKED) > before, "metrics of this moment")
        return self._metric(IN_FLIGHT)

    def _metric(self, name: str) -> float:
        lines = requests.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    def clients(self, path: str) -> list[str]:
        """The clients that asked for ``path``, according to the access log."""
        self.daemon.collect()
        lines = [json.loads(line) for line in self.daemon.output if line.startswith("{")]
        return [line["client"] for line in lines if line.get("path") == path]


@pytest.fixture(scope="module")
def service(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory, port = tmp_path_factory.mktemp("proxies"), free_port()
    config = directory / "config.toml"
    config.write_text(
        f'[server]\nlog_format = "json"\ntrusted_proxies = ["127.0.0.1"]\n[storage]\nmax_object_bytes = {LIMIT}\n'
    )
    config.chmod(0o600)
    proxied = ("--listen", f"haproxy:tcp:{port}:interface=127.0.0.1")
    with Daemon(with_database(directory / "var"), "--config", str(config), *proxied) as daemon:
        url = daemon.wait_until_ready()
        known = json.loads((directory / "var" / "credentials.json").read_text())
        yield Service(daemon, url, f"127.0.0.1:{port}", known["service_key"])
        assert daemon.stop() == 0, daemon.text


FRONTS = {"nginx": nginx, "caddy": caddy, "haproxy": haproxy, "haproxy-tcp": haproxy_tcp}


@pytest.fixture(scope="module", params=list(FRONTS.values()), ids=list(FRONTS))
def front(
    request: pytest.FixtureRequest, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    start: Callable[[Path, str], AbstractContextManager[Front]] = request.param
    address = service.proxied if start is haproxy_tcp else urlsplit(service.url).netloc
    with start(tmp_path_factory.mktemp("front"), address) as front:
        yield front


class FromClient(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, source_address=(CLIENT, 0), **options)


@pytest.fixture
def client(front: Front, service: Service) -> Iterator[requests.Session]:
    with requests.Session() as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, FromClient())
        session.trust_env, session.verify = False, front.verify
        session.headers["X-Service-Key"] = service.key
        yield session


def test_the_service_knows_the_clients_address_and_the_host_it_used(
    front: Front, service: Service, client: requests.Session
) -> None:
    spoofed = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Host": "evil.example"}
    client.put(f"{front.url}{OBJECTS}/linked", data=b"x", timeout=60)
    path = "/storage/buckets/private/presign"
    before = len(service.clients(path))
    answer = client.post(f"{front.url}{path}", json={"key": "linked"}, headers=spoofed, timeout=60)
    assert answer.json()["url"].startswith(f"{front.url}/storage/")
    assert client.get(answer.json()["url"], timeout=60).content == b"x"
    eventually(lambda: len(service.clients(path)) > before, "the line in the log")
    assert service.clients(path)[-1] == CLIENT


@pytest.mark.parametrize(
    "target", ["a%2Fb", "a%20b+%25", "%E2%82%AC", "a%3Fb%23c", "A%2fb;v=1", "a//b", "a%5Cb"]
)
def test_paths_arrive_as_they_were_sent(
    front: Front, service: Service, client: requests.Session, target: str
) -> None:
    expected = requests.put(
        f"{service.url}{OBJECTS}/{target}", data=b"x", headers={"X-Service-Key": service.key}, timeout=60
    )
    proxied = client.put(f"{front.url}{OBJECTS}/{target}", data=b"y", timeout=60)
    if expected.ok:
        assert proxied.json()["key"] == expected.json()["key"]
    else:
        assert (proxied.status_code, proxied.json()["error"]["code"]) == (
            expected.status_code,
            expected.json()["error"]["code"],
        )


# Ways to write the first part of a path. The service knows only the first; others are to stay as useless.
@pytest.mark.parametrize("front", [nginx, caddy, haproxy], ids=["nginx", "caddy", "haproxy"], indirect=True)
@pytest.mark.parametrize(
    "written", ["/{}", "//{}", "/%{:02x}{}", "/x/../{}", "/./{}", "/{}/", "/{}?x", "/{};x"]
)
def test_what_operators_need_stays_inside(
    front: Front, service: Service, client: requests.Session, written: str
) -> None:
    paths = ["metrics", "admin/overview", "admin%2Foverview", "console", "console/"]
    assert all(client.get(f"{service.url}/{path}", timeout=60).ok for path in paths if "%" not in path)
    for path in paths:
        target = written.format(ord(path[0]), path[1:]) if "%" in written else written.format(path)
        lines = f"Host: {urlsplit(front.url).netloc}\r\nX-Service-Key: {service.key}\r\nConnection: close\r\n"
        with connected(front) as plain:
            plain.sendall(f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode())
            status = plain.recv(65536).split(b" ", 2)[1]
        assert status in {b"400", b"404"}, target


def test_uploads_and_downloads_arrive_complete(front: Front, client: requests.Session) -> None:
    payload = random.Random(7).randbytes(LARGE)
    url = f"{front.url}{OBJECTS}/large"
    pieces = (payload[at : at + 65536] for at in range(0, LARGE, 65536))
    assert client.put(url, data=pieces, timeout=60).ok
    assert hashlib.sha256(client.get(url, timeout=60).content).digest() == hashlib.sha256(payload).digest()
    part = client.get(url, headers={"Range": "bytes=1000000-1000009"}, timeout=60)
    assert (part.status_code, part.content) == (206, payload[1_000_000:1_000_010])


def test_a_body_too_large_is_refused_by_the_service_at_once(front: Front, service: Service) -> None:
    with connected(front) as client:
        client.sendall(head(front, service, "PUT", "huge", f"Content-Length: {LIMIT + 1}\r\n") + bytes(65536))
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")


# Caddy itself cuts off clients that go on sending.
@pytest.mark.parametrize(
    "front", [nginx, haproxy, haproxy_tcp], ids=["nginx", "haproxy", "haproxy-tcp"], indirect=True
)
def test_a_client_that_reads_only_after_sending_everything_gets_its_response(
    front: Front, client: requests.Session
) -> None:
    for _ in range(5):
        answer = client.put(f"{front.url}{OBJECTS}/huge", data=bytes(LIMIT + 1), timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


def test_an_upload_streams(front: Front, service: Service) -> None:
    """The service receives it while the client is still sending."""
    with connected(front) as slow:
        slow.sendall(head(front, service, "PUT", "slow", f"Content-Length: {LARGE}\r\n") + bytes(LARGE // 2))
        eventually(lambda: service.in_flight() == 1, "the upload")
    eventually(lambda: service.in_flight() == 0, "its end with the client's")
    gone = requests.head(f"{service.url}{OBJECTS}/slow", headers={"X-Service-Key": service.key}, timeout=60)
    assert gone.status_code == 404


def test_a_resumable_upload_keeps_what_came_before_its_connection_broke(
    front: Front, service: Service, client: requests.Session
) -> None:
    """A proxy that collects the body would have passed on nothing of it."""
    tus = {"Tus-Resumable": "1.0.0"}
    begin = f"{front.url}/storage/buckets/private/resumable?key=resumed"
    path = client.post(begin, headers={**tus, "Upload-Length": str(LARGE)}, timeout=60).headers["Location"]
    payload = random.Random(8).randbytes(LARGE)
    url, own = f"{service.url}{path}", {**tus, "X-Service-Key": service.key}

    lines = {**own, "Host": urlsplit(front.url).netloc, "Upload-Offset": "0"}
    lines |= {"Content-Type": "application/offset+octet-stream", "Content-Length": str(LARGE)}
    fields = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with connected(front) as broken:
        broken.sendall(f"PATCH {path} HTTP/1.1\r\n{fields}\r\n".encode() + payload[: LARGE // 2])
        eventually(lambda: service.in_flight() == 1, "the upload")
        # The service gives a connection up on which nothing comes any more, and says how far it is; on a slow machine
        # it may still be writing what came.
        eventually(lambda: requests.head(url, headers=own, timeout=60).ok, "the end of the first request")
        offset = int(requests.head(url, headers=own, timeout=60).headers["Upload-Offset"])
    assert 0 < offset <= LARGE // 2
    sent = {**tus, "Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream"}
    done = client.patch(f"{front.url}{path}", data=payload[offset:], headers=sent, timeout=60)
    assert done.status_code == 204, done.text
    assert client.get(f"{front.url}{OBJECTS}/resumed", timeout=60).content == payload


def test_a_download_streams(front: Front, service: Service, client: requests.Session) -> None:
    """A client that does not read makes the service wait; no proxy buffers the whole body."""
    assert client.put(f"{front.url}{OBJECTS}/wide", data=bytes(WIDE), timeout=60).ok
    with connected(front) as slow:
        slow.sendall(head(front, service, "GET", "wide"))
        assert slow.recv(1024).startswith(b"HTTP/1.1 200 ")
        # In this time a proxy could have taken everything: another client has downloaded it completely.
        assert len(client.get(f"{front.url}{OBJECTS}/wide", timeout=60).content) == WIDE
        # That one may count for a moment after its last byte has arrived.
        eventually(lambda: service.in_flight() < 2, "the end of the other client's download")
        # What the proxy asks by itself, such as /ready, counts now and then.
        assert min(service.in_flight() for _ in range(5)) == 1
    eventually(lambda: service.in_flight() == 0, "its end with the client's")


def head(front: Front, service: Service, method: str, key: str, more: str = "") -> bytes:
    host = urlsplit(front.url).netloc
    lines = f"{method} {OBJECTS}/{key} HTTP/1.1\r\nHost: {host}\r\nX-Service-Key: {service.key}\r\n"
    return f"{lines}{more}\r\n".encode()


def connected(front: Front) -> socket.socket:
    where = urlsplit(front.url)
    assert where.hostname is not None
    plain = socket.create_connection((where.hostname, where.port), 30)
    if where.scheme == "http":
        return plain
    context = ssl.create_default_context(cafile=str(front.verify))
    return context.wrap_socket(plain, server_hostname=where.hostname)
