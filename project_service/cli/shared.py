"""What all commands share: options, output, and how they end."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import orjson
import psycopg2
from attrs import define, evolve, field, frozen
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater, react

from project_service.database.connecting import Connector, connector
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.migrate import MigrationRefused
from project_service.database.pool import Pool
from project_service.embedded.assemble import Embedded
from project_service.embedded.data_directory import SECRETS_FILE, InUse, Running, running_beside
from project_service.embedded.supervised import ChildFailed
from project_service.errors import ApiError
from project_service.files import printable
from project_service.lifecycle import start
from project_service.settings.model import Secret, Settings, StageDatabase
from project_service.settings.reading import BadSettings, Launch, Resource, Source, absolute_path
from project_service.storage.assemble import Storage, build, connect_store, sql_rows
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import (
    NO_NEXT_PAGE,
    NO_SIZE,
    NO_TLS,
    SAME_PAGE,
    UNREADABLE,
    UNTRUSTED,
    StoreError,
    StoreUnreachable,
)
from project_service.tap import DEFAULT_DATA_DIR

# Opens what a command works on, for as long as it runs.


T = TypeVar("T")

# How long to wait for a service that is starting to note how its database is reached, or for other commands to end.
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.1


@frozen
class Opened:
    """``pool`` and ``store`` can be used only if ``Invocation.run`` was asked for them. ``started_here`` says that
    the embedded parts were started for this command, and stop with it.
    """

    reactor: Any
    settings: Settings
    started_here: bool
    _admin_dsn: str | None = field(repr=False)
    _pool: Pool | None
    _store: S3Store | None

    @property
    def pool(self) -> Pool:
        assert self._pool is not None, "run(…, database=True)"
        return self._pool

    @property
    def store(self) -> S3Store:
        assert self._store is not None, "run(…, store=True)"
        return self._store

    @property
    def storage(self) -> Storage:
        """Storage, made of ``pool`` and ``store``."""
        return build(self.reactor, self.settings.storage, self.store, sql_rows(self.pool))

    @property
    def admin_dsn(self) -> Secret:
        """How the superuser reaches the system database. Raises ``ChildFailed`` if it is not embedded."""
        dsn = self.settings.database.dsn
        if self._admin_dsn is None or dsn is None:
            raise ChildFailed(
                "only a superuser can do this, and the service knows none of a database that is not embedded"
            )
        return Secret(make_dsn(self._admin_dsn, dbname=parse_dsn(dsn.reveal())["dbname"]))

    def connector(self, dsn: Secret | None = None) -> Connector:
        """Connects to the system database, or to the one that ``dsn`` names."""
        settings = self.settings
        if dsn is not None:
            settings = evolve(settings, database=evolve(settings.database, dsn=dsn))
        return connector(self.reactor, settings)

    @asynccontextmanager
    async def connection(
        self, dsn: Secret | None = None, *, unhurried: bool = False
    ) -> AsyncIterator[Connection]:
        """A connection apart from the pool. With ``unhurried`` there is no limit on the time of statements.

        If the command is interrupted, the statement under way is undone.
        """
        connect = self.connector(dsn)
        if unhurried:
            connect = evolve(connect, statement_timeout_seconds=0.0)
        with closing(await connect()) as connection:
            try:
                yield connection
            except CancelledError:
                connection.cancel_and_close()
                raise


@asynccontextmanager
async def opened(reactor: Any, launch: Launch, *, database: bool, store: bool) -> AsyncIterator[Opened]:
    """Open the database and the store: those in the configuration, or those in the data directory, which are the
    running service's or are started here.

    Raises ``ChildFailed`` if there is no data directory yet or its parts do not start.
    """
    async with _reached(reactor, launch, database, store) as (settings, started_here, admin_dsn):
        pool = Pool(connector(reactor, settings), 2, 10.0, reactor) if database else None
        client = connect_store(reactor, settings.store) if store else None
        try:
            yield Opened(reactor, settings, started_here, admin_dsn, pool, client)
        finally:
            if client is not None:
                await client.close()
            if pool is not None:
                await pool.close()


@asynccontextmanager
async def _reached(
    reactor: Any, launch: Launch, database: bool, store: bool
) -> AsyncIterator[tuple[Settings, bool, str | None]]:
    """The settings, with the addresses of embedded parts; whether those were started here; and the DSN of the
    embedded database's superuser."""
    wants = (database and launch.embeds_database, store and launch.embeds_store)
    if launch.data_dir is None or not any(wants):
        yield launch.settings, False, None
        return
    if not (launch.data_dir / SECRETS_FILE).exists():
        raise ChildFailed(
            f"there is no project in {launch.data_dir}; start the service once (`make run`, or "
            "`twistd project-service`), or name another --data-dir or a --config"
        )
    embedded = Embedded(
        reactor,
        launch.data_dir,
        database=wants[0],
        store=wants[1],
        bucket=launch.settings.store.bucket,
        shared=False,
    )
    try:
        running, started_here = await _started_or_beside(reactor, embedded)
        yield _with(launch.settings, running, *wants), started_here, running.admin_dsn if wants[0] else None
    finally:
        await embedded.stop()


