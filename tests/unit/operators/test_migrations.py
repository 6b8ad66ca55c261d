"""Migrations as files: whole or not at all, each with a number of its own."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from datetime import UTC, datetime
from pathlib import Path

import pytest

from project_service.errors import ApiError
from project_service.operators import migrations

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def written(folder: Path, content: str = "select 1;\n") -> str:
    return migrations._written(folder, "x", content, 0, NOW).name


def test_a_lock_that_somebody_else_holds_is_not_waited_for(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        with pytest.raises(ApiError, match="Somebody else saves one"):
            written(tmp_path)
    finally:
        os.close(descriptor)
    assert written(tmp_path) == "0001_x.sql"


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    # A disk that is full: no file may be larger than this.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError) as failed:
            written(tmp_path, "-- x\n" * 50_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert failed.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []
    assert written(tmp_path) == "0001_x.sql"
