"""The service as a ``twistd`` process on a free port, and what is left when it has ended."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType

import requests

from project_service.embedded.leftovers import PROC, identify, uses_directory

ROOT = Path(__file__).parents[2]
# A request that was answered as requests are: thousands of them would hide why a test under load has failed.
_ANSWERED = re.compile(r"Edge\] [A-Z]+ \S+ [1-4][0-9]{2} ")
READY = re.compile(r"(?:ready|serving) on (http://[^\s\",]+)")  # a line of text, or of JSON
# Only a test that fails waits as long as this; a busy machine takes a minute for what else takes some seconds.
TIMEOUT_SECONDS = 180.0


RUN_TWISTD = "from twisted.scripts.twistd import run; run()"
SITE_PACKAGES = str(Path(requests.__file__).parents[1])


def twistd_beside(python: str) -> str:
    return str(Path(python).with_name("twistd"))


def twistd(python: str) -> list[str]:
    """The command line of twistd: the environment's script, or its equivalent for another Python."""
    script = twistd_beside(python)
    return [script] if Path(script).exists() else [python, "-c", RUN_TWISTD]


def is_telling(line: str) -> bool:
    """Whether a line of the log may say why a test has failed."""
    return _ANSWERED.search(line) is None


class Daemon:
    """``twistd … project-service …`` in the foreground. ``output`` is everything that it prints.

    ``before`` is put before the command line, for instance ``setpriv``.
    """

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        before: Sequence[str] = (),
        python: str = sys.executable,
        pythonpath: str = str(ROOT),
    ) -> None:
        self.data_dir = data_dir
        argv = [*before, *twistd(python), "--nodaemon", "--pidfile=", "project-service"]
        listen = ["--listen", "tcp:0:interface=127.0.0.1"]
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        # A password takes a quarter of a second with the default of 12.
        environ.setdefault("PROJECT_SERVICE__AUTH__BCRYPT_COST", "4")
        if pythonpath:
            # The second part and PATH are for a Python from outside the environment.
            environ["PYTHONPATH"] = f"{pythonpath}{os.pathsep}{SITE_PACKAGES}"
            environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
        self.process = subprocess.Popen(
            [*argv, *listen, "--data-dir", str(data_dir), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Not started in the repository, because it must not matter where it is started.
            cwd="/",
            env=environ,
            text=True,
            start_new_session=True,
        )
        self.output: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_until_ready(self) -> str:
        """Waits until the service is ready, and returns the address that it prints."""
        deadline = monotonic() + TIMEOUT_SECONDS
        while True:
            line = self._next(deadline)
            if line is None:
                raise AssertionError("it ended before it was ready:\n" + self.text)
            match = READY.search(line)
            if match:
                return match[1]

    def wait_until_ended(self) -> int:
        deadline = monotonic() + TIMEOUT_SECONDS
        while self._next(deadline) is not None:
            continue
        return self.process.wait(TIMEOUT_SECONDS)

    def _next(self, deadline: float) -> str | None:
        """The next line; None at the end, also if it has been read before."""
        if self._ended:
            return None
        try:
            line = self._lines.get(timeout=max(0.0, deadline - monotonic()))
        except queue.Empty:
            raise AssertionError("nothing more was printed in time:\n" + self.text) from None
        if line is not None:
            self.output.append(line)
        self._ended = line is None
        return line

    def collect(self) -> None:
        """Reads what it has printed until now into ``output``."""
        while not self._lines.empty():
            self._next(monotonic())

    @property
    def text(self) -> str:
        return "\n".join(self.output)

    def reload(self, expected: str) -> None:
        """Sends SIGHUP, and returns when ``expected`` has been printed again."""
        self.collect()
        before = self.text.count(expected)
        self.process.send_signal(signal.SIGHUP)

        def is_printed() -> bool:
            self.collect()
            return self.text.count(expected) > before

        eventually(is_printed, expected)

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_until_ended()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(TIMEOUT_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        if kind is not None:
            self.collect()
            print("\n".join(filter(is_telling, self.output)))  # noqa: T201  # pytest shows it with the failure


def children_on(data_dir: Path) -> list[int]:
    """The pids of all processes that work in or on a data directory."""
    directories = [data_dir, *(data_dir / name for name in ("postgres", "postgres.new", "store"))]
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if identify(pid) and any(uses_directory(pid, one) for one in directories)]


def workers_of(daemon: Daemon) -> set[int]:
    """The pids of the daemon's worker processes."""
    workers = set()
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        if parent == daemon.process.pid and b"project_service.workers.worker" in command:
            workers.add(int(entry.name))
    return workers


def pid_of(data_dir: Path, name: str) -> int:
    """The pid of an embedded server; 0 if there is none."""
    try:
        return int(json.loads((data_dir / "run" / f"{name}.pid").read_text())["pid"])
    except FileNotFoundError:
        return 0


def sockets_of(pid: int) -> int:
    """How many sockets a process has."""
    return sum(one.is_socket() for one in (PROC / str(pid) / "fd").iterdir())


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Returns when the condition holds. After ``TIMEOUT_SECONDS`` the test fails."""
    deadline = monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert monotonic() < deadline, f"{what} did not happen in time"
        sleep(0.05)


def answers(url: str, status: int = 200, verify: str | bool = True) -> bool:
    try:
        return requests.get(url, timeout=TIMEOUT_SECONDS, verify=verify).status_code == status
    except requests.ConnectionError:
        return False
