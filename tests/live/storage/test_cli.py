"""``project-service bucket`` and ``project-service storage`` on the real database and store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from project_service.settings.model import Store
from tests.live.cli.command_here import beside_the_reactor, commands_of
from tests.live.storage.cli import config_file


@beside_the_reactor
def test_a_bucket_from_its_creation_to_its_deletion(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = commands_of(monkeypatch, "--json", "--config", config_file(database, store_settings, tmp_path))

    def run(*words: str) -> tuple[int, Any, str]:
        done = project(*words)
        return done.code, done.json if done.out else None, done.err

    rules = ["--public", "--max-object-bytes", "1000", "--content-type", "text/*", "--owner-only-writes"]
    code, made, _ = run("bucket", "create", "papers", *rules)
    assert code == 0
    assert (made["visibility"], made["max_object_bytes"], made["owner_only_writes"]) == ("public", 1000, True)
    assert made["allowed_content_types"] == ["text/*"]
    code, _, said = run("bucket", "create", "papers")
    assert (code, "already" in said) == (1, True)
    assert run("bucket", "create", "No")[0] == 1
    assert run("bucket", "update", "papers", "--max-bucket-bytes", "many")[0] == 2
    changes = ["--private", "--max-object-bytes", "none", "--content-type", "any", "--shared-writes"]
    code, changed, _ = run("bucket", "update", "papers", *changes)
    assert code == 0
    assert (changed["visibility"], changed["max_object_bytes"]) == ("private", None)
    assert (changed["allowed_content_types"], changed["owner_only_writes"]) == (None, False)

    files = tmp_path / "files"
    (files / "sub").mkdir(parents=True)
    (files / "one.txt").write_text("one")
    (files / "sub" / "zwei ö.txt").write_text("zwei")
    (files / "bad\nname").write_text("bad")
    (files / os.fsdecode(b"no-text-\xff")).write_text("bad")
    (files / "no-bytes").symlink_to("/proc/self/mem")
    code, imported, _ = run("storage", "import", "papers", str(files), "--prefix", "in/")
    assert code == 1
    assert imported["imported"] == ["in/one.txt", "in/sub/zwei ö.txt"]
    assert list(imported["refused"]) == ["in/bad\nname", "in/no-bytes", "in/no-text-\\udcff"]
    assert imported["refused"]["in/no-bytes"] == "It cannot be read: Input/output error."
    for bad in ("bad\nname", "no-bytes", os.fsdecode(b"no-text-\xff")):
        (files / bad).unlink()
    code, again, _ = run("storage", "import", "papers", str(files), "--prefix", "in/")
    assert (code, again["imported"], len(again["skipped"])) == (0, [], 2)

    run("bucket", "update", "papers", "--max-object-bytes", "2")
    (files / "long").write_text("xyz")
    code, refused, _ = run("storage", "import", "papers", str(files), "--prefix", "in/")
    assert (code, list(refused["refused"])) == (1, ["in/long"])

    code, report, _ = run("storage", "verify")
    assert (code, report["sound"], report["objects"]) == (0, True, 2)
    assert run("storage", "sweep")[0] == 0
    assert [bucket["object_count"] for bucket in run("bucket", "list")[1]] == [2]
    code, _, said = run("bucket", "delete", "papers")
    assert (code, "--force deletes them too" in said) == (1, True)
    assert run("bucket", "delete", "papers", "--force")[0] == 0
    assert run("bucket", "delete", "papers", "--force")[0] == 1
    assert run("storage", "verify")[1]["orphans"] == []


@beside_the_reactor
def test_control_characters_in_keys_are_not_printed(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path))
    assert project("bucket", "create", "papers").code == 0
    files = tmp_path / "files"
    files.mkdir()
    (files / "é \x1b[2J\n\x9b").touch()
    first, *rest = project("storage", "import", "papers", str(files)).out.splitlines()
    assert first.startswith(r"refused  é \x1b[2J\n\x9b: ")
    assert rest == ["0 imported, 0 there already, 1 refused"]
