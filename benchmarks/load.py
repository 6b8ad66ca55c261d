"""Load by ``wrk``, and the limits it is compared with by ``pgbench``. Both are given the same number of clients."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field, frozen
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


def wrk(request: Request, seconds: float, pause_ms: float = 0.0) -> Load:
    """Raises ``SystemExit`` if any answer is no success: a figure of failures is none."""
    if shutil.which("wrk") is None:
        raise SystemExit("the benchmarks need wrk (Debian's package of that name)")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(request.script(pause_ms))
        script.flush()
        command = [
            "wrk",
            "-t1",
            f"-c{CLIENTS}",
            # Whole seconds, as pgbench takes them too.
            f"-d{whole(seconds)}s",
            "--latency",
            "-s",
            script.name,
            request.url,
        ]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in told or "Socket errors" in told:
        raise SystemExit(f"{request.method} {request.url} failed under load:\n{told}")
    return Load(
        float(_told(r"Requests/sec:\s+([0-9.]+)", told)[1]),
        int(_told(r"(\d+) requests in", told)[1]),
        _latency(told, 50),
        _latency(told, 99),
    )


@define
class Costed:
    """``request`` under load, and what it costs by the clock ``cpu_seconds``."""

    request: Request
    cpu_seconds: Callable[[], float]
    _costs: list[float] = field(factory=list)

    def rate(self, seconds: float) -> float:
        """Requests a second, once more."""
        before = self.cpu_seconds()
        load = wrk(self.request, seconds)
        self._costs.append((self.cpu_seconds() - before) / load.requests * 1e6)
        return load.rate

    @property
    def microseconds(self) -> float:
        """Of one request; the median of all loads."""
        return statistics.median(self._costs)


def whole(seconds: float) -> int:
    """What the programs take: at least one second."""
    return max(1, round(seconds))


def _told(pattern: str, told: str) -> re.Match[str]:
    found = re.search(pattern, told)
    if found is None:
        raise SystemExit(f"wrk does not say what it should:\n{told}")
    return found


def _latency(told: str, percent: int) -> float:
    found = _told(rf"\s{percent}%\s+([0-9.]+)(us|ms|s|m)\b", told)
    return float(found[1]) * _UNITS[found[2]]


def pgbench(dsn: str, sql: str, seconds: float, prepared: Sequence[str] = ()) -> float:
    """Transactions a second of ``sql`` in one message. ``prepared``: what each connection says first."""
    program = programs().directory / "pgbench"
    known = parse_dsn(dsn)
    said = "".join(f"{statement};\n" for statement in prepared)
    first = f"\\if :ready = 0\n{said}\\set ready 1\n\\endif\n" if said else ""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"{first}{sql};\n")
        script.flush()
        command = [
            str(program),
            "-n",
            "-M",
            "simple",
            "-c",
            str(CLIENTS),
            "-j",
            "2",
            "-T",
            str(whole(seconds)),
        ]
        command += ["-D", "ready=0", "-f", script.name]
        command += ["-h", known["host"], "-U", known["user"], known["dbname"]]
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
