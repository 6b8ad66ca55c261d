"""What embedded mode keeps for itself in the data directory: the lock that lets one service use it, the passwords
and keys of its servers, and the note by which commands reach the servers of a running service.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from attrs import asdict, field, frozen

from project_service import files
from project_service.settings.model import Secret, Store

SECRETS_FILE = "embedded.json"


class InUse(Exception):
    """Another service uses the data directory. The message names its process."""


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
        except OSError as fault:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if not isinstance(fault, BlockingIOError):
                raise
            raise InUse(
                f"another project-service (pid {holder or 'unknown'}) is running on {self._path.parent}; "
                "stop it or use another --data-dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@frozen
class Secrets:
    """Passwords and keys that embedded mode makes for itself. All of them are left out of ``repr``."""

    superuser_password: str = field(repr=False)
    owner_password: str = field(repr=False)
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    # Signs the requests between SeaweedFS' parts, so that their ports refuse the machine's other users.
    store_signing_key: str = field(repr=False)


def load_or_make_secrets(data_dir: Path) -> Secrets:
    """The secrets of the data directory, which are made at its first use.

    Raises ``ValueError`` if the file is damaged, or missing although there is a database.
    """
    path = data_dir / SECRETS_FILE
    value = files.read_json(path)
    if value is None:
        if (data_dir / "postgres" / "PG_VERSION").exists():
            raise ValueError(
                f"{path} is gone, and with it the passwords of the database beside it; restore it"
            )
        made = Secrets(*(secrets.token_urlsafe(24) for _ in range(5)))
        files.write_json(path, asdict(made))
        return made
    try:
        return Secrets(**value)
    except TypeError:
        raise ValueError(f"{path} is not what project-service wrote; restore it") from None


@frozen
class Running:
    """How to reach the servers; None for one that is not embedded.

    ``admin_dsn`` is the PostgreSQL superuser's; ``store`` has endpoint, region, bucket and keys.
    """

    dsn: str | None = field(repr=False)
    admin_dsn: str | None = field(repr=False)
    store: Store | None


def note_file(data_dir: Path) -> Path:
    return data_dir / "run" / "running.json"


def write_note(data_dir: Path, running: Running) -> None:
    store = running.store
    access = None
    if store is not None:
        assert store.secret_access_key is not None
        access = {
            name: getattr(store, name) for name in ("endpoint_url", "region", "bucket", "access_key_id")
        }
        access["secret_access_key"] = store.secret_access_key.reveal()
    files.write_json(
        note_file(data_dir), {"dsn": running.dsn, "admin_dsn": running.admin_dsn, "store": access}
    )


def running_beside(data_dir: Path) -> Running | None:
    """How to reach the servers of the service that runs on ``data_dir``; None if it has not noted it yet.

    Try the lock first: the note is only valid while the lock is held.
    """
    value = files.read_json(note_file(data_dir.absolute()))
    if value is None:
        return None
    store = value["store"]
    if store is not None:
        store = Store(**{**store, "secret_access_key": Secret(store["secret_access_key"])})
    return Running(value["dsn"], value["admin_dsn"], store)
