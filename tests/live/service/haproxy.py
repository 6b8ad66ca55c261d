"""HAProxy before hosts, as docs/operating/three-hosts.rst configures it, and what its operator tells it."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from attrs import frozen

from tests.live.daemon import eventually
from tests.live.programs import program
from tests.live.service.documented import blocks
from tests.live.service.real_proxies import replaced, running
from tests.temporary import free_port

PAGE = "operating/three-hosts.rst"


@frozen
class Proxy:
    url: str
    _socket: Path

    def command(self, line: str) -> str:
        """As ``echo … | socat stdio …`` does."""
        done = subprocess.run(
            [program("socat"), "stdio", str(self._socket)],
            input=f"{line}\n",
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return done.stdout.strip()

    def only(self, name: str, *others: str) -> None:
        """Sends new requests to this host alone, once its check has found it well."""
        assert self.command(f"set server hosts/{name} state ready") == ""
        eventually(lambda: self.status(name).startswith("UP"), f"{name} to be up")
        for other in others:
            assert self.command(f"set server hosts/{other} state drain") == ""

    def status(self, name: str) -> str:
        return self._row(name)["status"]

    def repeated(self) -> int:
        """How many requests it has sent again."""
        row = self._row("BACKEND")
        return int(row["wretr"]) + int(row["wredis"])

    def _row(self, name: str) -> dict[str, str]:
        rows = csv.DictReader(StringIO(self.command("show stat").removeprefix("# ")))
        return next(row for row in rows if (row["pxname"], row["svname"]) == ("hosts", name))


@contextmanager
def haproxy(folder: Path, hosts: Mapping[str, tuple[int, int]]) -> Iterator[Proxy]:
    """``hosts`` are, for each name, the port of the service and that of its checks. Nothing need listen there yet."""
    port, socket = free_port(), folder / "admin.sock"
    (script,) = (block.text for block in blocks(PAGE) if "> haproxy.cfg <<END" in block.text)
    text = script.partition("> haproxy.cfg <<END\n")[2].partition("\nEND\n")[0]
    text = replaced(text, {"$DIR/run": str(folder), "$PROXY:8000": f"127.0.0.1:{port}"})
    lines = [line for line in text.splitlines() if not line.strip().startswith("server ")]
    assert lines[-1].strip().startswith("default-server check ")
    config = folder / "haproxy.cfg"
    for name, (serving, checked) in hosts.items():
        lines.append(f"    server {name} 127.0.0.1:{serving} port {checked}")
    config.write_text("\n".join(lines) + "\n", "utf-8")
    with running(["haproxy", "-db", "-f", str(config)], folder):
        eventually(socket.exists, "the socket of HAProxy")
        yield Proxy(f"http://127.0.0.1:{port}", socket)
