"""The table API put together from its parts, for ``application.py``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from attrs import asdict, frozen
from psycopg2 import extensions
from twisted.application.service import IService
from twisted.internet.defer import DeferredSemaphore
from twisted.internet.threads import deferToThreadPool

from project_service.database.acting import Actor, opening_of_shared
from project_service.database.connecting import Connector, milliseconds
from project_service.database.connection import Connection
from project_service.database.errors import outage_of
from project_service.database.listener import Listener
from project_service.database.pipeline import Step
from project_service.database.pool import Pool
from project_service.dsn import read_dsn
from project_service.http.caller import TokenVerifier
from project_service.http.routing import Router
from project_service.lifecycle import Every, InThread, shield
from project_service.settings.model import Settings
from project_service.tables import errors
from project_service.tables.access import identities_of
from project_service.tables.api import Root, TableRoutes, TableService
from project_service.tables.planner import Planner
from project_service.tables.reply.hints import Hints
from project_service.tables.run.execution import Executor
from project_service.tables.run.stream import Pace, Streams
from project_service.tables.run.transaction_settings import session_of_shared
from project_service.tables.schema_cache.holder import CHANNEL as SYNC_CHANNEL
from project_service.tables.schema_cache.holder import (
    LOOK_SECONDS,
    CacheHolder,
    CatalogWatch,
    Echo,
    Freshness,
    loader,
)
from project_service.tables.values import TablesConfig

CHANNEL = "pgrst"
# The oids of text, json, jsonb, xml and the character types: they arrive as bytes and are sent on as bytes.
_RAW_TYPES = (25, 114, 142, 3802, 1042, 1043, 18, 19)
AS_BYTES = extensions.new_type(_RAW_TYPES, "PGRST_BYTES", extensions.BYTES)
T = TypeVar("T")


@frozen
class Tables:
    """The part. ``pools`` are to be closed when everything has stopped.

    ``holders`` are the schema caches by stage and database; ``listeners`` hear of changes, and ``watches`` look for
    those that nobody announces.
    """

    routes: TableRoutes
    listeners: tuple[Listener, ...]
    watches: tuple[Every, ...]
    pools: tuple[Pool, ...]
    holders: Mapping[tuple[str, str], CacheHolder]

    @property
    def services(self) -> tuple[IService, ...]:
        """What has to be started, in this order."""
        return (*self.holders.values(), *self.listeners, *self.watches)

    def mount(self, router: Router) -> None:
        self.routes.mount(router)

    @property
    def ready(self) -> bool:
        """Whether every database's schema cache has been read."""
        return all(holder.cache is not None for holder in self.holders.values())

    def read_again(self) -> None:
        """Read every schema cache again, for changes that were not announced."""
        for holder in self.holders.values():
            holder.announce()


def assemble(
    reactor: Any, settings: Settings, verifier: TokenVerifier | None, now: Callable[[], float]
) -> Tables:
    """The table API of ``settings``, with a pool, a schema cache and a listener for each configured database.

    ``verifier`` checks the service's own access tokens. Start the ``services`` of the result, and close its ``pools``
    at the end. Raises ``ValueError`` for keys or a path to the role that cannot be used.
    """
    timeout = milliseconds(settings.database.statement_timeout_seconds)
    in_thread = one_at_a_time(reactor)
    services: dict[tuple[str, str], TableService] = {}
    listeners: list[Listener] = []
    watches: list[Every] = []
    pools: list[Pool] = []
    for stage, name, database in settings.stage_databases():
        where = f"stages.{stage}.databases.{name}"
        config = TablesConfig(**asdict(database, recurse=False), statement_timeout=timeout)
        try:
            identities = identities_of(config, verifier, now)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        dsn = config.dsn or settings.database.dsn
        assert dsn is not None
        connector = Connector(reactor, read_dsn(dsn.reveal()), settings.database.statement_timeout_seconds)
        opening = opening_of_shared(session_of_shared(config))
        pool = _pool(reactor, settings, connector, config.pool_size, opening)
        # Streamed replies may use at most half of the pool's connections. Of a pool of one they would use none or
        # all, so they get a pool of their own then, with one connection that is made when it is needed.
        for_streams = pool if pool.size > 1 else _pool(reactor, settings, connector, 1)
        holder, echo = CacheHolder(loader(reactor, pool, config), reactor), Echo(pool, reactor)
        acting = partial(Actor, trust=holder.trust, changes_role=config.pre_request is not None)
        streams = Streams(
            config,
            acting(for_streams),
            DeferredSemaphore(max(1, pool.size // 2)),
            reactor,
            settings.database.acquire_timeout_seconds,
            Pace(settings.server.idle_timeout_seconds, config.stream_min_bytes_per_second),
        )
        services[stage, name] = TableService(
            config,
            holder,
            identities,
            Planner(config),
            Freshness(holder, pool, echo),
            Executor(config, acting(pool)),
            Root(config, in_thread),
            streams,
            Hints(config, pool),
            in_thread,
        )
        listener = Listener(connector, reactor, where)
        listener.subscribe(CHANNEL, holder.notified, holder.reload)
        listener.subscribe(SYNC_CHANNEL, echo.heard, echo.listening)
        look = CatalogWatch(holder, listener.query, config.prepare).look
        watches.append(Every(LOOK_SECONDS, look, reactor, f"watching the catalog of {where}", outage_of))
        listeners.append(listener)
        pools.extend(dict.fromkeys((pool, for_streams)))
    holders = {key: service.holder for key, service in services.items()}
    return Tables(TableRoutes(services), tuple(listeners), tuple(watches), tuple(pools), holders)


def _pool(
    reactor: Any,
    settings: Settings,
    connector: Connector,
    size: int,
    opening: Sequence[Step] = (),
) -> Pool:
    wait = settings.database.acquire_timeout_seconds
    late, away = errors.pool_timeout, errors.database_away
    return Pool(raw(connector), size, wait, reactor, late=late, away=away, setup=opening)


def raw(connector: Connector) -> Callable[[], Awaitable[Connection]]:
    """A function that connects as ``connector`` does. Its connections return texts and JSON as the bytes that
    PostgreSQL sent."""

    async def connect() -> Connection:
        connection = await connector()
        extensions.register_type(AS_BYTES, connection.raw)
        return connection

    return connect


def one_at_a_time(reactor: Any) -> InThread:
    """A function that runs others in a thread, one after the other: Python runs one thread at a time, so a second one
    would only take turns away from the reactor.

    A function that has begun cannot be stopped, so a caller who leaves in the meantime makes no room for another.
    """
    free = DeferredSemaphore(1)

    async def run(function: Callable[[], T]) -> T:
        try:
            return await deferToThreadPool(reactor, reactor.getThreadPool(), function)
        finally:
            free.release()

    async def in_thread(function: Callable[[], T]) -> T:
        await free.acquire()
        return await shield(run(function))

    return in_thread