async def _started_or_beside(reactor: Any, embedded: Embedded) -> tuple[Running, bool]:
    """How to reach the embedded parts, and whether they were started here.

    Commands without a service take turns: each stops what it has started, so others cannot share it.
    """
    deadline = reactor.seconds() + PATIENCE_SECONDS
    while True:
        try:
            return await embedded.start(), True
        except InUse:
            running = running_beside(embedded.data_dir)
            if running is not None:
                return running, False
            if reactor.seconds() > deadline:
                raise
        await deferLater(reactor, POLL_SECONDS)


def _with(settings: Settings, running: Running, database: bool, store: bool) -> Settings:
    if database:
        settings = settings.with_database(_embedded(running.dsn, "database"))
    if store:
        settings = settings.with_store(_embedded(running.store, "store"))
    return settings


def _embedded(found: T | None, what: str) -> T:
    if found is None:
        raise ChildFailed(
            f"the service that runs on the data directory has a {what} elsewhere; give its --config too"
        )
    return found


# Runs a command's work on the reactor, until it is done or interrupted.


class Interrupted(Exception):
    """SIGINT or SIGTERM came before the work was done. What it had opened has been closed."""


def run_on_reactor(work: Callable[[Any], Awaitable[None]]) -> None:
    """Run the reactor until ``work`` is done. Raises what it raised, or ``Interrupted``."""
    from twisted.internet import reactor

    running = _Running(work)
    try:
        react(running.begin, _reactor=reactor)
    except SystemExit as ended:
        if ended.code and running.raised is None:
            raise
    if running.raised is not None:
        raise Interrupted if running.interrupted else running.raised


@define
class _Running:
    work: Callable[[Any], Awaitable[None]]
    raised: BaseException | None = field(default=None, init=False)
    interrupted: bool = field(default=False, init=False)
    over: Deferred[None] = field(factory=Deferred, init=False)

    def begin(self, reactor: Any) -> Deferred[None]:
        working = start(self._kept(reactor))
        # On a signal react() alone would end the process in the middle of the work, with exit code 0.
        reactor.addSystemEventTrigger("before", "shutdown", self._leave, working)
        return working

    async def _kept(self, reactor: Any) -> None:
        try:
            await self.work(reactor)
        except BaseException as fault:
            self.raised = fault
        self.over.callback(None)

    def _leave(self, working: Deferred[None]) -> Deferred[None]:
        if not self.over.called:
            self.interrupted = True
            # A second signal ends the process at once.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            working.cancel()
        return self.over


USAGE = 2
FAILED = 1


class Failed(Exception):
    """The command could not do what it was asked for. The message says why."""


@frozen
class Invocation:
    """The options that all commands have, as they were given."""

    config: Path | None
    data_dir: Path | None
    json: bool

    @property
    def embeds_into(self) -> Path | None:
        """The data directory; None if the configuration has to name all servers. Raises ``BadSettings``."""
        if self.config is not None and self.data_dir is None:
            return None
        return absolute_path(self.data_dir or Path(DEFAULT_DATA_DIR))

    def launch(self, *needed: Resource) -> Launch:
        """As the service's own, with the same settings. Ends the command with exit code 2 if they cannot be used for
        the parts that are ``needed``."""
        try:
            source = self.source()
            return Launch(source.read(os.environ, needed), source)
        except BadSettings as fault:
            end(f"the configuration cannot be used\n{fault}", USAGE)

    def source(self) -> Source:
        """Where the settings are. Raises ``BadSettings``."""
        return Source(self.config, data_dir=self.embeds_into)

    def run(
        self, work: Callable[[Opened], Awaitable[None]], *, database: bool = True, store: bool = False
    ) -> None:
        """Run ``work`` with the database and the store open, as asked for. Ends the command with exit code 1 if
        something fails, at once if the database is away: the pool would wait for it to come back."""

        parts: dict[Resource, bool] = {"database": database, "store": store}
        launch = self.launch(*(part for part, wanted in parts.items() if wanted))

        async def opened_work(reactor: Any) -> None:
            async with opened(reactor, launch, database=database, store=store) as open_:
                if database:
                    (await open_.connector()()).close()
                await work(open_)

        try:
            self.on_reactor(opened_work)
        except EXPECTED as fault:
            end(explained(fault), FAILED)

    def on_reactor(self, work: Callable[[Any], Awaitable[None]]) -> None:
        """Run ``work`` with the reactor. Raises what it raises. If it is interrupted, the command ends with exit code
        1."""
        try:
            run_on_reactor(work)
        except Interrupted:
            end("interrupted", FAILED)

    def show(self, value: Any, *lines: str) -> None:
        """Print the result: ``value`` as JSON with ``--json``, otherwise ``lines``."""
        shown = [orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()] if self.json else lines
        try:
            for line in shown:
                click.echo(printable(line))
        except OSError as fault:
            # The work is done, but nobody has seen the result, such as a new key.
            end(f"done, but what came of it cannot be written: {fault.strerror}", FAILED)


