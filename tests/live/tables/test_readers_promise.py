"""No read is older than promised while standbys lag, hang, die and are promoted. ``python -m tests.chaos readers``
does it for longer."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.chaos.readers import readers


def test_no_read_is_older_than_promised(tmp_path: Path) -> None:
    readers(tmp_path, Random(1), rounds=1)
