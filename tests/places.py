"""Places for a test's files."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase


def temporary_directory(test: SynchronousTestCase) -> Path:
    """An empty directory that is gone after ``test``. Trial's own ``mktemp`` leaves its files where pytest runs."""
    path = Path(tempfile.mkdtemp(prefix="project-service-test-"))
    test.addCleanup(shutil.rmtree, path)
    return path
