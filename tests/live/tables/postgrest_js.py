"""Programs for Node that use PostgREST's JavaScript client, which npm installs for the test."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def ran_by_node(folder: Path, program: str, *args: str) -> Any:
    """What ``program``, a module, writes as JSON. Skips the test if the client cannot be installed."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed (.ci/run installs it)")
    (folder / "package.json").write_text('{"type": "module"}')
    # Not --silent: what npm says of a failure is the reason for the skip.
    install = ["npm", "install", "--loglevel=error", "--no-audit", "--no-fund", "@supabase/postgrest-js@2"]
    made = _run(install, folder, 120)
    if made.returncode:
        pytest.skip(f"npm could not install @supabase/postgrest-js: {made.stderr.strip()[:200]}")
    (folder / "program.mjs").write_text(program, "utf-8")
    done = _run(["node", "program.mjs", *args], folder, 60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _run(argv: list[str], folder: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
