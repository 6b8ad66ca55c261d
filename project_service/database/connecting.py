"""Makes connections: to one server and address after the other, each within its own time limit."""

from __future__ import annotations

import socket
from collections.abc import Callable
from math import ceil
from typing import Any

import psycopg2
from attrs import evolve, frozen
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.opening import Opening, session_settings
from project_service.dsn import Candidate, Target, read_dsn
from project_service.lifecycle import start, with_timeout
from project_service.settings.model import Settings

# The limit for each step with each server and address: resolving the name, connecting, making the settings.
CONNECT_TIMEOUT_SECONDS = 5.0
# How long after statement_timeout a server that does not answer is given up.
GUARD_MARGIN_SECONDS = 5.0
# How long a connection to a standby is used. After a failover the address may lead to another server, which an
# existing connection would not notice.
STANDBY_SECONDS = 5.0
# Has to be a parameter of the connection, because psycopg2 looks up how to quote strings only once, when it connects.
# If it is set afterwards, psycopg2 writes E'…' with single backslashes, and one before a quote would end the string
# early.
_PLAIN_STRINGS = "-c standard_conforming_strings=on"
# After half a minute of silence TCP asks whether the other side is still there, and gives it up half a minute later.
# By itself Linux asks after two hours. _SETTINGS have the server do the same, because it keeps the locks of a host
# that was switched off, and other hosts wait for these to migrate or to sweep.
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}

