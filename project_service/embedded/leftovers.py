"""Removes what a killed service left behind: children that still run, and stale pid files."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from twisted.logger import Logger

from project_service import private_file
from project_service.deferreds import all_of
from project_service.embedded.process_identity import PROC, Identity, alive, identify, processes_of, works_on

log = Logger()

# Signals to send one after the other, each followed by a wait of up to its number of seconds.
Stops = tuple[tuple[signal.Signals, float], ...]
Sleep = Callable[[float], Awaitable[None]]

POLL_SECONDS = 0.05


async def stop_leftover(pid_file: Path, directory: Path, stops: Stops, sleep: Sleep) -> None:
    """Stop the process that ``pid_file`` names, if it is still that process and works on ``directory``.

    Returns when the process is gone; raises ``RuntimeError`` if it does not end.
    """
    identity = remembered(pid_file)
    if identity is not None and alive(identity) and works_on(identity.pid, directory):
        log.info(
            "stopping what a killed service left: pid {pid} on {where}",
            pid=identity.pid,
            where=str(directory),
        )
        await _stop(identity, stops, sleep)
    pid_file.unlink(missing_ok=True)  # noqa: ASYNC240  # one system call on a local disk


async def _stop(identity: Identity, stops: Stops, sleep: Sleep) -> None:
    for number, seconds in stops:
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, number)
        for _ in range(max(1, int(seconds / POLL_SECONDS))):
            if not alive(identity):
                return
            await sleep(POLL_SECONDS)
    if alive(identity):
        raise RuntimeError(f"process {identity.pid} does not end, not even by SIGKILL")


def remembered(pid_file: Path) -> Identity | None:
    """The identity in a pid file; None if there is no file or it is not one of ours."""
    try:
        value = private_file.read_json(pid_file)
        return Identity(int(value["pid"]), int(value["started"]), str(value["boot"])) if value else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def drop_stale_pid_files(files: tuple[Path, ...], directory: Path) -> None:
    """Remove PostgreSQL's own lock files if their pid now belongs to a process that does not work on ``directory``.

    PostgreSQL takes any living process with that pid for another server and refuses to start. After a crash in a
    container this is likely, because pids there are small and soon used again. The pid may also still be that of the
    server that was killed, if nobody reaps it. A lock file whose process is gone PostgreSQL removes itself.
    """
    for file in files:
        try:
            pid = int(file.read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            continue
        if (PROC / str(pid)).exists() and not works_on(pid, directory):
            log.info("removing the stale lock file {file}", file=str(file))
            file.unlink(missing_ok=True)


async def stop_postmaster(data: Path, stops: Stops, sleep: Sleep) -> None:
    """Stop the server that PostgreSQL's own ``postmaster.pid`` in ``data`` names, if it works on ``data``. Otherwise
    as ``stop_leftover``."""
    try:
        identity = identify(int((data / "postmaster.pid").read_text().split("\n", 1)[0]))
    except (OSError, ValueError):
        return
    if identity is not None and works_on(identity.pid, data):
        log.info("stopping a PostgreSQL that still runs on {data}", data=str(data))
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
