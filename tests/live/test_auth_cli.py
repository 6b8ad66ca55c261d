"""``project-service user`` and ``jwt-keys`` as programs, on a real database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import bcrypt
import pytest

from project_service.auth.keyset import KeySet
from tests.live.daemon import ROOT

PASSWORD = "correct horse battery"


class Cli:
    def __init__(self, database: str, data_dir: Path) -> None:
        self._environ = {**os.environ, "PYTHONPATH": str(ROOT), "PROJECT_SERVICE__DATABASE__DSN": database}
        self._data_dir = data_dir

    def __call__(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        script = Path(sys.executable).with_name("project-service")
        done = subprocess.run(
            [str(script), *arguments, "--data-dir", str(self._data_dir)],
            env=self._environ,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done


@pytest.fixture
def cli(database: str, tmp_path: Path) -> Cli:
    return Cli(database, tmp_path)


def test_the_life_of_a_user(cli: Cli) -> None:
    made = cli("user", "create", "Ada@example.test", "--password-stdin", "--json", stdin=PASSWORD + "\n")
    assert made.returncode == 0, made.stderr
    user = json.loads(made.stdout)
    assert (user["email"], user["disabled"], user["email_confirmed"]) == ("Ada@example.test", False, True)
    again = cli("user", "create", "ADA@example.test")
    assert (again.returncode, again.stdout) == (1, "")
    assert "already a user" in again.stderr
    assert cli("user", "disable", "ada@EXAMPLE.test").stdout == f"disabled {user['id']}\n"
    listed = cli("user", "list")
    assert f"{user['id']}  disabled  " in listed.stdout
    assert cli("user", "enable", user["id"]).returncode == 0
    assert [one["disabled"] for one in json.loads(cli("user", "list", "--json").stdout)] == [False]
    assert cli("user", "end-sessions", user["id"]).stdout == "ended 0\n"
    assert cli("user", "delete", "ada@example.test").stdout == f"deleted {user['id']}\n"
    gone = cli("user", "delete", "ada@example.test")
    assert (gone.returncode, gone.stderr) == (1, "project-service: There is no such user.\n")


def test_what_a_user_cannot_be_made_of(cli: Cli) -> None:
    for password in ("short", "x" * 73):
        refused = cli("user", "create", "ada@example.test", "--password-stdin", stdin=password)
        assert refused.returncode == 1
        assert "password" in refused.stderr
    assert cli("user", "create", "no address").returncode == 1
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    assert cli("user", "create", "old@example.test", "--password-hash", hashed).returncode == 0


def test_keys_are_made_and_rotated(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "jwt-keys.json"
    assert cli("jwt-keys", "rotate").returncode == 1
    made = cli("jwt-keys", "create", "--json")
    assert made.returncode == 0, made.stderr
    (first,) = json.loads(made.stdout)["keys"]
    assert (first["algorithm"], first["signs"]) == ("ES256", True)
    assert path.stat().st_mode & 0o777 == 0o600
    refused = cli("jwt-keys", "create")
    assert refused.returncode == 1
    assert "rotate" in refused.stderr
    assert cli("jwt-keys", "rotate", "--algorithm", "EdDSA").returncode == 0
    keys = KeySet.parse(path.read_bytes()).keys
    assert [key.algorithm for key in keys] == ["EdDSA", "ES256"]
    assert keys[1].kid == first["kid"]
    elsewhere = tmp_path / "elsewhere.json"
    assert cli("jwt-keys", "create", "--file", str(elsewhere), "--algorithm", "HS256").returncode == 0
    assert KeySet.parse(elsewhere.read_bytes()).signing.algorithm == "HS256"
    path.write_text("{}")
    broken = cli("jwt-keys", "rotate")
    assert broken.returncode == 1
    assert "JWK Set" in broken.stderr
