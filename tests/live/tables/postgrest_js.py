"""Programs for Node that use PostgREST's JavaScript client, which npm installs for the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.live.npm import install, run_node


def ran_by_node(folder: Path, program: str, *args: str) -> Any:
    """What ``program``, a module, writes as JSON. Skips the test if the client cannot be installed."""
    install(folder, "@supabase/postgrest-js@2")
    return run_node(folder, program, *args)
