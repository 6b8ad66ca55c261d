"""The folder where the workers of one service keep their metrics for each other, and the end of what nobody has.

Who uses one holds a lock on it, which the kernel drops however a process ends. The name of a process would not do:
another container, with the same temporary folder, counts its processes by itself. systemd-tmpfiles leaves a folder
with a lock alone as well.
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

# Versions before this one took no lock on theirs, which had another name.
PREFIX = "project-service-numbers-"


@frozen
class MetricsFolder:
    path: str
    _lock: int

    @classmethod
    def made(cls) -> MetricsFolder:
        """A new one. What services that were killed have left behind is removed first."""
        remove_forsaken()
        while True:
            path = mkdtemp(prefix=PREFIX)
            lock = hold(path)
            if lock is not None:
                return cls(path, lock)

    @property
    def there(self) -> bool:
        """False once somebody has removed it, who looks at no lock, also where its name stands for another."""
        try:
            return os.path.samestat(Path(self.path).lstat(), os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        if self.there:
            rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def hold(path: str) -> int | None:
    """Keep others from removing the folder while this process lives; None where one has, just before."""
    with suppress(FileNotFoundError):
        lock = _opened(path)
        with suppress(OSError):  # a file system without locks: nobody can take it for forsaken
            fcntl.flock(lock, fcntl.LOCK_SH)
        if Path(path).exists():
            return lock
        os.close(lock)
    return None


def remove_forsaken() -> None:
    """Remove this user's folders that nobody holds."""
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
