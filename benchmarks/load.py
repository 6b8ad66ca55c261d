"""Load by ``wrk``, and the limits it is compared with by ``pgbench``. Both are given the same number of clients."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping

from attrs import field, frozen
from psycopg2.extensions import parse_dsn

from project_service.embedded.postgres import programs

CLIENTS = 16
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


@frozen
class Request:
    url: str
    headers: Mapping[str, str] = field(factory=dict)
    method: str = "GET"
    body: str = ""

    def script(self, pause_ms: float) -> str:
        """wrk's Lua. ``pause_ms``: the mean of the random time a client waits between its requests."""
        lines = [f"wrk.method = {json.dumps(self.method)}"]
        lines += [
            f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in self.headers.items()
        ]
        if self.body:
            lines.append(f"wrk.body = {json.dumps(self.body)}")
        if pause_ms:
            lines.append(f"function delay() return math.floor(-math.log(1 - math.random()) * {pause_ms}) end")
        return "\n".join(lines)


@frozen
class Load:
    """``rate`` in requests a second; the latencies in milliseconds."""

    rate: float
    requests: int
    p50: float
    p99: float


def wrk(request: Request, seconds: float, clients: int = CLIENTS, pause_ms: float = 0.0) -> Load:
    """Raises ``SystemExit`` if any answer is no success: a figure of failures is none."""
    if shutil.which("wrk") is None:
        raise SystemExit("the benchmarks need wrk (Debian's package of that name)")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(request.script(pause_ms))
        script.flush()
        command = [
            "wrk",
            "-t1",
            f"-c{clients}",
            f"-d{seconds:g}s",
            "--latency",
            "-s",
            script.name,
            request.url,
        ]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in told or "Socket errors" in told:
        raise SystemExit(f"{request.method} {request.url} failed under load:\n{told}")
    return Load(
        float(re.search(r"Requests/sec:\s+([0-9.]+)", told)[1]),  # type: ignore[index]  # wrk always tells
        int(re.search(r"(\d+) requests in", told)[1]),  # type: ignore[index]
        _latency(told, 50),
        _latency(told, 99),
    )


def costed(request: Request, seconds: float, cpu_seconds: Callable[[], float]) -> tuple[Load, float]:
    """As ``wrk``, and the microseconds that each request took by the clock ``cpu_seconds``."""
    before = cpu_seconds()
    load = wrk(request, seconds)
    return load, (cpu_seconds() - before) / load.requests * 1e6


def _latency(told: str, percent: int) -> float:
    found = re.search(rf"\s{percent}%\s+([0-9.]+)(us|ms|s|m)\b", told)
    assert found is not None
    return float(found[1]) * _UNITS[found[2]]


def pgbench(dsn: str, sql: str, seconds: float, prepared: str = "", clients: int = CLIENTS) -> float:
    """Transactions a second of ``sql`` in one message. ``prepared``: a statement named q, once per connection."""
    program = programs().directory / "pgbench"
    known = parse_dsn(dsn)
    first = f"\\if :ready = 0\nPREPARE q AS {prepared};\n\\set ready 1\n\\endif\n" if prepared else ""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"{first}{sql};\n")
        script.flush()
        command = [str(program), "-n", "-M", "simple", "-c", str(clients), "-j", "2", "-T", f"{seconds:.0f}"]
        command += [
            "-D",
            "ready=0",
            "-f",
            script.name,
            "-h",
            known["host"],
            "-U",
            known["user"],
            known["dbname"],
        ]
        environ = {
            **os.environ,
            "PGPASSWORD": known.get("password", ""),
            "PGPORT": str(known.get("port", 5432)),
        }
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    if found is None or "failed" in done.stderr:
        raise SystemExit(done.stderr)
    return float(found[1])
