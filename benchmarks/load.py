"""Load by ``wrk``, and the limits it is compared with by ``pgbench``. Both are given the same number of clients."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from attrs import define, field, frozen
from psycopg2.extensions import parse_dsn

from project_service.embedded.postgres import program_directory

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
    failed: int
    p50: float
    p99: float


def wrk(request: Request, seconds: float, pause_ms: float = 0.0, may_fail: bool = False) -> Load:
    """Raises ``SystemExit`` if any answer is no success, unless it ``may_fail``: a figure of failures is none."""
    with _wrk(request.script(pause_ms), request.url, CLIENTS, seconds) as process:
        output = process.communicate()[0]
    if process.returncode or "Socket errors" in output or (_failed(output) and not may_fail):
        raise SystemExit(f"{request.method} {request.url} failed under load:\n{output}")
    return Load(
        float(_match(r"Requests/sec:\s+([0-9.]+)", output)[1]),
        int(_match(r"(\d+) requests in", output)[1]),
        _failed(output),
        _latency(output, 50),
        _latency(output, 99),
    )


@contextmanager
def beside_slow(request: Request, connections: int, apart_ms: int, rates: list[float]) -> Iterator[None]:
    """While the block runs, each of ``connections`` repeats the slow ``request``, having begun ``apart_ms`` after the
    one before. Their successes a second are added to ``rates``."""
    script = (
        f"{request.script(0)}\nlocal begun = 0\n"
        f"function delay() begun = begun + 1 return begun <= {connections} and begun * {apart_ms} or 0 end"
    )
    with _wrk(script, request.url, connections, 3600) as process:
        time.sleep(1)
        yield
        process.send_signal(signal.SIGINT)  # wrk then says how much it has done
        output = process.communicate()[0]
    requests, seconds = _match(r"(\d+) requests in ([0-9.]+)s", output).groups()
    rates.append((int(requests) - _failed(output)) / float(seconds))


@contextmanager
def _wrk(script: str, url: str, connections: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    if shutil.which("wrk") is None:
        raise SystemExit("the benchmarks need wrk (Debian's package of that name)")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        # Whole seconds, as pgbench takes them too.
        command = [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{whole(seconds)}s",
            "--latency",
            "-s",
            file.name,
            url,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


@define
class Costed:
    """``request`` under load, and what it costs by each of ``clocks``, in seconds of CPU."""

    request: Request
    clocks: tuple[Callable[[], float], ...]
    _costs: list[list[float]] = field(factory=list)

    def rate(self, seconds: float) -> float:
        """Requests a second, once more."""
        before = [clock() for clock in self.clocks]
        load = wrk(self.request, seconds)
        after = [clock() for clock in self.clocks]
        self._costs.append([(b - a) / load.requests * 1e6 for a, b in zip(before, after, strict=True)])
        return load.rate

    @property
    def microseconds(self) -> list[float]:
        """Of one request by each clock; the medians of all loads."""
        return [statistics.median(costs) for costs in zip(*self._costs, strict=True)]


def whole(seconds: float) -> int:
    """What the programs take: at least one second."""
    return max(1, round(seconds))


def _match(pattern: str, output: str) -> re.Match[str]:
    found = re.search(pattern, output)
    if found is None:
        raise SystemExit(f"wrk does not say what it should:\n{output}")
    return found


def _failed(output: str) -> int:
    found = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    return int(found[1]) if found else 0


def _latency(output: str, percent: int) -> float:
    found = _match(rf"\s{percent}%\s+([0-9.]+)(us|ms|s|m)\b", output)
    return float(found[1]) * _UNITS[found[2]]


def pgbench(dsn: str, sql: str, seconds: float) -> float:
    """Transactions a second of ``sql`` in one message."""
    program = program_directory() / "pgbench"
    known = parse_dsn(dsn)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"{sql};\n")
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
        command += ["-f", script.name, "-h", known["host"], "-U", known["user"], known["dbname"]]
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
