"""A service whose output nobody reads any more, because the reader, such as a pager, has ended or does not read
on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.live.daemon import READY, ROOT, TIMEOUT_SECONDS, children_on, eventually, twistd

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
def test_the_service_goes_on_and_stops_when_told(ended: bool, tmp_path: Path) -> None:
    data_dir = tmp_path / "var"
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
