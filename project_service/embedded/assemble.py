"""Embedded mode as one part that starts and stops."""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from attrs import field, frozen
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from project_service import files
from project_service.embedded.postgres import Cluster
from project_service.embedded.seaweed import ObjectStore
from project_service.embedded.sockets import NAME as SECRETS
from project_service.embedded.sockets import Secrets, load_or_make
from project_service.embedded.supervised import ChildFailed, Supervised
from project_service.lifecycle import all_of
from project_service.settings.model import Secret, Store

# The lock that lets only one service work on a data directory.


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


log = Logger()

# The file in which a service notes how to reach its children, for commands that run beside it.
RUNNING = "running.json"
BUCKET = "project-service"


@frozen
class Running:
    """How to reach the children; None for what was not asked for.

    ``admin_dsn`` is the PostgreSQL superuser's; ``store`` has endpoint, region, bucket and keys.
    """

    dsn: str | None = field(repr=False)
    admin_dsn: str | None = field(repr=False)
    store: Store | None


class Embedded:
    """PostgreSQL and SeaweedFS below ``data_dir``, or one of them.

    ``start`` returns when both have passed a test of real work. It raises ``InUse`` if another service works on the
    directory, and ``ChildFailed`` (with the program's last output) or ``ValueError`` if one of them cannot be
    started; then nothing is left running. ``say`` is called with a line about each step that takes time. ``stop`` may
    be called at any moment, also during ``start``.

    With ``shared`` other processes can find out by ``running_beside`` how to reach the children. Leave it out if they
    are to be stopped without waiting for others.
    """

    def __init__(
        self,
        reactor: Any,
        data_dir: Path,
        *,
        database: bool = True,
        store: bool = True,
        bucket: str = BUCKET,
        shared: bool = True,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._reactor = reactor
        # Resolved, because left-over processes are recognised by the directory they work in, whatever link it was
        # given by.
        self.data_dir = data_dir.resolve()
        self._wanted = (database, store)
        self._bucket = bucket
        self._shared = shared
        self._say = say
        self._lock = DirectoryLock(self.data_dir)
        self._database: Supervised | None = None
        self._store: Supervised | None = None
        self._release: Callable[[], None] = lambda: None
        self._running_file = self.data_dir / "run" / RUNNING

    @property
    def pids(self) -> dict[str, int]:
        """The pids of the children that are alive, by name: ``postgres``, ``weed``."""
        return {name: one.pid for name, one in self._children() if one.pid is not None}

    @property
    def ready_pids(self) -> dict[str, int]:
        """The same for the children that are ready; one that has just been started again is not yet."""
        return {name: one.pid for name, one in self._children() if one.is_ready and one.pid is not None}

    def _children(self) -> list[tuple[str, Supervised]]:
        found = (("postgres", self._database), ("weed", self._store))
        return [(name, one) for name, one in found if one is not None]

    async def start(self) -> Running:
        if not self.data_dir.exists():
            self.data_dir.mkdir(mode=0o700, parents=True)
            _let_through(self.data_dir)
        self._lock.take()
        try:
            self._refuse_anothers()
            # The note of a service that was killed is out of date.
            self._running_file.unlink(missing_ok=True)
            return await self._start()
        except BaseException:
            await self.stop()
            raise

    def _refuse_anothers(self) -> None:
        """Refuse the data of another user. Root could work on it, but would leave files that its owner cannot use."""
        made = self.data_dir / SECRETS
        owner = made.stat().st_uid if made.exists() else os.geteuid()
        if owner != os.geteuid():
            raise ChildFailed(
                f"{self.data_dir} is the data of the user {_name_of(owner)}: run this as that user"
            )

    async def _start(self) -> Running:
        run = self.data_dir / "run"
        run.mkdir(mode=0o700, exist_ok=True)
        _let_through(run)
        made = load_or_make(self.data_dir, lambda: secrets.token_urlsafe(24))
        starting: list[Coroutine[Deferred[Any], Any, None]] = []
        cluster, store = self._parts(made)
        if cluster is not None:
            self._say("Starting PostgreSQL")
            self._database = Supervised(self._reactor, cluster.program)
            starting.append(self._database.start())
        if store is not None:
            self._say("Starting the object store (SeaweedFS)")
            self._store = Supervised(self._reactor, store.program)
            self._release = store.release
            starting.append(self._store.start())
        await all_of(starting)
        running = Running(
            cluster.dsn if cluster else None,
            cluster.admin_dsn if cluster else None,
            store.settings() if store else None,
        )
        if self._shared:
            files.write_json(self._running_file, _noted(running))
        return running

    def _parts(self, made: Secrets) -> tuple[Cluster | None, ObjectStore | None]:
        database, store = self._wanted
        return (
            Cluster(self._reactor, self.data_dir, made, self._say) if database else None,
            ObjectStore(self._reactor, self.data_dir, made, self._bucket) if store else None,
        )

    async def stop(self) -> None:
        """Stop both children cleanly. Afterwards the directory is free for others."""
        if self._lock.held:
            self._forget()
        await all_of([one.stop() for one in (self._database, self._store) if one is not None])
        self._release()
        self._lock.release()

    def _forget(self) -> None:
        """Remove the note, if possible. On a read-only or full file system it is not, but the children have to be
        stopped all the same, and the next start does not trust the note."""
        try:
            self._running_file.unlink(missing_ok=True)
        except OSError as fault:
            log.warn("{path} cannot be removed: {why}", path=str(self._running_file), why=fault.strerror)


def _let_through(directory: Path) -> None:
    """If we are root, let others pass through the directory, for PostgreSQL's own user, but not list it; whatever the
    umask."""
    if os.geteuid() == 0:
        directory.chmod(0o711)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def running_beside(data_dir: Path) -> Running | None:
    """How to reach the children of the service that runs on ``data_dir``; None if it has not noted it yet.

    Try the lock first: the note is only valid while the lock is held.
    """
    value = files.read_json(data_dir.absolute() / "run" / RUNNING)
    if value is None:
        return None
    store = value["store"]
    if store is not None:
        store = Store(**{**store, "secret_access_key": Secret(store["secret_access_key"])})
    return Running(value["dsn"], value["admin_dsn"], store)


def _noted(running: Running) -> dict[str, Any]:
    store = running.store
    if store is None:
        return {"dsn": running.dsn, "admin_dsn": running.admin_dsn, "store": None}
    assert store.secret_access_key is not None
    access = {
        "endpoint_url": store.endpoint_url,
        "region": store.region,
        "bucket": store.bucket,
        "access_key_id": store.access_key_id,
        "secret_access_key": store.secret_access_key.reveal(),
    }
    return {"dsn": running.dsn, "admin_dsn": running.admin_dsn, "store": access}
