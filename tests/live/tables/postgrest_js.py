"""Programs for Node that use PostgREST's JavaScript client, which npm installs for the test."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.live.npm import install


def ran_by_node(folder: Path, program: str, *args: str) -> Any:
    """What ``program``, a module, writes as JSON. Skips the test if the client cannot be installed."""
    install(folder, "@supabase/postgrest-js@2")
    (folder / "program.mjs").write_text(program, "utf-8")
    command = ["node", "program.mjs", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
