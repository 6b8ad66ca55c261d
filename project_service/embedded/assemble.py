"""Embedded mode as one part that starts and stops."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from project_service.embedded.data_directory import (
    SECRETS_FILE,
    DirectoryLock,
    Running,
    load_or_make_secrets,
    note_file,
    write_note,
)
from project_service.embedded.postgres import Cluster
from project_service.embedded.supervised import ChildFailed, Supervised
from project_service.lifecycle import all_of

if TYPE_CHECKING:
    from project_service.embedded.seaweed import ObjectStore

log = Logger()

BUCKET = "project-service"


class Embedded:
    """PostgreSQL and SeaweedFS below ``data_dir``, or one of them.

    ``start`` returns when both have passed a test of real work. It raises ``InUse`` if another service uses the
    directory, and ``ChildFailed`` (with the program's last output) or ``ValueError`` if one of them cannot be
    started; then nothing is left running. ``stop`` may be called at any moment, also during ``start``.

    ``progress`` is called with a line about each step that takes time. With ``shared`` other processes can find out
    by ``running_beside`` how to reach the servers. Leave it out if they are to be stopped without waiting for others.
    ``children`` has the servers by name, ``postgres`` and ``weed``, once they are being started.
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
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._reactor = reactor
        # Resolved, because left-over processes are recognised by the directory they work in, whatever link it was
        # given by.
        self.data_dir = data_dir.resolve()
        self.children: dict[str, Supervised] = {}
        self._with_database = database
        self._with_store = store
        self._bucket = bucket
        self._shared = shared
        self._progress = progress
        self._lock = DirectoryLock(self.data_dir)
        self._store: ObjectStore | None = None

    async def start(self) -> Running:
        if not self.data_dir.exists():
            self.data_dir.mkdir(mode=0o700, parents=True)
            _let_others_pass(self.data_dir)
        self._lock.take()
        try:
            self._refuse_another_users_data()
            # The note of a service that was killed is out of date.
            note_file(self.data_dir).unlink(missing_ok=True)
            return await self._start()
        except BaseException:
            await self.stop()
            raise

    def _refuse_another_users_data(self) -> None:
        """Raise if the data directory belongs to another user. Root could use it, but would leave files that the
        owner cannot read."""
        file = self.data_dir / SECRETS_FILE
        owner = file.stat().st_uid if file.exists() else os.geteuid()
        if owner != os.geteuid():
            try:
                name = pwd.getpwuid(owner).pw_name
            except KeyError:
                name = str(owner)
            raise ChildFailed(f"{self.data_dir} is the data of the user {name}: run this as that user")

    async def _start(self) -> Running:
        run = self.data_dir / "run"
        run.mkdir(mode=0o700, exist_ok=True)
        _let_others_pass(run)
        secrets = load_or_make_secrets(self.data_dir)
        cluster = store = None
        if self._with_database:
            cluster = Cluster(self._reactor, self.data_dir, secrets, self._progress)
        if self._with_store:
            # Not needed by most commands, and with the store's client a third of what they import.
            from project_service.embedded.seaweed import ObjectStore

            store = self._store = ObjectStore(self._reactor, self.data_dir, secrets, self._bucket)
        if cluster is not None:
            self._progress("Starting PostgreSQL")
            self.children["postgres"] = Supervised(self._reactor, cluster)
        if store is not None:
            self._progress("Starting the object store (SeaweedFS)")
            self.children["weed"] = Supervised(self._reactor, store)
        await all_of([child.start() for child in self.children.values()])
        running = Running(
            cluster.dsn if cluster else None,
            cluster.admin_dsn if cluster else None,
            store.settings() if store else None,
        )
        if self._shared:
            write_note(self.data_dir, running)
        return running

    async def stop(self) -> None:
        """Stop both servers cleanly. Afterwards the directory is free for others."""
        if self._lock.held:
            try:
                note_file(self.data_dir).unlink(missing_ok=True)
            except OSError as fault:
                # On a read-only or full file system. The servers have to be stopped all the same, and the next start
                # does not trust the note.
                path = str(note_file(self.data_dir))
                log.warn("{path} cannot be removed: {why}", path=path, why=fault.strerror)
        await all_of([child.stop() for child in self.children.values()])
        if self._store is not None:
            self._store.release_ports()
        self._lock.release()


def _let_others_pass(directory: Path) -> None:
    """If we are root, let others pass through the directory, for PostgreSQL's own user, but not list it; whatever the
    umask."""
    if os.geteuid() == 0:
        directory.chmod(0o711)
