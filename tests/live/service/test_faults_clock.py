"""The system clock is set forward and back by an hour while clients write: nothing is lost, closed or delayed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
import requests

from tests.live.daemon import ROOT
from tests.live.loaded_service import credentials, gone_on, judge, load_on, make_ledger, started, warmed_up
from tests.live.mixed_load import PARTS

# One hour, and the leeway granted to clocks that differ.
HOUR = 3600.0 + 60.0
IDLE_SECONDS = 1.0
# Each Python process of the service imports this as it starts; it adds the seconds in a file to the clock.
STEPPING = """
import os
import time

true = time.time


def stepped():
    with open(os.environ["CLOCK_STEP"]) as file:
        return true() + float(file.read())


time.time = stepped
"""


class SteppedClock:
    """Sets what ``time.time`` returns in the service. PostgreSQL and the store keep the real clock."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        directory.mkdir()
        (directory / "sitecustomize.py").write_text(STEPPING)
        self.pythonpath = f"{directory}{os.pathsep}{ROOT}"
        self._file = directory / "step"
        self.step(0.0)
        monkeypatch.setenv("CLOCK_STEP", str(self._file))

    def step(self, seconds: float) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.rename(self._file)


def is_given_up(url: str, meanwhile: Callable[[], None]) -> bool:
    """Whether an unfinished request is given up after the idle timeout. Fails if that happens earlier, or never."""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost")
        client.settimeout(IDLE_SECONDS / 2)
        meanwhile()
        with pytest.raises(TimeoutError):
            client.recv(1000)
        client.settimeout(20 * IDLE_SECONDS)
        while client.recv(1000):
            continue
    return True


def known(base: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return requests.get(f"{base}/auth/user", headers=headers, timeout=10).status_code


def test_an_hour_forward_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock(tmp_path / "clock", monkeypatch)
    monkeypatch.setenv("PROJECT_SERVICE__SERVER__IDLE_TIMEOUT_SECONDS", str(IDLE_SECONDS))
    with started(tmp_path, pythonpath=clock.pythonpath):
        make_ledger(tmp_path)
        base = credentials(tmp_path)["base_url"]
        account = {"email": "clock@example.test", "password": "a long enough one"}
        signed_up = requests.post(f"{base}/auth/signup", json=account, timeout=10).json()["data"]
        with load_on(tmp_path) as load:
            warmed_up(load)
            since = monotonic()
            # Tokens expire by the calendar; timeouts go by the time that really passed.
            for step, status in ((HOUR, 401), (-HOUR, 401), (0.0, 200)):
                assert is_given_up(base, partial(clock.step, step))
                assert known(base, signed_up["access_token"]) == status
                gone_on(load)
        judge(load, "the clock set an hour forward, two back, one forward", since)
    for part in PARTS:
        assert (load.count(part, "broken"), load.count(part, "refused")) == (0, 0)
