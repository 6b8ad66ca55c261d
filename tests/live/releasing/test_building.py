"""Two builds of one commit, by people with other habits, are the same bytes; and these are fit for an index."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from releasing.building import built, digests, run
from tests.live.daemon import ROOT


def test_two_builds_have_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    one = built(ROOT, "HEAD", 1_800_000_000, tmp_path / "one")
    monkeypatch.setenv("TZ", "America/St_Johns")
    monkeypatch.setenv("LC_ALL", "C")
    before = os.umask(0o077)
    try:
        two = built(ROOT, "HEAD", 1_800_000_000, tmp_path / "a much longer way" / "two")
    finally:
        os.umask(before)
    assert [file.suffix for file in one] == [".whl", ".gz"]
    assert digests(one) == digests(two)
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, one)], tmp_path)
