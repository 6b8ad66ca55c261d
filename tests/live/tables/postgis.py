"""A PostgreSQL with PostGIS, if the machine has one: the wheel does not have PostGIS, but Debian has a package."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DEBIAN = Path("/usr/lib/postgresql")
_USER = "postgres"


def programs() -> Path | None:
    """The folder with the programs of the newest server that has PostGIS; None if there is none."""
    result = []
    for version in _DEBIAN.iterdir() if _DEBIAN.is_dir() else ():
        control = Path("/usr/share/postgresql", version.name, "extension", "postgis.control")
        if control.exists() and (version / "bin" / "pg_ctl").exists():
            result.append((float(version.name), version / "bin"))
    return max(result)[1] if result else None


@contextmanager
def cluster(bin_: Path) -> Iterator[str]:
    """The DSN of a new server on a Unix socket, which runs for as long as the block."""
    # PostgreSQL does not run as root.
    user = _USER if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="postgis"))
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)

    def run(program: str, *arguments: str) -> None:
        command = [str(bin_ / program), "-D", str(folder / "cluster"), *arguments]
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, timeout=180)

    try:
        run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", options)
        try:
            yield f"host={folder} user=postgres dbname=postgres"
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate")
    finally:
        shutil.rmtree(folder)
