"""Programs that tests run and that a machine may lack."""

from __future__ import annotations

import os
import shutil

import pytest

# With the programs of administrators, nginx for one, which are not on everybody's path, and podman's own.
PATH = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/usr/lib/podman"


def program(name: str, *others: str) -> str:
    """Where the program is, by the first of its names that is there. Skips the test without it."""
    for one in (name, *others):
        path = shutil.which(one, path=PATH)
        if path is not None:
            return path
    pytest.skip(f"{name} is not installed (.ci/run installs it)")
