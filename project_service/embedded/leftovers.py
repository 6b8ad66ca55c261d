"""What a service that was killed left behind: children that still run, and files that say so."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from twisted.logger import Logger

from project_service import private_file
from project_service.embedded.identity import Identity, alive, identify, processes_of, works_on

log = Logger()

POLL_SECONDS = 0.05


async def stop_leftover(
    pid_file: Path,
    directory: Path,
    signals: tuple[tuple[signal.Signals, float], ...],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Stop the process that ``pid_file`` remembers, if it is that process still and works on ``directory``.

    Each signal of ``signals`` gets its seconds; then the next. Returns when the process is gone.
    """
    identity = remembered(pid_file)
    if identity is not None and alive(identity) and works_on(identity.pid, directory):
        log.info(
            "stopping what a killed service left: pid {pid} on {where}",
            pid=identity.pid,
            where=str(directory),
        )
        await _stop(identity, signals, sleep)
    pid_file.unlink(missing_ok=True)  # noqa: ASYNC240  # one system call on a local disk


async def _stop(
    identity: Identity,
    signals: tuple[tuple[signal.Signals, float], ...],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    for number, seconds in signals:
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, number)
        for _ in range(max(1, int(seconds / POLL_SECONDS))):
            if not alive(identity):
                return
            await sleep(POLL_SECONDS)
    if alive(identity):
        raise RuntimeError(f"process {identity.pid} does not end, not even by SIGKILL")


def remembered(pid_file: Path) -> Identity | None:
    """The identity in a pid file; None where there is none or it cannot be read as one."""
    try:
        value = private_file.read_json(pid_file)
        return Identity(int(value["pid"]), int(value["started"]), str(value["boot"])) if value else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def drop_stale_pid_files(files: tuple[Path, ...], directory: Path) -> None:
    """Remove PostgreSQL's own lock files whose pid now belongs to a process that is none of ours.

    PostgreSQL takes any living process with that number for a rival and refuses to start, which is what happens
    after a crash in a container, where numbers are small and come again. A file whose process is gone it sorts
    out itself.
    """
    for file in files:
        try:
            pid = int(file.read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            continue
        if identify(pid) is not None and not works_on(pid, directory):
            log.info("removing the stale lock file {file}", file=str(file))
            file.unlink(missing_ok=True)


async def stop_postmaster(
    data: Path,
    signals: tuple[tuple[signal.Signals, float], ...],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Stop the server that PostgreSQL's own ``postmaster.pid`` in ``data`` names, if it works there."""
    try:
        identity = identify(int((data / "postmaster.pid").read_text().split("\n", 1)[0]))
    except (OSError, ValueError):
        return
    if identity is not None and works_on(identity.pid, data):
        log.info("stopping a PostgreSQL that still runs on {data}", data=str(data))
        await _stop(identity, signals, sleep)


async def stop_orphans(
    program: Path,
    data: Path,
    signals: tuple[tuple[signal.Signals, float], ...],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """End what a killed PostgreSQL server left of itself; to be called when that server is gone.

    Its processes end by themselves once they look up from their work. Until then they hold its shared memory, and
    the next server would refuse to start.
    """
    for identity in processes_of(program, data):
        await _stop(identity, signals, sleep)
