"""One invocation of a command: its options, the project that it works on, its output and its exit code.

A command is an ``async def`` with ``@on_project()`` directly above it, which gives it ``--config``, ``--data-dir``
and ``--json``, and passes an ``Invocation`` and a ``Project`` as the first arguments. It prints with
``Invocation.show``, and fails by raising an exception: ``Failed("why")``, ``ApiError`` and what database and store
raise end with exit code 1; ``click.UsageError`` and a configuration that cannot be used, with 2. One that needs no
project, or has to look at its arguments before it is opened, has ``@common_options`` instead, and may call
``Invocation.run``.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import orjson
import psycopg2
from attrs import define, evolve, field, frozen
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater, react

from project_service.cli import project_named, project_options
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
from project_service.settings.reading import BadSettings, Launch, Resource, Source
from project_service.storage.s3.errors import EXPLANATIONS, StoreError, StoreUnreachable

if TYPE_CHECKING:
    # Imported where they are used: a command that needs no store, such as ``sql``, starts in half the time.
    from project_service.storage.assemble import Storage
    from project_service.storage.s3.client import S3Store

T = TypeVar("T")

FAILED = 1
USAGE = 2

# How long to wait for a service that is starting to note how its database is reached, or for other commands to end.
TURN_SECONDS = 30.0
POLL_SECONDS = 0.1


class Failed(Exception):
    """The command could not do what it was asked for. The message says why."""


@frozen
class Project:
    """What a command works on. ``pool`` and ``store`` are there only if ``open_project`` has opened them.
    ``started_here`` says that the embedded servers were started for this command, and stop with it.
    """

    reactor: Any
    settings: Settings
    started_here: bool
    _admin_dsn: str | None = field(repr=False)
    _pool: Pool | None
    _store: S3Store | None

    @property
    def pool(self) -> Pool:
        assert self._pool is not None
        return self._pool

    @property
    def store(self) -> S3Store:
        assert self._store is not None, "run(…, store=True)"
        return self._store

    @property
    def storage(self) -> Storage:
        """Storage, made of ``pool`` and ``store``."""
        from project_service.storage.assemble import build, sql_rows

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
        settings = self.settings if dsn is None else self.settings.with_database(dsn.reveal())
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

    def stage_database(self, stage: str, name: str) -> StageDatabase:
        """The database ``name`` of ``stage``. Raises ``Failed`` if the configuration has none."""
        try:
            return self.settings.stages[stage].databases[name]
        except KeyError:
            raise Failed(f"the configuration has no stage {stage} with a database {name}") from None


@asynccontextmanager
async def open_project(
    reactor: Any, launch: Launch, *, database: bool, store: bool
) -> AsyncIterator[Project]:
    """Open the database and the store: those in the configuration, or those in the data directory, which are the
    running service's or are started here.

    Raises ``ChildFailed`` if there is no project in the data directory yet, or its servers do not start.
    """
    settings, started_here, admin_dsn = launch.settings, False, None
    embeds_database, embeds_store = database and launch.embeds_database, store and launch.embeds_store
    async with AsyncExitStack() as stack:
        if launch.data_dir is not None and (embeds_database or embeds_store):
            if not (launch.data_dir / SECRETS_FILE).exists():
                raise ChildFailed(
                    f"there is no project in {launch.data_dir}; start the service once (`make run`, or "
                    "`twistd project-service`), or name another --data-dir or a --config"
                )
            embedded = Embedded(
                reactor,
                launch.data_dir,
                database=embeds_database,
                store=embeds_store,
                bucket=settings.store.bucket,
                shared=False,
            )
            stack.push_async_callback(embedded.stop)
            running, started_here = await _started_or_beside(reactor, embedded)
            if embeds_database:
                settings = settings.with_database(_embedded(running.dsn, "database"))
                admin_dsn = running.admin_dsn
            if embeds_store:
                settings = settings.with_store(_embedded(running.store, "store"))
        pool = client = None
        if database:
            pool = Pool(connector(reactor, settings), 2, 10.0, reactor)
            stack.push_async_callback(pool.close)
        if store:
            from project_service.storage.s3.client import connect_store

            client = connect_store(reactor, settings.store)
            stack.push_async_callback(client.close)
        yield Project(reactor, settings, started_here, admin_dsn, pool, client)


async def _started_or_beside(reactor: Any, embedded: Embedded) -> tuple[Running, bool]:
    """How to reach the embedded servers, and whether they were started here.

    Commands without a service take turns: each stops what it has started, so others cannot share it.
    """
    deadline = reactor.seconds() + TURN_SECONDS
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


def _embedded(address: T | None, what: str) -> T:
    if address is None:
        raise ChildFailed(
            f"the service that runs on the data directory has a {what} elsewhere; give its --config too"
        )
    return address


@define
class Listing:
    """A result of any length, printed while it is made: names of some kinds, each on a line after its kind, and a
    summary. With ``json`` it is one object, whose members are the lists of names by kind."""

    json: bool
    _begun: bool = field(default=False, init=False)

    async def show(self, kind: str, names: AsyncIterator[str]) -> int:
        """Print all of ``names``; returns how many there were."""
        count = 0
        if self.json:
            click.echo(f'{"," if self._begun else "{"}\n  "{kind}": [', nl=False)
        self._begun = True
        async for name in names:
            if self.json:
                click.echo(f"{',' if count else ''}\n    {orjson.dumps(name).decode()}", nl=False)
            else:
                click.echo(f"{kind:<9}{on_a_line(name)}")
            count += 1
        if self.json:
            click.echo("\n  ]" if count else "]", nl=False)
        return count

    def end(self, summary: str) -> None:
        """Nothing more comes. ``summary`` is a line for persons."""
        click.echo("\n}" if self.json else summary)


def on_a_line(name: str) -> str:
    """``name`` with control characters escaped, which may be meant for the terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in name)


