"""Directories for a test's files, and ports to listen on."""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase


def temporary_directory(test: SynchronousTestCase) -> Path:
    """An empty directory that is removed after ``test``. Trial's own ``mktemp`` leaves files where pytest runs."""
    path = Path(tempfile.mkdtemp(prefix="project-service-test-"))
    test.addCleanup(shutil.rmtree, path)
    return path


def free_port() -> int:
    """A port of the loopback interface that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
