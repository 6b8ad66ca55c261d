"""The table API put together from its parts, for ``application.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from attrs import asdict, evolve, frozen
from psycopg2 import extensions
from twisted.application.service import IService
from twisted.internet.defer import DeferredSemaphore

from project_service.database.acting import Actor, opening_of_shared
from project_service.database.connecting import Connector, milliseconds
from project_service.database.connection import Connection
from project_service.database.errors import outage_of
from project_service.database.listener import Listener
from project_service.database.pipeline import Step
from project_service.database.pool import Pool
from project_service.database.readers import ACQUIRE_SECONDS, Connect, Readers, readers_of
from project_service.dsn import read_dsn
from project_service.http.caller import TokenVerifier
from project_service.http.routing import Router
from project_service.lifecycle import Every, InThread, run_in_thread, shield
from project_service.settings.model import Settings, StageDatabase
from project_service.tables import errors
from project_service.tables.access import identities_of
from project_service.tables.api import Access, Root, TableRoutes, TableService
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
    """The part. ``pools`` and ``readers`` are to be closed when everything has stopped.

    ``readers`` are the standbys of those databases that have some, by stage/name.

    ``holders`` are the schema caches by stage and database; ``listeners`` hear of changes, and ``watches`` look for
    those that nobody announces.
    """

    routes: TableRoutes
    listeners: tuple[Listener, ...]
    watches: tuple[Every, ...]
    pools: tuple[Pool, ...]
    holders: Mapping[tuple[str, str], CacheHolder]
    readers: Mapping[str, Readers[Access]]

    @property
    def pool_of(self) -> Mapping[tuple[str, str], Pool]:
        """Each database's own pool, by stage and name: for statements of the service."""
        return {key: service.freshness.pool for key, service in self.routes.services.items()}

    @property
    def services(self) -> tuple[IService, ...]:
        """What has to be started, in this order."""
        return (*self.holders.values(), *self.listeners, *self.watches, *self.readers.values())

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
    reactor: Any,
    settings: Settings,
    verifier: TokenVerifier | None,
    now: Callable[[], float],
    new_connection: Callable[..., Callable[[Any], Connection]] = lambda *database: Connection,
) -> Tables:
    """The table API of ``settings``, with a pool, a schema cache and a listener for each configured database.

    ``verifier`` checks the service's own access tokens. ``new_connection`` returns what makes connections to the
    database of a name such as dev/main, or to a "reader" of it. Start the ``services`` of the result, and close its
    ``pools`` at the end. Raises ``ValueError`` for keys or a path to the role that cannot be used.
    """
    in_thread = one_at_a_time(reactor)
    services: dict[tuple[str, str], TableService] = {}
    listeners: list[Listener] = []
    watches: list[Every] = []
    all_pools: list[Pool] = []
    readers: dict[str, Readers[Access]] = {}
    for stage, name, database in settings.stage_databases():
        where = f"stages.{stage}.databases.{name}"
        config = config_of(settings, database)
        try:
            identities = identities_of(config, verifier, now)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        connector, direct = connectors_of(reactor, settings, config, new_connection(f"{stage}/{name}"))
        wait = settings.database.acquire_timeout_seconds
        pools = _pools(reactor, config, connector, wait, connector.pooled)
        pool = pools[0]
        holder, echo = CacheHolder(loader(reactor, pool, config), reactor), Echo(pool, reactor)
        listener = Listener(direct, reactor, where)
        access = _access(reactor, settings, config, holder, pools)
        make = partial(_reader, reactor, settings, config, holder, pool)
        to_readers = new_connection(f"{stage}/{name}", "reader")
        reading = _reading(reactor, settings, database, where, access, listener, make, to_readers)
        services[stage, name] = TableService(
            config,
            holder,
            identities,
            Planner(config),
            Freshness(holder, pool, echo),
            access,
            Root(config, in_thread),
            Hints(config, pool),
            in_thread,
            reading,
        )
        if reading is not None:
            readers[f"{stage}/{name}"] = reading
        listener.subscribe(CHANNEL, holder.notified, holder.reload)
        listener.subscribe(SYNC_CHANNEL, echo.heard, echo.listening)
        look = CatalogWatch(holder, listener.query, config.prepare or config.pooled).look
        watches.append(Every(LOOK_SECONDS, look, reactor, f"watching the catalog of {where}", outage_of))
        listeners.append(listener)
        all_pools.extend(pools)
    holders = {key: service.holder for key, service in services.items()}
    return Tables(TableRoutes(services), tuple(listeners), tuple(watches), tuple(all_pools), holders, readers)


