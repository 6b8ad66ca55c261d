"""The servers that a libpq connection string names.

libpq blocks while it resolves names, and tries several hosts on one socket after another; a reactor can watch
neither. So the service connects to each host by itself (see ``database.connecting``).
"""

from __future__ import annotations

import re
from typing import Any

from attrs import frozen
from psycopg2 import ProgrammingError
from psycopg2.extensions import parse_dsn

# Values of target_session_attrs that ask for a server which accepts writes.
_WRITABLE = frozenset({"read-write", "primary"})
# And those that do not.
_READABLE = frozenset({"any", "standby", "prefer-standby", "read-only"})
# libpq checks port and sslmode only when it connects, and then a mistake looks like a server that is away.
_PORT = re.compile(r"\s*[0-9]{1,5}\s*\Z")
_NOT_ENCODED = "has a user name or password in which @, / and : are not percent-encoded (%40, %2F, %3A)"
_SSL_MODES = frozenset({"disable", "allow", "prefer", "require", "verify-ca", "verify-full"})


@frozen
class Candidate:
    """One server: libpq parameters with a single host and port."""

    host: str | None
    params: dict[str, Any]

    @property
    def needs_resolving(self) -> bool:
        """Whether ``host`` is a name to be resolved: not the directory of a Unix socket, and without ``hostaddr``."""
        return (
            self.host is not None and not self.host.startswith(("/", "@")) and "hostaddr" not in self.params
        )

    @property
    def address(self) -> str:
        """user@host:port/database as far as the connection string says, for people to read. Without the password."""
        user, name = self.params.get("user"), self.params.get("dbname") or self.params.get("user")
        host = self.host or self.params.get("hostaddr") or "(local socket)"
        before, after = f"{user}@" if user else "", f"/{name}" if name else ""
        return f"{before}{host}:{self.params.get('port', 5432)}{after}"

    @property
    def server(self) -> str:
        """host:port as far as the connection string says, for people to read."""
        host = self.host or self.params.get("hostaddr") or "(local socket)"
        return f"{host}:{self.params.get('port', 5432)}"


@frozen
class Target:
    """The servers to try, in order. With ``writable`` only one that accepts writes is used."""

    candidates: tuple[Candidate, ...]
    writable: bool


def read_dsn(dsn: str, standbys: bool = False) -> Target:
    """The servers in ``dsn``; with ``standbys`` it is for reading only.

    Raises ``ValueError``, whose text never quotes the DSN, for what libpq would refuse, and for a DSN that asks for
    servers of the other kind."""
    try:
        params: dict[str, Any] = dict(parse_dsn(dsn))
    except ProgrammingError:
        raise ValueError(
            "is not a PostgreSQL connection string; in a URI, % and other special characters of a password are "
            "percent-encoded (%25)"
        ) from None
    is_uri = dsn.startswith(("postgresql://", "postgres://"))
    # libpq takes what follows the first @ or / for the host and the database.
    if is_uri and _is_password_rest(str(params.get("host", "")), str(params.get("dbname", ""))):
        raise ValueError(_NOT_ENCODED)
    wanted = params.pop("target_session_attrs", "any")
    if standbys and wanted not in _READABLE:
        raise ValueError("asks for a server that accepts writes (target_session_attrs)")
    if not standbys and wanted not in ("any", *_WRITABLE):
        raise ValueError("asks for a server that does not accept writes (target_session_attrs)")
    writable = wanted in _WRITABLE
    params.pop("load_balance_hosts", None)
    hosts = str(params.pop("host", "")).split(",")
    addresses = str(params.pop("hostaddr", "")).split(",")
    ports = str(params.pop("port", "")).split(",")
    count = max(len(hosts), len(addresses))
    if len(ports) not in (1, count) or len(hosts) not in (1, count):
        raise ValueError("names a different number of hosts and ports")
    # An empty text stands for PostgreSQL's default port.
    if not all(not port or (_PORT.match(port) and 1 <= int(port) <= 65535) for port in ports):
        raise ValueError(
            f"has a port that is not from 1 to 65535{', or ' + _NOT_ENCODED.removeprefix('has ') if is_uri else ''}"
        )
    if params.get("sslmode", "prefer") not in _SSL_MODES:
        raise ValueError(f"has an sslmode that is none of {', '.join(sorted(_SSL_MODES))}")
    candidates = []
    for n in range(count):
        host = hosts[n % len(hosts)]
        port = ports[n % len(ports)]
        own = {"host": host, "hostaddr": addresses[n] if n < len(addresses) else "", "port": port}
        candidates.append(
            Candidate(host or None, params | {name: text for name, text in own.items() if text})
        )
    return Target(tuple(candidates), writable)


def _is_password_rest(host: str, database: str) -> bool:
    return "@" in host[1:] or ("@" in database and "/" in database)
