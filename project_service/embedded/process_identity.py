"""The identity of a process, so that another process that later gets the same pid is left alone."""

from __future__ import annotations

import os
from pathlib import Path

from attrs import frozen

PROC = Path("/proc")


@frozen
class Identity:
    """A pid and what makes it unique: the clock tick at which it started, and the id of the boot that ticks are
    counted from."""

    pid: int
    started: int
    boot: str


def identify(pid: int, proc: Path = PROC) -> Identity | None:
    """The process that has this pid now; None if there is none, or only a zombie."""
    try:
        stat = (proc / str(pid) / "stat").read_text("utf-8", "replace")
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    parsed = _parse_stat(stat)
    if parsed is None or parsed[0] in "ZX":
        return None
    return Identity(pid, parsed[1], boot)


def alive(identity: Identity, proc: Path = PROC) -> bool:
    return identify(identity.pid, proc) == identity


def works_on(pid: int, directory: Path, proc: Path = PROC) -> bool:
    """Whether ``directory`` is among the process's arguments, or is its working directory."""
    home = proc / str(pid)
    try:
        arguments = (home / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    wanted = os.fsencode(directory)
    if any(one == wanted or one.endswith(b"=" + wanted) for one in arguments):
        return True
    try:
        return (home / "cwd").readlink() == directory
    except OSError:
        return False


def processes_of(program: Path, directory: Path) -> list[Identity]:
    """The processes of ``program`` whose working directory is ``directory``."""
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fits = (entry / "exe").readlink() == program and (entry / "cwd").readlink() == directory
        except OSError:
            continue  # it ended while we looked, or is none of ours
        identity = identify(int(entry.name)) if fits else None
        if identity is not None:
            found.append(identity)
    return found


def _parse_stat(stat: str) -> tuple[str, int] | None:
    """State and start time (fields 3 and 22 of proc_pid_stat(5)). The name before them, in brackets, may contain
    anything, even brackets."""
    fields = stat.rpartition(")")[2].split()
    try:
        return fields[0], int(fields[19])
    except (IndexError, ValueError):
        return None