def stage_database(settings: Settings, stage: str, name: str) -> StageDatabase:
    """The database ``name`` of ``stage``. Raises ``Failed`` if the configuration has none."""
    try:
        return settings.stages[stage].databases[name]
    except KeyError:
        raise Failed(f"the configuration has no stage {stage} with a database {name}") from None


EXPECTED = (
    Failed,
    ApiError,
    ChildFailed,
    InUse,
    MigrationRefused,
    DatabaseGone,
    StoreError,
    StoreUnreachable,
    psycopg2.Error,
    ValueError,
    OSError,
)

# undefined_table, invalid_schema_name, undefined_function (PostgreSQL, Appendix A)
_NOT_MIGRATED = frozenset({"42P01", "3F000", "42883"})


# What to say, by ``storage.s3.errors.kind_of``. Other kinds mean nothing to a person.
_STORE_AWAY = {
    "ConnectionRefusedError": "no server listens there",
    "DNSLookupError": "unknown host",
    "TimeoutError": "timed out",
    "TCPTimedOutError": "timed out",
    "ConnectionLost": "it hangs up",
    "ConnectionDone": "it hangs up",
    UNTRUSTED: "the certificate is not trusted, or has expired",
    "VerificationError": "the certificate is for another name",
    NO_TLS: "no TLS is spoken there",
    UNREADABLE: "its answer is none of S3",
    NO_SIZE: "it does not say how long an object is",
    NO_NEXT_PAGE: "its list does not say where it goes on",
    SAME_PAGE: "its list repeats a page",
}


def explained(fault: BaseException) -> str:
    """A text for a person about one of ``EXPECTED``, without addresses and credentials."""
    if isinstance(fault, ApiError):
        details = "".join(f"\n  {name}: {why}" for name, why in (fault.details or {}).items())
        return f"{fault.message}{details}"
    if isinstance(fault, DatabaseGone):
        return f"the database cannot be reached: {fault}"
    if isinstance(fault, StoreError):
        return f"the store refuses: {fault}"
    if isinstance(fault, StoreUnreachable):
        why = _STORE_AWAY.get(str(fault))
        return f"the store cannot be reached{f': {why}' if why else ''}"
    if isinstance(fault, psycopg2.Error):
        primary = fault.diag.message_primary if fault.diag is not None else None
        hint = "; has it been migrated? (`project-service migrate`)" if fault.pgcode in _NOT_MIGRATED else ""
        return f"the database refuses: {primary or fault.pgcode or 'no reason given'}{hint}"
    return "an argument is not UTF-8" if isinstance(fault, UnicodeEncodeError) else str(fault)


def end(why: str, code: int) -> NoReturn:
    """Print why on standard error, and exit with ``code``."""
    click.echo(f"project-service: {why}", err=True)
    sys.exit(code)


class Place(click.Path):
    """A path that is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            # Probably a shell variable that is not set. It must not mean the current directory.
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


def options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--config``, ``--data-dir`` and ``--json``, which are passed to it as an ``Invocation``."""

    @click.option("--config", type=Place(path_type=Path), help="TOML file with the settings.")
    @click.option("--data-dir", type=Place(path_type=Path), help="Where embedded parts keep their state.")
    @click.option("--json", "json_", is_flag=True, help="Print JSON, for programs.")
    @functools.wraps(function)
    def wrapped(**given: Any) -> None:
        shared = (given.pop("config"), given.pop("data_dir"), given.pop("json_"))
        function(Invocation(*shared), **given)

    return wrapped
