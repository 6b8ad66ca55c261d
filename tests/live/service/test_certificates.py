"""A renewed certificate: after SIGHUP all processes use it, and existing connections stay."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from time import sleep

import pytest

from tests.certificates import Issued, issue
from tests.live.daemon import Daemon, eventually, sockets_of, workers_of
from tests.live.services import WithDatabase
from tests.temporary import free_port

REQUEST = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
# After so many connections it is a fault that one of the workers has none of them. They are made one after the other,
# so that one that stands still for some seconds gets its share.
MOST = 400
PAUSE_SECONDS = 0.05


def connected(port: int) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 30))


def answers_on(client: ssl.SSLSocket) -> bool:
    client.sendall(REQUEST)
    return client.recv(4096).startswith(b"HTTP/1.1 200 ")


def der(issued: Issued) -> bytes:
    return ssl.PEM_cert_to_DER_cert(issued.pem.decode())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sighup_renews_the_certificate_of_every_process(
    workers: str, with_database: WithDatabase, tmp_path: Path
) -> None:
    first, second, stray, third = (issue("localhost") for _ in range(4))
    certificate, key = first.written(tmp_path)
    config = tmp_path / "c.toml"
    config.write_text("server.idle_timeout_seconds = 600")  # that of connections under the first certificate
    port = free_port()
    listen = f"ssl:{port}:interface=127.0.0.1:privateKey={key}:certKey={certificate}"
    options = ("--config", str(config), "--listen", listen, "--workers", workers)
    with Daemon(with_database(tmp_path / "var"), *options) as daemon, ExitStack() as held:
        daemon.wait_until_ready()
        early = [held.enter_context(connected(port)) for _ in range(4)]
        assert all(answers_on(one) for one in early)

        def all_show(issued: Issued) -> bool:
            """Whether each process does, on connections that are kept open until all of them have some."""
            before = {pid: sockets_of(pid) for pid in workers_of(daemon) or {daemon.process.pid}}
            with ExitStack() as kept:
                for _ in range(MOST):
                    client = kept.enter_context(connected(port))
                    if client.getpeercert(binary_form=True) != der(issued):
                        return False
                    if all(sockets_of(pid) >= count + 2 for pid, count in before.items()):
                        return True
                    sleep(PAUSE_SECONDS)
            raise AssertionError("one worker takes all connections")

        assert all_show(first)
        second.written(tmp_path)
        daemon.reload("a new certificate was taken over at ssl:")
        eventually(lambda: all_show(second), "the new certificate")
        # A certificate that does not fit its key is not used: the old one stays, and the reload goes on.
        certificate.write_bytes(stray.pem)
        daemon.reload("was not taken over, the one before goes on: the private key is not the certificate's")
        assert all_show(second)
        # A configuration that is broken meanwhile does not keep certificates from being renewed.
        config.write_text("server.log_level = 7")
        third.written(tmp_path)
        daemon.reload("a new certificate was taken over at ssl:")
        eventually(lambda: all_show(third), "the newest certificate")
        # Connections made under the first certificate are still open.
        assert all(answers_on(one) for one in early)
        # The stop does not wait for idle clients, which do not notice that it has begun.
        assert daemon.stop() == 0, daemon.text
    assert "answers were still being read" not in daemon.text
    assert "the configuration was not reloaded" in daemon.text
