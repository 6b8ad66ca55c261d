"""Programs for Node, and packages from npm, for tests with real clients."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

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


def run_node(folder: Path, text: str, *args: str) -> Any:
    """What the program ``text``, a module, writes as JSON. Skips the test where there is no Node."""
    (folder / "program.mjs").write_text(text, "utf-8")
    command = [program("node"), "program.mjs", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
