"""The wheel and the source distribution of a commit. The same commit gives the same bytes, wherever and whenever it
is built with the versions that ``built-with.txt`` names."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

# What has a part in the bytes of the two files.
BUILDERS = ("build", "setuptools", "wheel")


class Unfit(Exception):
    """The release cannot be made; the text says why."""


def run(argv: list[str], where: Path, **environ: str) -> str:
    """What a command prints. Raises ``Unfit`` with its output if it fails."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", **environ}
    environ = {**inherited, **settings}
    # The modes of files that are made on the way get into a wheel.
    done = subprocess.run(
        argv, cwd=where, env=environ, capture_output=True, text=True, check=False, umask=0o022
    )
    if done.returncode != 0:
        raise Unfit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def built(repository: Path, commit: str, made_at: int, folder: Path) -> list[Path]:
    """The wheel and the source distribution of a commit, in ``folder``/dist. ``made_at`` is the time of all files in
    them, in seconds since 1970 (https://reproducible-builds.org/specs/source-date-epoch/)."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", commit], cwd=repository, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(sources, filter="data")
    target = folder / "dist"
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), "."]
    run(argv, sources, SOURCE_DATE_EPOCH=str(made_at), PYTHONHASHSEED="0")
    for archived in target.glob("*.tar.gz"):
        archived.write_bytes(normalised(archived.read_bytes(), made_at))
    return sorted(target.iterdir())


def normalised(archive: bytes, made_at: int) -> bytes:
    """A .tar.gz with the same files in the order of their names, without what differs from one machine to the next:
    times, owners, and the modes that a umask gives."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=made_at) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.pax_headers = made_at, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def digests(files: list[Path]) -> dict[str, str]:
    """SHA-256 in hexadecimal by the files' names."""
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def builders() -> str:
    """The lines of ``built-with.txt``: what ``pip install -r`` takes, after a line with Python's version."""
    python = ".".join(map(str, sys.version_info[:3]))
    return "".join([f"# Python {python}\n", *(f"{name}=={version(name)}\n" for name in BUILDERS)])