@frozen
class Invocation:
    """The options that all commands have, as they were given."""

    config: Path | None
    data_dir: Path | None
    json: bool

    def source(self) -> Source:
        """Where the settings are. As for the service, --config alone has to name all servers. Raises
        ``BadSettings``."""
        return Source.named(os.environ, self.config, self.data_dir)

    def launch(self, *needed: Resource) -> Launch:
        """As the service's own, with the same settings. Ends the command with exit code 2 if they cannot be used for
        what is ``needed``."""
        try:
            source = self.source()
            return Launch(source.read(os.environ, needed), source)
        except BadSettings as fault:
            end(f"the configuration cannot be used\n{fault}", USAGE)

    def run(self, operation: Callable[[Project], Awaitable[None]], *, store: bool = False) -> None:
        """Run ``operation`` with the database open, and with the store if it needs that. Ends the command with exit
        code 1 if something fails, at once if the database is away: the pool would wait for it to come back."""
        launch = self.launch("database", "store") if store else self.launch("database")

        async def with_project(reactor: Any) -> None:
            async with open_project(reactor, launch, database=True, store=store) as project:
                (await project.connector()()).close()
                await operation(project)

        try:
            self.on_reactor(with_project)
        except EXPECTED as fault:
            end(explained(fault), FAILED)

    def on_reactor(self, operation: Callable[[Any], Awaitable[None]]) -> None:
        """Run the reactor until ``operation`` is done. Raises what it raises. SIGINT and SIGTERM cancel it, and end
        the command with exit code 1 as soon as all connections and servers are closed."""
        from twisted.internet import reactor

        done: Deferred[None] = Deferred()
        raised: BaseException | None = None
        interrupted = False

        async def run() -> None:
            nonlocal raised
            try:
                await operation(reactor)
            except BaseException as fault:
                raised = fault
            done.callback(None)

        def begin(react_on: Any) -> Deferred[None]:
            running = start(run())

            def cancel() -> Deferred[None]:
                nonlocal interrupted
                if not done.called:
                    interrupted = True
                    # A second signal ends the process at once.
                    for number in (signal.SIGINT, signal.SIGTERM):
                        signal.signal(number, signal.SIG_DFL)
                    running.cancel()
                return done

            # On a signal react() alone would end the process in the middle of the operation, with exit code 0.
            react_on.addSystemEventTrigger("before", "shutdown", cancel)
            return running

        try:
            react(begin, _reactor=reactor)
        except SystemExit as ended:
            if ended.code and raised is None:
                raise
        if raised is not None and interrupted:
            end("interrupted", FAILED)
        if raised is not None:
            raise raised

    def show(self, value: Any, *lines: str) -> None:
        """Print the result: ``value`` as JSON with ``--json``, otherwise ``lines``."""
        shown = [orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()] if self.json else lines
        try:
            for line in shown:
                click.echo(printable(line))
        except OSError as fault:
            # Nobody has seen the result, such as a new key.
            end(f"done, but the result cannot be written: {fault.strerror}", FAILED)


def common_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--config``, ``--data-dir`` and ``--json``, which are passed to it as an ``Invocation``."""

    @project_options
    @click.option("--json", "json_", is_flag=True, help="Print JSON.")
    @functools.wraps(function)
    def wrapped(**given: Any) -> None:
        config, data_dir = project_named(click.get_current_context())
        function(Invocation(config, data_dir, given.pop("json_")), **given)

    return wrapped


def on_project(*, store: bool = False) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """As ``common_options``, for a command that is run with the database open, and with the store if it needs that.
    The ``Project`` is passed to it after the ``Invocation``."""

    def decorated(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @common_options
        @functools.wraps(function)
        def command(invocation: Invocation, **given: Any) -> None:
            invocation.run(lambda project: function(invocation, project, **given), store=store)

        return command

    return decorated


def end(why: str, code: int) -> NoReturn:
    """Print why on standard error, and exit with ``code``."""
    click.echo(f"project-service: {why}", err=True)
    sys.exit(code)


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

# undefined_table, invalid_schema_name, undefined_function, undefined_column (PostgreSQL, Appendix A)
_NOT_MIGRATED = frozenset({"42P01", "3F000", "42883", "42703"})


def explained(fault: BaseException) -> str:
    """A sentence for a person about one of ``EXPECTED``, without addresses and credentials."""
    if isinstance(fault, ApiError):
        unsaid = {
            name: why for name, why in (fault.details or {}).items() if f"{name} {why}" not in fault.message
        }
        details = "".join(f"\n  {name}: {why}" for name, why in unsaid.items())
        return f"{fault.message}{details}"
    if isinstance(fault, DatabaseGone):
        return f"the database cannot be reached: {fault}"
    if isinstance(fault, StoreError):
        return f"the store refuses: {fault}"
    if isinstance(fault, StoreUnreachable):
        known = str(fault) in EXPLANATIONS
        return f"the store cannot be reached{f': {fault}' if known else ''}"
    if isinstance(fault, psycopg2.Error):
        primary = fault.diag.message_primary if fault.diag is not None else None
        hint = "; has it been migrated? (`project-service migrate`)" if fault.pgcode in _NOT_MIGRATED else ""
        return f"the database refuses: {primary or fault.pgcode or 'no reason given'}{hint}"
    return "an argument is not UTF-8" if isinstance(fault, UnicodeEncodeError) else str(fault)
