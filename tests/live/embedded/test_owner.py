"""The owners and permissions of the data directory if root starts the service."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import pytest_twisted
from twisted.internet import reactor

from project_service.embedded.assemble import Embedded
from project_service.embedded.data_directory import SECRETS_FILE
from project_service.embedded.supervised import ChildFailed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may work on another user's files")


@pytest_twisted.ensureDeferred
async def test_nothing_is_started_on_another_users_data(tmp_path: Path) -> None:
    """Servers started by root would leave files there that the owner could not use."""
    (tmp_path / SECRETS_FILE).write_text("{}")
    os.chown(tmp_path / SECRETS_FILE, 54321, 54321)
    embedded = Embedded(reactor, tmp_path)
    with pytest.raises(ChildFailed, match="is the data of the user 54321: run this as that user"):
        await embedded.start()
    assert not (tmp_path / "postgres.new").exists()
    assert not (tmp_path / "run").exists()
    assert embedded.children == {}


@pytest_twisted.ensureDeferred
async def test_a_first_start_with_umask_077(tmp_path: Path) -> None:
    """Hardened hosts have such a umask; PostgreSQL runs as another user there and needs to read its files."""
    before = os.umask(0o077)
    try:
        embedded = Embedded(reactor, tmp_path / "in" / "var", store=False)
        try:
            await embedded.start()
            assert [name for name, child in embedded.children.items() if child.is_ready] == ["postgres"]
        finally:
            await embedded.stop()
    finally:
        os.umask(before)