# With an empty search path only PostgreSQL's own functions are found without their schema. Otherwise, a role that
# may create functions in a schema of the search path could create some that fit our arguments better, and they would
# run with our rights (CVE-2018-1058).
_SETTINGS = {
    "search_path": "",
    "idle_in_transaction_session_timeout": "60s",
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
# Those of them that a pooler between us and the server does not keep for us.
_NOT_KEPT = ("search_path", "idle_in_transaction_session_timeout")
_SETUP = "select {own}, pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool"


@frozen
class Connector:
    """Connects to the first server of ``target`` that answers and can do what ``target`` asks for. A
    ``statement_timeout_seconds`` of 0 is no limit. Without ``renews`` connections to a standby are used as long as
    others: whoever reads from standbys on purpose knows by itself which server they lead to.

    ``pooled``: a pooler may give each transaction another session, so settings are made for each transaction. Without
    ``prepares`` it takes no prepared statements either."""

    reactor: Any
    target: Target
    statement_timeout_seconds: float
    timezone: str | None = None
    renews: bool = True
    pooled: bool = False
    prepares: bool = True
    new_connection: Callable[[Any], Connection] = Connection

    async def __call__(self) -> Connection:
        """Raises ``DatabaseGone`` if no server could be reached. Its text names the last one that was tried, as
        user@host:port/database, and contains no secret."""
        why = "no server"
        for candidate in self.target.candidates:
            try:
                return await self._connect_to(candidate)
            except (DatabaseGone, psycopg2.Error) as fault:
                why = f"{candidate.address}: {_reason(fault)}"
        raise DatabaseGone(why)

    async def _connect_to(self, candidate: Candidate) -> Connection:
        # Parameters of the connection, so that RESET ALL returns to them.
        ours = {"application_name": "project-service", "client_encoding": "UTF8", **_KEEPALIVES}
        params = {**ours, **candidate.params}
        if not candidate.needs_resolving:
            return await self._set_up(params)
        assert candidate.host is not None
        last: Exception = DatabaseGone("unknown host")
        for address in await self._limited(start(addresses_of(self.reactor, candidate.host))):
            try:
                return await self._set_up({**params, "hostaddr": address})
            except (DatabaseGone, psycopg2.Error) as fault:
                last = fault
        raise last

    async def _open(self, params: dict[str, Any]) -> Connection:
        connection = self.new_connection(self.reactor)
        try:
            await self._limited(start(connection.open(**params)))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _set_up(self, params: dict[str, Any]) -> Connection:
        connection = await self._open(params)
        if not _has_plain_strings(connection):
            connection.close()
            connection = await self._open_with_plain_strings(params)
        try:
            if not _has_plain_strings(connection):
                raise DatabaseGone("standard_conforming_strings is off")
            connection.answer_seconds = CONNECT_TIMEOUT_SECONDS
            timezone = {} if self.timezone is None else {"timezone": self.timezone}
            timeout = {"statement_timeout": milliseconds(self.statement_timeout_seconds)}
            if self.pooled:
                kept = {name: _SETTINGS[name] for name in _NOT_KEPT}
                connection.open_each(Opening.of({**kept, **timeout, **timezone}), self.prepares)
            else:
                connection.own = session_settings({**_SETTINGS, **timeout, **timezone})
            *_, standby, read_only = (await connection.query(_SETUP.format(own=connection.own)))[0]
            if self.target.writable and (standby or read_only):
                raise DatabaseGone("the server is read-only")
            if standby and self.renews:
                connection.expire_after(STANDBY_SECONDS)
            connection.remember_settings()
        except BaseException:
            connection.close()
            raise
        connection.answer_seconds = (
            self.statement_timeout_seconds + GUARD_MARGIN_SECONDS if self.statement_timeout_seconds else None
        )
        return connection

    async def _open_with_plain_strings(self, params: dict[str, Any]) -> Connection:
        options = f"{params.get('options') or ''} {_PLAIN_STRINGS}".strip()
        try:
            return await self._open({**params, "options": options})
        except psycopg2.Error as fault:
            if "unsupported startup parameter" not in str(fault):
                raise
            raise DatabaseGone(
                "standard_conforming_strings is off, and the pooler refuses the option that sets it on"
            ) from None

    def _limited(self, waiting: Deferred[Any]) -> Deferred[Any]:
        return with_timeout(self.reactor, CONNECT_TIMEOUT_SECONDS, waiting, lambda: DatabaseGone("timed out"))


def _has_plain_strings(connection: Connection) -> bool:
    """Whether psycopg2 takes standard_conforming_strings to be on, as it does if the server does not report it."""
    return bool(connection.raw.get_parameter_status("standard_conforming_strings") != "off")


def connector(
    reactor: Any, settings: Settings, new_connection: Callable[[Any], Connection] = Connection
) -> Connector:
    """Connections to the system database, each with a session of its own."""
    return Connector(
        reactor,
        read_dsn(settings.session_dsn().reveal()),
        settings.database.statement_timeout_seconds,
        timezone="UTC",
        new_connection=new_connection,
    )


def pooled_connector(
    reactor: Any, settings: Settings, new_connection: Callable[[Any], Connection] = Connection
) -> Connector:
    """Connections to the system database for transactions, whose sessions may be a pooler's."""
    database = settings.database
    assert database.dsn is not None
    return evolve(
        connector(reactor, settings, new_connection),
        target=read_dsn(database.dsn.reveal()),
        pooled=settings.is_pooled(),
        prepares=database.prepare,
    )


def milliseconds(seconds: float) -> str:
    """A time limit in PostgreSQL's notation. It is rounded up, because 0 would mean no limit."""
    return f"{ceil(seconds * 1000)}ms"


def _reason(fault: Exception) -> str:
    """Why a connection failed, in our words: libpq's are of any form and language, and may quote what was sent."""
    if isinstance(fault, DatabaseGone):
        return str(fault)
    text = str(fault)
    return next((reason for part, reason in _REASONS if part in text), "refused")


# libpq has no SQLSTATE for a refused connection, only a text. If it is not in English, the reason is unknown.
_REASONS = (
    ("password authentication failed", "the password was refused"),
    ("no password supplied", "a password is needed"),
    ("no pg_hba.conf entry", "the server does not let this client in"),
    ("too many clients", "too many connections"),
    ("connection slots", "too many connections"),
    ("too many connections", "too many connections"),
    ("starting up", "the server is starting"),
    ("shutting down", "the server is stopping"),
    ("recovery", "the server is recovering"),
    ("does not exist", "there is no such database or role"),
    ("certificate", "the certificate is not trusted"),
    ("SSL", "TLS failed"),
    ("No such file", "there is no such socket"),
    ("Connection refused", "no server listens there"),
)


async def addresses_of(reactor: Any, host: str) -> list[str]:
    """The addresses of ``host`` in the system's order; an empty list if there are none. A thread waits for them."""
    threads = reactor.getThreadPool()
    try:
        resolved = await deferToThreadPool(
            reactor, threads, socket.getaddrinfo, host, None, type=socket.SOCK_STREAM
        )
    except (
        OSError,
        UnicodeError,
    ):  # UnicodeError: not a DNS name, perhaps a label of more than 63 characters
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in resolved))
