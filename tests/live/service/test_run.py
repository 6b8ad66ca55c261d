"""Running twistd project-service: options, signals, what is left behind, and an output that nobody reads."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import urlsplit

import pytest
import requests

from tests.live.daemon import (
    READY,
    ROOT,
    SITE_PACKAGES,
    TIMEOUT_SECONDS,
    Daemon,
    answers,
    children_on,
    eventually,
    pid_of,
    twistd,
    twistd_beside,
)
from tests.live.services import WithDatabase


@pytest.fixture(scope="module")
def data_dir(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data directory for the module."""
    return with_database(tmp_path_factory.mktemp("run") / "var")


@pytest.fixture
def daemon(data_dir: Path) -> Iterator[Daemon]:
    with Daemon(data_dir) as one:
        yield one
    assert children_on(data_dir) == []


def is_ready(url: str) -> None:
    """A check may take longer than is waited for it on a busy machine."""
    eventually(lambda: answers(f"{url}/ready"), "readiness")


def sign_up(url: str, name: str) -> dict[str, str]:
    account = {"email": f"{name}@example.test", "password": "correct horse 7"}
    assert requests.post(f"{url}/auth/signup", json=account, timeout=60).status_code == 201
    return account


def test_stopping_while_the_database_is_made(tmp_path: Path) -> None:
    """The very first start is interrupted; the next one makes what is missing."""
    data_dir = tmp_path / "var"
    with Daemon(data_dir) as early:
        eventually((data_dir / "postgres.new" / "base").exists, "initdb at its work")
        os.killpg(early.process.pid, signal.SIGINT)
        assert early.wait_until_ended() == 0, early.text
        assert "Traceback" not in early.text
    assert children_on(data_dir) == []
    assert not (data_dir / ".initdb-password").exists()
    with Daemon(data_dir) as second:
        is_ready(second.wait_until_ready())


def test_start_and_stop(daemon: Daemon, data_dir: Path) -> None:
    url = daemon.wait_until_ready()
    assert answers(f"{url}/live")
    is_ready(url)
    path = data_dir / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    credentials = json.loads(path.read_text())
    assert credentials["base_url"] == url
    assert credentials["rest_url"] == f"{url}/dev/db/main/rest"
    assert set(credentials) == {"base_url", "rest_url", "anon_key", "service_key", "dsn"}
    assert children_on(data_dir)
    # Standard output is no terminal here, so the keys are not printed.
    assert daemon.stop() == 0, daemon.text
    assert str(path) in daemon.text
    assert credentials["anon_key"] not in daemon.text
    assert credentials["service_key"] not in daemon.text
    assert children_on(data_dir) == []


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_stopping_during_the_start(data_dir: Path, name: str) -> None:
    """SIGINT goes to the whole process group, as Ctrl-C does; the embedded servers are not in it."""
    with Daemon(data_dir) as early:
        eventually(lambda: pid_of(data_dir, "weed") > 0, "a child")
        os.killpg(early.process.pid, getattr(signal, name))
        assert early.wait_until_ended() == 0, early.text
        assert "Traceback" not in early.text
    assert children_on(data_dir) == []


def test_daemonised_with_a_pid_file(data_dir: Path, tmp_path: Path) -> None:
    pid_file, log = tmp_path / "service.pid", tmp_path / "service.log"
    options = [f"--pidfile={pid_file}", f"--logfile={log}", "project-service"]
    listen = ["--listen", "tcp:0:interface=127.0.0.1", "--data-dir", str(data_dir)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    credentials = data_dir / "credentials.json"
    before = credentials.stat().st_ino if credentials.exists() else 0
    done = subprocess.run(
        [twistd_beside(sys.executable), *options, *listen],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    eventually(lambda: credentials.exists() and credentials.stat().st_ino != before, f"being ready ({log})")
    url = json.loads(credentials.read_text())["base_url"]
    is_ready(url)
    os.kill(int(pid_file.read_text()), signal.SIGTERM)
    eventually(lambda: not pid_file.exists() and not children_on(data_dir), "the end")
    logged = log.read_text()
    assert "Traceback" not in logged
    assert "Starting PostgreSQL" in logged
    assert f"ready on {url}\n" in logged


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """A directory outside pytest's own, which are closed to other users."""
    made = Path(mkdtemp(prefix="project-service-test-"))
    yield made
    shutil.rmtree(made)


def test_the_service_runs_as_an_ordinary_user(public_dir: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user already")
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("there is no setpriv to become another user with")
    nobody = pwd.getpwnam("nobody")
    become = [setpriv, f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    python = _python_for(become)
    if python is None:
        pytest.skip(f"an ordinary user may run neither {sys.executable} nor another Python of that version")
    if subprocess.run([*become, "test", "-r", SITE_PACKAGES], check=False).returncode != 0:
        pytest.skip("an ordinary user may not read where this checkout lies")
    os.chown(public_dir, nobody.pw_uid, nobody.pw_gid)
    data = public_dir / "var"
    with Daemon(data, before=become, python=python) as daemon:
        url = daemon.wait_until_ready()
        is_ready(url)
        assert (data / "postgres").stat().st_uid == nobody.pw_uid
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        assert daemon.stop() == 0, daemon.text
    assert children_on(data) == []


def _python_for(become: list[str]) -> str | None:
    """This Python if the other user may run it, otherwise the system's if it has the same version."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (str(Path(sys.executable).resolve()), f"/usr/bin/python{version}"):
        if subprocess.run([*become, "test", "-x", python], check=False).returncode == 0:
            return python
    return None


CLIENTS = 8
# Each logs a line; the output of so many fills the pipe, and is read in pieces that end within a line.
REQUESTS = 2000


def ask(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, TIMEOUT_SECONDS) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n" * REQUESTS)
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK\r\n") < REQUESTS:
            piece = client.recv(1 << 20)
            if not piece:
                return False
            answers += piece
    return True


@pytest.mark.parametrize("ended", [True, False])
def test_the_service_goes_on_and_stops_when_told(ended: bool, data_dir: Path) -> None:
    own = ["--nodaemon", "--pidfile=", "project-service", "--data-dir", str(data_dir), "--workers", "2"]
    command = [*twistd(sys.executable), *own, "--listen", "tcp:0:interface=127.0.0.1"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    reader, writer = os.pipe()
    process = subprocess.Popen(command, stdout=writer, stderr=writer, cwd="/", env=environ)
    os.close(writer)
    printed = os.fdopen(reader)
    url = next(found[1] for found in map(READY.search, printed) if found)
    if ended:
        printed.close()
    try:
        with ThreadPoolExecutor(CLIENTS) as threads:
            assert all(threads.map(ask, [("127.0.0.1", urlsplit(url).port or 0)] * CLIENTS))
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_SECONDS)
    finally:
        process.kill()
        printed.close()
    eventually(lambda: not children_on(data_dir), "the end of its servers")
