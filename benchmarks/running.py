"""A service of the benchmarks' own on a temporary data directory, and what its processes use."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2
from attrs import frozen

from benchmarks.memory import resident

ROOT = Path(__file__).parents[1]
_READY = re.compile(r"project-service is ready on (http://\S+)")


@frozen
class Running:
    """``pids`` are the service's own processes, the parent first; the embedded servers are left aside."""

    url: str
    anon_key: str
    service_key: str
    dsn: str
    data_dir: Path
    pids: tuple[int, ...]

    @property
    def workers(self) -> tuple[int, ...]:
        return self.pids[1:] or self.pids

    @property
    def store_pid(self) -> int:
        pid: int = json.loads((self.data_dir / "run" / "weed.pid").read_text())["pid"]
        return pid

    def cpu_seconds(self) -> float:
        """User and system time of all its processes together."""
        return sum(map(cpu_seconds, self.pids))

    def database_cpu_seconds(self) -> float:
        """The same of PostgreSQL's processes that serve clients now."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            cursor.execute("select pid from pg_stat_activity where backend_type = 'client backend'")
            return sum(cpu_seconds(pid) for (pid,) in cursor.fetchall())

    def memory(self) -> float:
        """Resident MiB of its largest worker."""
        return max(resident(pid) for pid in self.workers)

    def sql(self, text: str) -> None:
        """Each statement of ``text`` by itself."""
        with closing(psycopg2.connect(self.dsn)) as connection:
            connection.autocommit = True
            for statement in filter(str.strip, text.split(";")):
                connection.cursor().execute(statement)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def service(
    workers: int = 2, environ: Mapping[str, str] | None = None, config: str = "", checkout: Path = ROOT
) -> Iterator[Running]:
    """Runs until the block ends. ``environ`` are settings, as the environment spells them; ``config`` is such a file.
    The code is that of ``checkout``; another than this one has a ``.venv`` of its own."""
    with tempfile.TemporaryDirectory(prefix="project-service-bench-") as place:
        Path(place).chmod(0o755)
        data_dir, config_file, code = Path(place) / "var", Path(place) / "config.toml", checkout.resolve()
        config_file.write_text(config)
        python = sys.executable if code == ROOT else str(code / ".venv" / "bin" / "python")
        command = [python, "-c", "from twisted.scripts.twistd import run; run()"]
        command += ["--nodaemon", "--pidfile=", "project-service", "--data-dir", str(data_dir)]
        command += ["--config", str(config_file)] if config else []
        command += ["--listen", "tcp:0:interface=127.0.0.1", "--workers", str(workers)]
        process = subprocess.Popen(
            command,
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(code), **(environ or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            url = _address(process)
            known = json.loads((data_dir / "credentials.json").read_text())
            keys = (known["anon_key"], known["service_key"], known["dsn"])
            yield Running(url, *keys, data_dir, (process.pid, *_own_children(process.pid)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@contextmanager
def yardstick(command: list[str]) -> Iterator[tuple[str, int]]:
    """The address and the pid of a yardstick, which prints its address."""
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("http://"):
                raise SystemExit("the yardstick did not start")
            yield line.split()[0], process.pid
        finally:
            process.kill()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := _READY.search(line):
            # Keep reading, so that the service never waits for its log.
            threading.Thread(target=lambda: [None for _ in process.stdout or ()], daemon=True).start()
            return found[1]
    raise SystemExit("the service did not start:\n" + "".join(lines))


def _own_children(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    names = {int(child): Path(f"/proc/{child}/comm").read_text() for child in children}
    return [pid for pid, name in names.items() if "python" in name or "twistd" in name]
