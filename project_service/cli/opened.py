"""Opens what a command works on, for as long as it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any, TypeVar

from attrs import evolve, field, frozen
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet.defer import CancelledError
from twisted.internet.task import deferLater

from project_service.database.connect import Connector, connector
from project_service.database.pool import Pool
from project_service.database.session import Session
from project_service.embedded.assemble import Embedded, Running, running_beside
from project_service.embedded.command import ChildFailed
from project_service.embedded.lock import InUse
from project_service.embedded.secrets_file import NAME as SECRETS
from project_service.settings.launch import Launch, with_embedded_database, with_embedded_store
from project_service.settings.model import Secret, Settings
from project_service.storage.assemble import Storage, build, connect_store, sql_rows
from project_service.storage.s3.client import S3Store

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
    async def session(self, dsn: Secret | None = None, *, unhurried: bool = False) -> AsyncIterator[Session]:
        """A connection apart from the pool. With ``unhurried`` there is no limit on the time of statements.

        If the command is interrupted, the statement under way is undone.
        """
        connect = self.connector(dsn)
        if unhurried:
            connect = evolve(connect, statement_timeout_seconds=0.0)
        with closing(await connect()) as session:
            try:
                yield session
            except CancelledError:
                session.call_off()
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
    if not (launch.data_dir / SECRETS).exists():
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
        settings = with_embedded_database(settings, _embedded(running.dsn, "database"))
    if store:
        settings = with_embedded_store(settings, _embedded(running.store, "store"))
    return settings


def _embedded(found: T | None, what: str) -> T:
    if found is None:
        raise ChildFailed(
            f"the service that runs on the data directory has a {what} elsewhere; give its --config too"
        )
    return found
