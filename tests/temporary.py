"""Directories for a test's files, and ports to listen on."""

from __future__ import annotations

import random
import shutil
import socket
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

# Above those that the kernel gives to whoever asks for any port, as all clients and most tests do, and that embedded
# stores choose from: one of those may be taken before the server that it is for has started.
_PORTS = range(61_000, 65_536)
# Not the module's own generator, which Hypothesis gives the same seed in each process.
_chance = random.SystemRandom()


def temporary_directory(test: SynchronousTestCase) -> Path:
    """An empty directory that is removed after ``test``. Trial's own ``mktemp`` leaves files where pytest runs."""
    path = Path(tempfile.mkdtemp(prefix="project-service-test-"))
    test.addCleanup(shutil.rmtree, path)
    return path


def free_port() -> int:
    """A port of the loopback interface that nobody listens on just now, and that nobody gets by chance."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", _chance.choice(_PORTS)))
            except OSError:
                continue  # it is taken
            return int(probe.getsockname()[1])
