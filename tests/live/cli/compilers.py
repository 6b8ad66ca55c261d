"""TypeScript's compiler and mypy in their strict modes, for what ``project-service types`` writes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.live.npm import install

_TSC = ("npx", "tsc", "--noEmit", "--strict", "--target", "es2022", "--module", "nodenext")


def install_typescript(folder: Path) -> None:
    install(folder, "@supabase/postgrest-js@2", "typescript@5")


def tsc(folder: Path, *files: str) -> set[tuple[str, int]]:
    """The lines, as file and number, in which the compiler finds something wrong, in ``files`` and what they import.

    One run for several files: it takes three seconds of CPU to read the library.
    """
    found = _run(*_TSC, *files, cwd=folder)
    lines = re.findall(r"^(\S+?)\((\d+),\d+\): error", found, re.MULTILINE)
    assert bool(lines) == bool(found), found
    return {(file, int(line)) for file, line in lines}


def mypy(folder: Path, *files: str) -> str:
    # What mypy knows of the library is kept beside the folders of tests, for the next one.
    kept = str(folder.parent / "mypy-cache")
    return _run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", kept, *files, cwd=folder)


def _run(*argv: str, cwd: Path) -> str:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=300, check=False).stdout
