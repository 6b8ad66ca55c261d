"""Programs for Node, and packages from npm, for tests with real clients."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live.programs import program

# What npm says where no registry can be reached, by the names of errors of Node and of the system, or where there is
# one that does not answer for now.
_AWAY = re.compile(
    r"\b(?:ENOTFOUND|EAI_AGAIN|ECONN\w+|\w*TIMEDOUT|ENETUNREACH|EHOSTUNREACH|\w*SOCKET_TIMEOUT|E403|E429|E5\d\d)\b"
)


def install(folder: Path, *packages: str) -> None:
    """Install packages into ``folder``, which becomes one of modules. Skips the test where npm or its registry cannot
    be reached; whatever else npm fails with fails the test."""
    (folder / "package.json").write_text('{"type": "module"}')
    # Not --silent: what npm says of a failure is the reason for the skip.
    command = [program("npm"), "install", "--loglevel=error", "--no-audit", "--no-fund", *packages]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode and _AWAY.search(done.stderr):
        pytest.skip(f"npm could not install {', '.join(packages)}: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr


def run_node(folder: Path, text: str, *args: str) -> Any:
    """What the program ``text``, a module, writes as JSON. Skips the test where there is no Node."""
    (folder / "program.mjs").write_text(text, "utf-8")
    command = [program("node"), "program.mjs", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
