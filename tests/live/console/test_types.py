"""The types that the console's modules state in their comments, checked by TypeScript."""

from __future__ import annotations

import subprocess
from pathlib import Path

from project_service.console.serving import APP
from tests.live.npm import install
from tests.live.programs import program


def test_the_modules_keep_to_the_types_that_they_state(tmp_path: Path) -> None:
    install(tmp_path, "typescript@7")
    compiler = tmp_path / "node_modules" / "typescript" / "bin" / "tsc"
    command = [program("node"), str(compiler), "--project", str(APP / "jsconfig.json"), "--pretty", "false"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
