"""The temporary folder in which the workers of one service keep their metrics for each other.

Every process that uses the folder holds a shared lock on it. The kernel drops the lock however the process ends, so a
folder without a lock was left behind by a service that was killed, and may be removed. A process id in the folder's
name would not do: another container may share the temporary folder and count its processes on its own.
systemd-tmpfiles, too, leaves a locked folder alone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp

from attrs import frozen
from twisted.logger import Logger

log = Logger()

# Versions that took no lock used another prefix, so that their folders are never taken for abandoned ones.
PREFIX = "project-service-numbers-"


@frozen
class MetricsFolder:
    path: str
    _lock: int

    @classmethod
    def made(cls) -> MetricsFolder:
        """A new folder, held by this process. Abandoned ones are removed first."""
        remove_forsaken()
        while True:
            path = mkdtemp(prefix=PREFIX)
            lock = hold(path)
            if lock is not None:
                return cls(path, lock)

    @property
    def there(self) -> bool:
        """Whether the folder still exists. False once somebody who ignores locks has removed it, even if there is
        another folder of that name now."""
        try:
            return os.path.samestat(Path(self.path).lstat(), os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Remove the folder and give up the lock."""
        if self.there:
            rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def hold(path: str) -> int | None:
    """Lock the folder so that no other service removes it while this process lives; the lock's descriptor.

    None where another service removed it just before.
    """
    with suppress(FileNotFoundError):
        lock = _opened(path)
        with suppress(OSError):  # a file system without locks: ``remove_forsaken`` does nothing there
            fcntl.flock(lock, fcntl.LOCK_SH)
        if Path(path).exists():
            return lock
        os.close(lock)
    return None


def remove_forsaken() -> None:
    """Remove those folders of this user that no process holds a lock on."""
    for path in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), _closing(_opened(path)) as folder:
            if os.fstat(folder).st_uid == os.geteuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rmtree(path)
                log.info("removed {path}, which a service that was killed had left behind", path=str(path))


def _opened(path: str | Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
