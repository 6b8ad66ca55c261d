"""Proxies in front of one service, configured exactly as in docs/operations.rst. The programs are Debian's."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from attrs import frozen

from tests.certificates import issue
from tests.live.daemon import answers, eventually
from tests.live.programs import program
from tests.temporary import free_port

DOCS = Path(__file__).parents[3] / "docs" / "operations.rst"
NGINX = """
daemon off;
master_process off;
error_log stderr warn;
pid {folder}/nginx.pid;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{documented}
}}
"""
CADDY = """
{{
    admin off
    skip_install_trust
    storage file_system {folder}/caddy
}}
{documented}
"""
HAPROXY = "HAProxy, with ``server.admin_listen`` at port 9090 of each host for the checks::"
HAPROXY_TCP = """
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind 127.0.0.1:{port}
    default_backend hosts
backend hosts
    {documented}
"""


def documented(after: str) -> str:
    """The literal block in docs/operations.rst that follows the line ``after``."""
    found = re.search(rf"^{re.escape(after)}\n\n((?:    .*\n|\n)+)", DOCS.read_text("utf-8"), re.MULTILINE)
    assert found is not None, after
    return dedent(found[1])


def replaced(text: str, changes: dict[str, str]) -> str:
    """The text with the values that a reader has to fill in. Fails if the place for one of them is missing."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@frozen
class Front:
    """``verify`` is as requests takes it."""

    url: str
    verify: str | bool = True

    def up(self, path: str = "/ready") -> Front:
        eventually(lambda: answers(f"{self.url}{path}", verify=self.verify), f"{self.url} to answer")
        return self


@contextmanager
def nginx(folder: Path, service: str) -> Iterator[Front]:
    port, (cert, key) = free_port(), issue("localhost").written(folder)
    text = replaced(
        documented("nginx::"),
        {
            "10.0.0.1:8080": service,
            "10.0.0.2:8080": service,
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "project.example.com": "localhost",
            "# ssl_certificate …; ssl_certificate_key …;": f"ssl_certificate {cert}; ssl_certificate_key {key};",
        },
    )
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, documented=text))
    with running(["nginx", "-e", "stderr", "-p", str(folder), "-c", str(config)], folder):
        yield Front(f"https://127.0.0.1:{port}", str(cert)).up()


@contextmanager
def caddy(folder: Path, service: str) -> Iterator[Front]:
    port, (cert, key) = free_port(), issue("localhost").written(folder)
    text = replaced(
        documented("Caddy passes ``Host`` on, sets both headers and streams bodies by itself::"),
        {
            "10.0.0.1:8080 10.0.0.2:8080": service,
            "project.example.com {": f"https://127.0.0.1:{port} {{\n    bind 127.0.0.1\n    tls {cert} {key}",
        },
    )
    config = folder / "Caddyfile"
    config.write_text(CADDY.format(folder=folder, documented=text))
    with running(["caddy", "run", "--adapter", "caddyfile", "--config", str(config)], folder):
        yield Front(f"https://127.0.0.1:{port}", str(cert)).up()


@contextmanager
def haproxy(folder: Path, service: str) -> Iterator[Front]:
    """Its checks ask the service itself."""
    port = service.rpartition(":")[2]
    with haproxy_before(folder, {"a": (service, port), "b": (service, port)}) as front:
        yield front


@contextmanager
def haproxy_before(folder: Path, hosts: Mapping[str, tuple[str, str]]) -> Iterator[Front]:
    """``hosts`` has the address and the port for checks of ``a`` and ``b``. ``told`` gives it commands."""
    port, (cert, key) = free_port(), issue("localhost").written(folder)
    pem = folder / "both.pem"
    pem.write_text(cert.read_text() + key.read_text())
    changes = {"bind :443": f"bind 127.0.0.1:{port}", "/etc/haproxy/project.example.com.pem": str(pem)}
    changes |= {
        "check port 9090": "check",
        "global\n": f"global\n    stats socket {folder}/admin level admin\n",
    }
    for name, (address, checked) in hosts.items():
        number = {"a": 1, "b": 2}[name]
        changes[f"server {name} 10.0.0.{number}:8080"] = f"server {name} {address} port {checked}"
    config = folder / "haproxy.cfg"
    config.write_text(replaced(documented(HAPROXY), changes))
    with running(["haproxy", "-db", "-f", str(config)], folder):
        # Not everything is at the address of clients where there is another for checks.
        yield Front(f"https://127.0.0.1:{port}", str(cert)).up("/openapi.json")


def told(folder: Path, command: str) -> str:
    """What HAProxy answers to a command of its runtime API."""
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(f"{folder}/admin")
        admin.sendall(f"{command}\n".encode())
        return b"".join(iter(lambda: admin.recv(65536), b"")).decode()


@contextmanager
def haproxy_tcp(folder: Path, service: str) -> Iterator[Front]:
    """``service`` is an address at which the service expects the PROXY protocol."""
    port = free_port()
    match = re.search(r"``(server a \S+ send-proxy)``", " ".join(DOCS.read_text("utf-8").split()))
    assert match is not None
    config = folder / "haproxy.cfg"
    line = replaced(match[1], {"10.0.0.1:8080": service})
    config.write_text(HAPROXY_TCP.format(port=port, documented=line))
    with running(["haproxy", "-db", "-f", str(config)], folder):
        yield Front(f"http://127.0.0.1:{port}").up()


@contextmanager
def running(argv: Sequence[str], folder: Path) -> Iterator[None]:
    log = folder / "log"
    with log.open("wb") as output:
        environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        process = subprocess.Popen([program(argv[0]), *argv[1:]], stdout=output, stderr=output, env=environ)
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(120)
