"""Prints the folder in memory that ``make test`` uses for temporary files, or nothing if there is none with room.

Tests make and drop 1,500 databases of 300 files each, which takes a third of the CPU and of the time there that it
takes on a disk.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from project_service.embedded.postgres import let_pass
from project_service.embedded.supervised import Account, ChildFailed

SHARED = Path("/dev/shm")
# What a run leaves until its end, twice.
ROOM_BYTES = 8 * 1024**3


def usable(folder: Path) -> bool:
    """Whether there is room in ``folder``, programs may be run from it, and PostgreSQL's own user can be let in."""
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if available is None or min(int(available[1]) * 1024, shutil.disk_usage(folder).free) < ROOM_BYTES:
        return False
    if os.geteuid() != 0:
        return True
    with TemporaryDirectory(dir=folder) as made:
        try:
            let_pass(Path(made), Account("nobody", 65534, 65534))
        except ChildFailed:
            return False  # it has no access control lists
    return True


if __name__ == "__main__" and usable(SHARED):
    sys.stdout.write(f"{SHARED}\n")
