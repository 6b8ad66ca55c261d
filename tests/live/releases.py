"""The program of the previous release, taken from the history of this repository."""

from __future__ import annotations

import re
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from attrs import frozen

from tests.live.daemon import ROOT
from tests.live.programs import program

# A heading of the changelog, as a release adds it: "0.1.0 (2026-11-27)".
_HEADING = re.compile(r"^(\d+\.\d+\.\d+) \(\d{4}-\d{2}-\d{2}\)\n-+$", re.M)


@frozen
class Release:
    """The newest version of the changelog whose section was added before this commit.

    Releases have no tags here: a release is the commit that adds its section. Its program runs on the libraries of
    this environment, not on those that were the newest at its time.
    """

    version: str
    commit: str

    def unpack(self, folder: Path) -> Path:
        """Its files, in ``folder``, which is made. It is a PYTHONPATH."""
        packed = _git_bytes("archive", "--format=tar", self.commit)
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        return folder


def previous_release() -> Release:
    """Skips the test where the history is not here: no repository, or a shallow clone."""
    program("git")
    if not (ROOT / ".git").exists():
        pytest.skip("the history is needed, and this is no repository")
    if _git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("the history is needed, and this clone is shallow (git fetch --unshallow)")
    here = _git("rev-parse", "HEAD")
    for match in _HEADING.finditer((ROOT / "CHANGELOG.rst").read_text("utf-8")):
        heading = match[0].partition("\n")[0]
        commits = _git("log", "--reverse", "--format=%H", f"-S{heading}", "--", "CHANGELOG.rst").split()
        # A release that is being made has its section, and no commit yet or this one.
        if commits and commits[0] != here:
            return Release(match[1], commits[0])
    pytest.skip("nothing has been released before")


def _git(*arguments: str) -> str:
    return _git_bytes(*arguments).decode().strip()


def _git_bytes(*arguments: str) -> bytes:
    # The owner of a checkout in a container is often somebody else.
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
