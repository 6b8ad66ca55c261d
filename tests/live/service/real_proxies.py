"""Proxies in front of one service, configured exactly as in docs/operations.rst. The programs are Debian's."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
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
HAPROXY = """
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

    def up(self) -> Front:
        eventually(lambda: answers(f"{self.url}/ready", verify=self.verify), f"{self.url} to answer")
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
    """``service`` is an address at which the service expects the PROXY protocol."""
    port = free_port()
    match = re.search(r"``(server a \S+ send-proxy)``", " ".join(DOCS.read_text("utf-8").split()))
    assert match is not None
    config = folder / "haproxy.cfg"
    line = replaced(match[1], {"10.0.0.1:8080": service})
    config.write_text(HAPROXY.format(port=port, documented=line))
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
        process.wait(30)