def config_of(settings: Settings, database: StageDatabase) -> TablesConfig:
    """The settings of ``database``. Where that is the system database, what its pooler lacks is lacking here too."""
    prepares = database.prepare and (database.dsn is not None or settings.database.prepare)
    return TablesConfig(
        **{**asdict(database, recurse=False), "prepare": prepares},
        statement_timeout=milliseconds(settings.database.statement_timeout_seconds),
        pooled=settings.is_pooled(database),
    )


def connectors_of(
    reactor: Any,
    settings: Settings,
    config: TablesConfig,
    new_connection: Callable[[Any], Connection] = Connection,
) -> tuple[Connector, Connector]:
    """What connects for transactions, and what for a session of one's own."""
    dsn = config.dsn or settings.database.dsn
    assert dsn is not None
    direct = Connector(
        reactor,
        read_dsn(settings.session_dsn(config).reveal()),
        settings.database.statement_timeout_seconds,
        new_connection=new_connection,
    )
    target = read_dsn(dsn.reveal())
    return evolve(direct, target=target, pooled=config.pooled, prepares=config.prepare), direct


def _pools(
    reactor: Any, config: TablesConfig, connect: Connect, wait: float, pooled: bool = False
) -> tuple[Pool, ...]:
    """The pool for statements, and the one for streamed replies if that is another.

    Streamed replies may use at most half of the pool's connections. Of a pool of one they would use none or all, so
    they get a pool of their own then, with one connection that is made when it is needed.
    """

    def pool(size: int, opening: Sequence[Step] = ()) -> Pool:
        late, away = errors.pool_timeout, errors.database_away
        return Pool(raw(connect), size, wait, reactor, late=late, away=away, setup=opening, pooled=pooled)

    first = pool(config.pool_size, opening_of_shared(session_of_shared(config)))
    return (first,) if first.size > 1 else (first, pool(1))


def _access(
    reactor: Any, settings: Settings, config: TablesConfig, holder: CacheHolder, pools: Sequence[Pool]
) -> Access:
    """The access by ``pools``, which ``_pools`` made."""
    acting = partial(Actor, trust=holder.trust, changes_role=config.pre_request is not None)
    streams = Streams(
        config,
        acting(pools[-1]),
        DeferredSemaphore(max(1, pools[0].size // 2)),
        reactor,
        settings.database.acquire_timeout_seconds,
        Pace(settings.server.idle_timeout_seconds, config.stream_min_bytes_per_second),
    )
    return Access(Executor(config, acting(pools[0])), streams)


def _reading(
    reactor: Any,
    settings: Settings,
    database: StageDatabase,
    where: str,
    access: Access,
    listener: Listener,
    make: Callable[[Connect], tuple[Access, Sequence[Pool]]],
    new_connection: Callable[[Any], Connection],
) -> Readers[Access] | None:
    """The readers of ``database``, if it has any; the primary is read by ``access``."""
    dsns, staleness = settings.readers_of(database)
    timeout = settings.database.statement_timeout_seconds
    return readers_of(
        reactor, where, dsns, staleness, timeout, access, listener.query, make, new_connection=new_connection
    )


def _reader(
    reactor: Any,
    settings: Settings,
    config: TablesConfig,
    holder: CacheHolder,
    primary: Pool,
    connect: Connect,
) -> tuple[Access, Sequence[Pool]]:
    """The access to a standby, and its pools. Its slow statements are reported with those of ``primary``."""
    pools = _pools(reactor, config, connect, ACQUIRE_SECONDS)
    for pool in pools:
        pool.slow = primary.slow
    return _access(reactor, settings, config, holder, pools), pools


def raw(connect: Connect) -> Connect:
    """A function that connects as ``connect`` does. Its connections return texts and JSON as the bytes that
    PostgreSQL sent."""

    async def connect_raw() -> Connection:
        connection = await connect()
        extensions.register_type(AS_BYTES, connection.raw)
        return connection

    return connect_raw


def one_at_a_time(reactor: Any) -> InThread:
    """A function that runs others in a thread, one after the other: Python runs one thread at a time, so a second one
    would only take turns away from the reactor.

    A function that has begun cannot be stopped, so a caller who leaves in the meantime makes no room for another.
    """
    free = DeferredSemaphore(1)

    async def run(function: Callable[[], T]) -> T:
        try:
            return await run_in_thread(reactor, function)
        finally:
            free.release()

    async def in_thread(function: Callable[[], T]) -> T:
        await free.acquire()
        return await shield(run(function))

    return in_thread
