"""The endpoints of a service: TLS, Unix sockets, a separate one for health; and how connections to them end."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
import requests
from twisted.internet.threads import deferToThread

from project_service.http import limits
from project_service.settings.model import Store
from tests.certificates import issue
from tests.live.application import Api, serving, settings_for
from tests.live.daemon import Daemon, answers, eventually, workers_of
from tests.live.services import WithDatabase
from tests.temporary import free_port


@pytest.fixture(scope="module")
def data_dir(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data directory for the module, so that the database is migrated only once."""
    return with_database(tmp_path_factory.mktemp("endpoints") / "var")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_tls_unix_and_admin_endpoints_beside_tcp(data_dir: Path, tmp_path: Path, workers: str) -> None:
    cert, key = issue("127.0.0.1").written(tmp_path)
    path = tmp_path / "s"
    options = [
        *("--listen", f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={cert}"),
        *("--listen", f"unix:{path}"),
        *("--admin-listen", "tcp:0:interface=127.0.0.1"),
        *("--workers", workers),
    ]
    with Daemon(data_dir, *options) as daemon:
        url = daemon.wait_until_ready()
        ports = {int(port) for port in re.findall(r"listening on http://127\.0\.0\.1:(\d+)", daemon.text)}
        plain = int(url.rpartition(":")[2])
        (secure,) = {
            int(port) for port in re.findall(r"listening on https://127\.0\.0\.1:(\d+)", daemon.text)
        }
        (admin,) = ports - {plain}
        assert f"listening on unix:{path}\n" in daemon.text

        assert (
            requests.get(f"https://127.0.0.1:{secure}/auth/user", verify=str(cert), timeout=60).status_code
            == 401
        )
        assert "401" in over_unix(path, "/auth/user")
        for client in (socket.create_connection(("127.0.0.1", plain)), unix_client(path), Notifying(secure)):
            assert " 401 " in half_closing(client)
        before = workers_of(daemon)
        if before:
            # A worker that ends does not close endpoints that the others serve.
            os.kill(min(before), signal.SIGTERM)
            eventually(lambda: len(workers_of(daemon) - before) == 1, "another worker")
            assert "401" in over_unix(path, "/auth/user")
        ready = {"status": "ready"}
        eventually(
            lambda: requests.get(f"http://127.0.0.1:{admin}/ready", timeout=60).json() == ready, "readiness"
        )
        # With an admin endpoint, health and the console are there only, beside the parts, which the console asks.
        assert requests.get(f"{url}/ready", timeout=60).status_code == 404
        assert requests.get(f"{url}/console", timeout=60).status_code == 404
        assert requests.get(f"http://127.0.0.1:{admin}/console", timeout=60).status_code == 200
        assert requests.get(f"http://127.0.0.1:{admin}/auth/user", timeout=60).status_code == 401
        for old in ("TLSv1", "TLSv1_1"):
            with pytest.raises((ssl.SSLError, ConnectionError)), pytest.warns(DeprecationWarning):
                handshake(secure, ssl.TLSVersion[old])
        assert daemon.stop() == 0, daemon.text
    assert not path.exists()
    assert str(key) not in daemon.text


def test_without_the_console_an_admin_endpoint_has_health_alone(data_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text("[server]\nconsole = false\n")
    admin = free_port()
    options = ["--config", str(config), "--admin-listen", f"tcp:{admin}:interface=127.0.0.1"]
    with Daemon(data_dir, *options) as daemon:
        url = daemon.wait_until_ready()
        eventually(lambda: answers(f"http://127.0.0.1:{admin}/ready"), "readiness")
        statuses = [
            [
                requests.get(f"{at}{path}", timeout=60).status_code
                for path in ("/ready", "/auth/user", "/console")
            ]
            for at in (url, f"http://127.0.0.1:{admin}")
        ]
    assert statuses == [[404, 401, 404], [200, 404, 404]]


def handshake(port: int, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # The client allows old versions, so that it is the server that refuses.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", port), 60) as plain, context.wrap_socket(plain):
        return


class Notifying:
    """A client over TLS that ends its direction by ``close_notify``, and the TCP connection's too."""

    def __init__(self, port: int) -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out)
        self._when_read(self._tls.do_handshake)

    def _when_read(self, work: Callable[[], Any]) -> Any:
        while True:
            try:
                return work()
            except ssl.SSLWantReadError:
                self._flush()
                received = self._socket.recv(65536)
                assert received, "the service closed without close_notify"
                self._in.write(received)

    def _flush(self) -> None:
        if data := self._out.read():
            self._socket.sendall(data)

    def sendall(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def shutdown(self, how: int) -> None:
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self._flush()
        self._socket.shutdown(how)

    def recv(self, size: int) -> bytes:
        try:
            return bytes(self._when_read(lambda: self._tls.read(size)))
        except ssl.SSLZeroReturnError:
            return b""

    def close(self) -> None:
        self._socket.close()


def half_closing(client: Any) -> str:
    """The response to a client that sends its request and the end of its direction at once."""
    client.sendall(b"GET /auth/user HTTP/1.1\r\nHost: a\r\n\r\n")
    client.shutdown(socket.SHUT_WR)
    received = b""
    while data := client.recv(65536):
        received += data
    client.close()
    return received.decode()


def unix_client(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(str(path))
    return client


def over_unix(path: Path, target: str) -> str:
    with unix_client(path) as client:
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        return client.recv(65536).decode()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_proxy_protocol_tells_the_client_address(
    data_dir: Path, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection without its header is closed."""
    monkeypatch.setenv("PROJECT_SERVICE__SERVER__LOG_FORMAT", "json")
    options = ("--listen", "haproxy:tcp:0:interface=127.0.0.1", "--workers", workers)
    with Daemon(data_dir, *options) as daemon:
        plain = daemon.wait_until_ready()
        (proxied,) = map(
            int, re.findall(r"listening on http://127\.0\.0\.1:(\d+) \(with the PROXY", daemon.text)
        )
        assert proxied != int(plain.rpartition(":")[2])
        request = b"GET /live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", proxied), 60) as client:
            client.sendall(b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n" + request)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        with socket.create_connection(("127.0.0.1", proxied), 60) as client:
            client.sendall(request)
            with suppress(ConnectionResetError):  # as good an end as any
                assert client.recv(65536) == b""
        assert daemon.stop() == 0, daemon.text
    assert '"client":"192.0.2.7"' in daemon.text


def test_a_port_in_use_is_reported_with_exit_code_1(data_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Daemon(data_dir, "--listen", f"tcp:{port}:interface=127.0.0.1") as daemon:
            assert daemon.wait_until_ended() == 1
    assert f"cannot listen on tcp:{port}:interface=127.0.0.1: Address already in use" in daemon.text
    assert "Traceback" not in daemon.text


MAX_CONNECTIONS = 2
TIMEOUT_SECONDS = 30


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)


def begin_upload(client: socket.socket, api: Api) -> None:
    head = (
        "PUT /storage/buckets/public/objects/a HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n"
        f"Expect: 100-continue\r\nX-Service-Key: {api.service_key}\r\n\r\n"
    )
    client.sendall(head.encode())
    assert client.recv(4096).startswith(b"HTTP/1.1 100 ")


def send_a_head_without_end(port: int) -> None:
    with connected(port) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost: a\r\nX: ")
        for _ in range(150):
            client.sendall(b"x" * 20_000)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 431 "), answer


def come_when_there_is_no_room(api: Api, secure_port: int) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            begin_upload(stack.enter_context(connected(api.port)), api)
        refused = stack.enter_context(connected(api.port))
        assert refused.recv(4096).startswith(b"HTTP/1.1 503 ")
        silent = stack.enter_context(connected(secure_port))
        with suppress(ConnectionResetError):  # as good an end as any
            assert silent.recv(4096) == b""


@pytest_twisted.ensureDeferred
async def test_refusals_reach_clients_that_still_send_and_connections_are_closed(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No new client takes the place of one that seems slow because the machine stood still.
    monkeypatch.setattr(limits, "GRACE_SECONDS", 60.0)
    cert, key = issue("localhost").written(tmp_path)
    plain = "tcp:0:interface=127.0.0.1"
    secure = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={cert}"
    server = {"listen": (plain, secure), "max_connections": MAX_CONNECTIONS}
    async with serving(settings_for(database, store_settings, tmp_path, server=server)) as api:
        await deferToThread(send_a_head_without_end, api.port)
        await deferToThread(come_when_there_is_no_room, api, api.application.addresses[1].port)
