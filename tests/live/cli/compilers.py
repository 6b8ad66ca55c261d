"""TypeScript's compiler and mypy in their strict modes, for what ``project-service types`` writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.live.npm import install

_TSC = ("npx", "tsc", "--noEmit", "--strict", "--target", "es2022", "--module", "nodenext")


def install_typescript(folder: Path) -> None:
    install(folder, "@supabase/postgrest-js@2", "typescript@5")


def tsc(folder: Path, file: str) -> str:
    """What the compiler finds wrong with ``file``."""
    return _run(*_TSC, file, cwd=folder)


def mypy(folder: Path, *files: str) -> str:
    return _run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, *files, cwd=folder)


def _run(*argv: str, cwd: Path) -> str:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=300, check=False).stdout
