"""``project-service`` as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
from attrs import frozen

from tests.live.daemon import ROOT, TIMEOUT_SECONDS


@frozen
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)


def cli(*arguments: str | Path, stdin: str = "") -> Ended:
    """Runs a command to its end. A traceback fails the test."""
    with beginning(*arguments) as begun:
        try:
            out, err = begun.communicate(stdin, timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            begun.kill()
            raise
    assert "Traceback" not in err, err
    return Ended(begun.returncode, out, err)


def beginning(*arguments: str | Path) -> subprocess.Popen[str]:
    """Starts a command, in a process group of its own."""
    script = Path(sys.executable).with_name("project-service")
    return subprocess.Popen(
        [str(one) for one in (script, *arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
