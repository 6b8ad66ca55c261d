"""``project-service`` as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
from attrs import frozen

from tests.live.daemon import ROOT


@frozen
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)


def cli(*arguments: str | Path, stdin: str = "") -> Ended:
    """How it ended; a traceback fails the test."""
    script = Path(sys.executable).with_name("project-service")
    done = subprocess.run(
        [str(one) for one in (script, *arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)
