"""``project-service`` on the real database and store, as a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from project_service.settings import Store


def config_file(dsn: str, store: Store, directory: Path) -> Path:
    """A configuration of that database and store, in ``directory``."""
    assert store.secret_access_key is not None
    path = directory / "service.toml"
    path.write_text(
        f"""
        [database]
        dsn = {json.dumps(dsn)}
        [store]
        endpoint_url = "{store.endpoint_url}"
        bucket = "{store.bucket}"
        access_key_id = "{store.access_key_id}"
        secret_access_key = "{store.secret_access_key.reveal()}"
        [auth]
        jwt_keys_file = "{directory / "jwt-keys.json"}"
        """
    )
    return path


def run(config: Path, *words: str) -> tuple[int, Any, str]:
    """Exit code, what is printed as JSON, and what is said on standard error."""
    program = [sys.executable, "-c", "from project_service.cli import main; main()"]
    done = subprocess.run(
        [*program, *words, "--config", str(config), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr
