"""Packages from npm, for tests with real programs and libraries for Node."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.live.programs import program


def install(folder: Path, *packages: str) -> None:
    """Install packages into ``folder``, which becomes one of modules. Skips the test if that cannot be done here."""
    (folder / "package.json").write_text('{"type": "module"}')
    # Not --silent: what npm says of a failure is the reason for the skip.
    command = [program("npm"), "install", "--loglevel=error", "--no-audit", "--no-fund", *packages]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"npm could not install {', '.join(packages)}: {done.stderr.strip()[:200]}")
