"""The lock that lets only one service work on a data directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class InUse(Exception):
    """Another service works on the data directory. The message says which process."""


class DirectoryLock:
    """Once taken it is held until ``release`` or until the process ends; the kernel releases it even after
    SIGKILL."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def take(self) -> None:
        """Raises ``InUse`` if another process holds it, and ``OSError`` if the file system has no locks."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise InUse(
                f"another project-service (pid {holder or 'unknown'}) is running on {self._path.parent}; "
                "stop it or use another --data-dir"
            ) from None
        except OSError:
            # For instance a file system without locks.
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
