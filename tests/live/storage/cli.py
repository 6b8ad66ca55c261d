"""``project-service`` as a program, on the real database and store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from project_service.settings.model import Store
from tests.live.cli.command_line import cli


def config_file(dsn: str, store: Store, directory: Path) -> Path:
    """Writes a configuration for that database and store into ``directory``."""
    assert store.secret_access_key is not None
    path = directory / "service.toml"
    path.write_text(
        f"""
        server.listen = ["tcp:0:interface=127.0.0.1"]
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
    """Runs a command. Returns the exit code, the JSON that it prints, and its standard error."""
    done = cli(*words, "--config", config, "--json")
    return done.code, done.json if done.out else None, done.err
