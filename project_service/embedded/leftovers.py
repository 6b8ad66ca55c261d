"""Removes what a killed service left behind: children that still run, and stale pid files.

A process is recognised by its pid, the moment it started and the directory it works on, so that another one that
later gets the same pid is left alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from attrs import frozen
from twisted.logger import Logger

from project_service import files
from project_service.lifecycle import all_of

log = Logger()

PROC = Path("/proc")
END_POLL_SECONDS = 0.05

# Signals to send one after the other, each followed by a wait of up to its number of seconds.
Stops = tuple[tuple[signal.Signals, float], ...]
Sleep = Callable[[float], Awaitable[None]]


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
        # Fields 3 and 22 of proc_pid_stat(5). The name before them, in brackets, may contain anything, even brackets.
        fields = stat.rpartition(")")[2].split()
        state, started = fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
    return None if state in "ZX" else Identity(pid, started, boot)


def alive(identity: Identity, proc: Path = PROC) -> bool:
    return identify(identity.pid, proc) == identity


def uses_directory(pid: int, directory: Path, proc: Path = PROC) -> bool:
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
    identities = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            matches = (entry / "exe").readlink() == program and (entry / "cwd").readlink() == directory
        except OSError:
            continue  # it has ended in the meantime, or is another user's
        identity = identify(int(entry.name)) if matches else None
        if identity is not None:
            identities.append(identity)
    return identities


def remembered(pid_file: Path) -> Identity | None:
    """The identity in a pid file; None if there is no file or it is not one of ours."""
    try:
        value = files.read_json(pid_file)
        return Identity(int(value["pid"]), int(value["started"]), str(value["boot"])) if value else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def postmaster_of(data: Path) -> Identity | None:
    """The process that PostgreSQL's own ``postmaster.pid`` in ``data`` names."""
    try:
        return identify(_first_line(data / "postmaster.pid"))
    except (OSError, ValueError):
        return None


async def stop_leftover(identity: Identity | None, directory: Path, stops: Stops, sleep: Sleep) -> None:
    """Stop this process, if there still is one and it works on ``directory``.

    Returns when the process is gone; raises ``RuntimeError`` if it does not end.
    """
    if identity is not None and alive(identity) and uses_directory(identity.pid, directory):
        log.info(
            "stopping what a killed service left: pid {pid} on {where}",
            pid=identity.pid,
            where=str(directory),
        )
        await _stop(identity, stops, sleep)


async def stop_orphans(program: Path, data: Path, stops: Stops, sleep: Sleep) -> None:
    """Stop the processes that a killed PostgreSQL server left behind. Call it when that server is gone.

    They would end by themselves as soon as they are done with what they are doing. But until then they hold the
    shared memory, and a new server would refuse to start. One that was stopped (SIGSTOP) takes seconds; so they are
    stopped side by side.
    """
    orphans = processes_of(program, data)
    if orphans:
        log.info(
            "stopping {count} processes that a killed PostgreSQL left on {data}",
            count=len(orphans),
            data=str(data),
        )
    await all_of(_stop(identity, stops, sleep) for identity in orphans)


async def _stop(identity: Identity, stops: Stops, sleep: Sleep) -> None:
    for number, seconds in stops:
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, number)
        for _ in range(max(1, int(seconds / END_POLL_SECONDS))):
            if not alive(identity):
                return
            await sleep(END_POLL_SECONDS)
    if alive(identity):
        raise RuntimeError(f"process {identity.pid} does not end, not even by SIGKILL")


def drop_stale_lock_files(lock_files: tuple[Path, ...], directory: Path) -> None:
    """Remove PostgreSQL's own lock files if their pid now belongs to a process that does not work on ``directory``.

    PostgreSQL takes any living process with that pid for another server and refuses to start. After a crash in a
    container this is likely, because pids there are small and soon used again. The pid may also still be that of the
    server that was killed, if nobody reaps it. A lock file whose process is gone PostgreSQL removes itself.
    """
    for file in lock_files:
        try:
            pid = _first_line(file)
        except (OSError, ValueError):
            continue
        if (PROC / str(pid)).exists() and not uses_directory(pid, directory):
            log.info("removing the stale lock file {file}", file=str(file))
            file.unlink(missing_ok=True)


def _first_line(file: Path) -> int:
    return int(file.read_text().split("\n", 1)[0])
