"""The mix of requests that is measured, and what was measured last: the tables of docs/operating/scaling.rst."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.scale.machines import Cost, Kind

MEASURED = Path(__file__).with_name("measured.json")
RATES = (1_000, 10_000, 100_000)

# An application with a page of signed-in users' data: mostly reads, some pictures, few writes, few sign-ins.
MIX = (
    Kind("a user's row by key", 0.35, readable=True),
    Kind("100 rows", 0.10, readable=True),
    Kind("a row and its related rows", 0.15, readable=True),
    Kind("an insert", 0.08),
    Kind("an update", 0.04),
    Kind("GET /auth/user", 0.06, readable=True),
    Kind("a token refreshed", 0.01),
    Kind("a sign-in by password", 0.002),
    Kind("a 64 KiB object", 0.168, readable=True),
    Kind("a 64 KiB upload", 0.02, stores=True),
    Kind("a list of 100 objects", 0.02, readable=True),
)

# The name of all of it among the costs.
ALL = "the mix"


def load(path: Path) -> dict[str, Cost]:
    """The cost of each kind by itself, and of the mix."""
    return {name: Cost(**cost) for name, cost in json.loads(path.read_text()).items()}
