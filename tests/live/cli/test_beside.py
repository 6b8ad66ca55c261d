"""Commands on a data directory that another process is using."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from project_service import files
from project_service.cli import invocation
from project_service.embedded.data_directory import DirectoryLock
from tests.live.cli.command_here import beside_the_reactor, commands_of, failed

ELSEWHERE = "the service that runs on the data directory has a {} elsewhere; give its --config too"


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[Path]:
    """A data directory that another process is using."""
    files.write_json(tmp_path / "embedded.json", {})
    (tmp_path / "run").mkdir()
    lock = DirectoryLock(tmp_path)
    lock.take()
    yield tmp_path
    lock.release()


@beside_the_reactor
def test_a_service_with_its_database_or_store_elsewhere_is_explained(
    taken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = {"dsn": None, "admin_dsn": None, "store": None}
    files.write_json(taken / "run" / "running.json", noted)
    project = commands_of(monkeypatch, "--data-dir", taken)
    assert project("keys", "list") == failed(ELSEWHERE.format("database"))
    files.write_json(taken / "run" / "running.json", noted | {"dsn": "postgresql://127.0.0.1:9/x"})
    assert project("storage", "verify") == failed(ELSEWHERE.format("store"))


@beside_the_reactor
def test_a_command_that_does_not_get_its_turn_names_the_process_that_has_it(
    taken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invocation, "TURN_SECONDS", 0.0)
    project = commands_of(monkeypatch, "--data-dir", taken)
    whose = f"another project-service (pid {os.getpid()}) is running on {taken}"
    assert project("keys", "list") == failed(f"{whose}; stop it or use another --data-dir")
