"""The sample cases of PostgREST's conventions, where ``POSTGREST_SUITE`` names the suite and its database can run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Two cases want a file that only the suite's author has; the others are met or a change has broken something.
LEAST = 606


@pytest.mark.skipif(not os.environ.get("POSTGREST_SUITE"), reason="POSTGREST_SUITE is not set")
@pytest.mark.skipif(
    not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")), reason="needs Debian's postgresql"
)
def test_the_base_group() -> None:
    command = [sys.executable, "-m", "benchmarks.tables_conformance", "base"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    found = re.search(r"(\d+) / (\d+) +base", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert int(found[1]) >= LEAST, done.stdout
