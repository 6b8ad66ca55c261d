"""The README's first session, executed as it stands: its commands, in its order, against a new service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.live.daemon import ROOT, Daemon
from tests.live.programs import program

BLOCK = re.compile(r"\.\. code-block:: sh\n\n((?: {4}.*\n|\n)+)")


def commands(rst: str) -> str:
    """All shell blocks of a document as one script."""
    blocks = [re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in BLOCK.findall(rst)]
    assert blocks, "there are no commands"
    return "\n".join(blocks)


def test_the_first_session_works_as_printed(tmp_path: Path) -> None:
    program("curl")
    readme = (ROOT / "README.rst").read_text("utf-8")
    folder = tmp_path / "clone"
    folder.mkdir()
    # As in a clone after `make run`: the program in .venv, its state in var.
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "README.rst").write_text(readme)
    with Daemon(folder / "var") as daemon:
        daemon.wait_until_ready()
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands(readme)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,  # its output says more than a status
        )
        assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert '"email":"ann@example.com"' in out, out
    assert '"key":"docs/readme.rst"' in out, out
    assert '"folders":[]' in out, out
    assert "identical" in out, out
    assert re.search(r'\[\{"id":2,"text":"second"\}\]', out.replace(" ", "").replace("\n", "")), out


def test_the_two_commands_are_make_targets() -> None:
    readme = (ROOT / "README.rst").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^    make (\w+)", readme, flags=re.MULTILINE)
    assert targets == ["run", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
