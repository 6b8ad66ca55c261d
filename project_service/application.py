"""What one serving process consists of: connection pools, the three parts, a router and ports, made from settings.

A process keeps nothing that another one needs, so any number of them can run. ``Application`` starts what
``assemble`` puts together, opens the ports, and stops in the reverse order. ``Revocations`` keeps the process current
about revoked keys and ended sessions; ``admission_limits`` is how many requests of each class it serves at a time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from attrs import evolve, frozen
from twisted.application.service import IService
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IListeningPort, IReactorTime
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from project_service import __version__, keys, project_rules
from project_service.auth import assemble as auth
from project_service.auth.mail import Outbox
from project_service.auth.passwords import Hashes
from project_service.auth.routes import CHANGES, PASSWORDS
from project_service.auth.tokens import Verifier
from project_service.console.serving import Console
from project_service.database import errors
from project_service.database.acting import Actor, Recycler, TrustReader
from project_service.database.connecting import connector, pooled_connector
from project_service.database.connection import Connection
from project_service.database.listener import Listener
from project_service.database.locks import DIGESTS, SWEEPER, AdvisoryLock
from project_service.database.pool import Pool
from project_service.database.readers import Readers, count
from project_service.database.slow import SlowStatements
from project_service.errors import database_unavailable
from project_service.front_page import FrontPage
from project_service.http.admission import Limits
from project_service.http.caller import Callers
from project_service.http.connection import ConnectionFactory
from project_service.http.edge import Edge, EdgeSettings, HttpDate
from project_service.http.head import parse_networks
from project_service.http.health import Check, Health, NotReady, failing
from project_service.http.metrics import Metrics
from project_service.http.openapi import OpenApi
from project_service.http.routing import Router
from project_service.kept_log import LogQuery, ReadLog
from project_service.lifecycle import (
    ClosedLast,
    Component,
    Components,
    Every,
    ServiceComponent,
    SharedRun,
    all_of,
    background,
    in_thread_of,
    start,
    with_timeout,
)
from project_service.log import RequestIds, kept
from project_service.network import Binder, close
from project_service.operators import assemble as operators
from project_service.operators.assemble import Running
from project_service.operators.databases import Source
from project_service.operators.history import History
from project_service.process import cpus, room_for_clients, trim_memory
from project_service.settings.model import Settings, StageDatabase, Store
from project_service.storage import assemble as storage
from project_service.storage.buckets import Buckets
from project_service.storage.pictures.renditions import Renditions
from project_service.storage.reading import Reading, reading_of
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.s3.client import S3Store, connect_store
from project_service.supabase.absent import NotOffered
from project_service.supabase.auth.mounting import ClientAuth
from project_service.supabase.storage.mounting import ClientStorage
from project_service.supabase.storage.signatures import Signatures
from project_service.supabase.tables import ClientTables
from project_service.supabase.users import user_view
from project_service.tables import assemble as tables
from project_service.tables.api import admission_class
from project_service.tables.schema_cache.holder import LOOK_SECONDS, CatalogWatch

if TYPE_CHECKING:
    from project_service.tracing import Tracer

_log = Logger()
T = TypeVar("T")

# How long a query may still run after the last request has been answered or given up.
POOL_GRACE_SECONDS = 2.0
# How long the start waits for databases that may be away.
LISTENING_SECONDS = 5.0
# How long the listening connection to the system database may be silent. It asks a few times a second.
LISTENER_ANSWER_SECONDS = 5.0
# How often it is stored when project keys were last used, and how long a stop waits for that.
USES_SECONDS = 60.0
LAST_USE_SECONDS = 1.0
# How often freed memory is returned to the system.
TRIM_SECONDS = 15.0
# Each step of a stop gets at least this long, even after ``shutdown_seconds``: enough for a cancelled request to
# answer.
MIN_STOP_SECONDS = 0.2
# How much longer changes may take that were being committed at the end of ``shutdown_seconds``.
COMMIT_SECONDS = 1.0
# A revoked key and the tokens of an ended session are refused everywhere within this time, in seconds.
FRESH_SECONDS = 1.0
# How often revocations are read: two readings may fail, or be late, before a request has to wait.
POLL_SECONDS = 0.4
# How many requests are served beyond the number of database connections, so that no connection is idle while a
# request is being read or answered. With more, requests would wait for a connection after everything has been made
# for them; a request that waits for admission has cost next to nothing yet.
EXTRA_SLOTS = 2
MIN_STORAGE_SLOTS = 16
# The name of the system database for operators.
SYSTEM = "system"
# One password is hashed while the next is made ready.
SLOTS_PER_THREAD = 2
# The description of the whole service in ``/openapi.json``.
INTRODUCTION = """\
Authentication, object storage and a table REST API of one project.

Every response has `X-Request-Id`; a request may bring its own (1 to 128 of `A-Za-z0-9._-`). `OPTIONS` is answered \
on every path, for preflights too. Unknown paths return 404 `not_found`, and methods that a path lacks return \
405 `method_not_allowed` with `Allow`. What each database of the table API holds is described at the database's own \
root, `/{stage}/db/{database}/rest/`, to whoever may use it. What is at `/auth/v1`, `/rest/v1` and `/storage/v1` is \
below `/{stage}/db/{database}` too."""


class Application:
    """A ``Component``: ``start`` returns when requests are answered, ``stop`` when the last one has been.

    ``settings`` are this process's share; ``processes`` is how many processes there are on this machine's CPUs.
    ``binder`` opens the ports for clients, ``admin_binder`` the one for health and metrics; without it those are
    served with the rest. ``peers`` is a check that ``/ready`` makes as well: whether the other processes are ready.
    ``read_log`` reads the log of all of them; without it this process has the log. ``reload_all`` does what a SIGHUP
    does in all of them; without it this process alone takes over what its files say now. ``configured`` returns the
    settings of all of them together.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        settings: Settings,
        binder: Binder,
        admin_binder: Binder | None = None,
        processes: int = 1,
        peers: Check | None = None,
        read_log: ReadLog | None = None,
        reload_all: Callable[[], None] | None = None,
        configured: Callable[[], Settings] | None = None,
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._binder = binder
        self._admin_binder = admin_binder
        self._processes = processes
        self._peers = peers
        self._read_log = read_log or self._read_own_log
        self._reload_all = reload_all or (lambda: self.reload(self._settings))
        self._configured = configured or (lambda: self._settings)
        self._ports: list[IListeningPort] = []
        self._components = Components()
        self._edges: list[Edge] = []
        self._factories: list[ConnectionFactory] = []
        self._assembled: Assembled | None = None
        self._tracer: Tracer | None = None
        self._health: Health | None = None
        self._history: History | None = None

    @property
    def addresses(self) -> list[Any]:
        """The addresses of the open ports, as ``IAddress`` values: those for clients first."""
        return [port.getHost() for port in self._ports]

    async def start(self) -> None:
        if self._settings.tracing.endpoint is not None:
            # It needs an extra, and takes memory.
            from project_service.tracing import Tracer

            self._tracer = Tracer.of(self._reactor, self._settings.tracing)
        assembled = assemble(self._reactor, self._settings, self._processes, self._tracer)
        self._assembled = assembled
        self._components = Components(assembled.components)
        await self._components.start()
        try:
            await self._open_ports(assembled)
        except BaseException:
            await self._components.stop()
            raise

    async def _open_ports(self, assembled: Assembled) -> None:
        metrics = Metrics(self._reactor.callLater)
        metrics.databases.watch_pools(assembled.pools)
        metrics.databases.watch_readers(assembled.readers)
        assembled.renditions.observe = metrics.rendition
        if self._tracer is not None:
            self._tracer.export.counted = metrics.spans
        for outbox in assembled.outboxes:
            outbox.observe = metrics.mail
        others = {"workers": self._peers} if self._peers is not None else {}
        health = self._health = Health({**assembled.checks, **others}, metrics, self._reactor)
        clients = room_for_clients(self._settings.server.max_connections)
        in_thread = in_thread_of(self._reactor)
        history = self._history = History(metrics, assembled.pools, clients, self._reactor, in_thread)
        running = Running(
            health,
            history,
            self._databases(assembled.pools),
            assembled.pools[SYSTEM],
            assembled.buckets,
            assembled.sources,
            self._read_log,
            in_thread,
            assembled.verifier,
            self._reload_all,
            self._configured,
        )
        router = Router()
        for part in assembled.mounted:
            part.mount(router)
        if self._admin_binder is None:
            health.mount(router)
            self._mount_for_operators(router, running)
        databases = [f"/{stage}/db/{name}/rest/" for stage, name, _ in self._settings.stage_databases()]
        here = self._admin_binder is None
        console = here and self._settings.server.console is not False
        FrontPage(databases, health if here else None, console).mount(router)
        OpenApi(__version__, INTRODUCTION).mount(router)
        await self._serve(self._binder, router, assembled, metrics)
        history.start()
        if self._admin_binder is not None:
            admin = Router()
            if self._settings.server.console is not False:
                # It asks the parts too, and its pages may only ask where they come from.
                for part in assembled.mounted:
                    part.mount(admin)
            health.mount(admin)
            self._mount_for_operators(admin, running)
            OpenApi(__version__, INTRODUCTION).mount(admin)
            # With metrics of its own, which nobody sees: these requests are not counted among the service's.
            await self._serve(self._admin_binder, admin, assembled, Metrics())

    def _databases(self, pools: Mapping[str, Pool]) -> Mapping[str, Pool]:
        """Those of ``pools`` that lead to different databases."""
        own = [
            f"{stage}/{name}" for stage, name, one in self._settings.stage_databases() if one.dsn is not None
        ]
        return {name: pools[name] for name in (SYSTEM, *own) if name in pools}

    async def _read_own_log(self, query: LogQuery) -> bytes:
        async def turn() -> None:
            await deferLater(self._reactor, 0)

        return await kept().answer(query, turn)

    def _mount_for_operators(self, router: Router, running: Running) -> None:
        operators.assemble(self._reactor, lambda: self._settings, running).mount(router)
        Console(self._settings.server.console).mount(router)

    async def _serve(self, binder: Binder, router: Router, assembled: Assembled, metrics: Metrics) -> None:
        """Open the ports of ``binder`` for the routes of ``router``."""
        max_connections = room_for_clients(self._settings.server.max_connections)
        edge = Edge(
            router,
            assembled.callers,
            edge_settings(self._settings),
            self._reactor,
            RequestIds(secrets.token_bytes),
            metrics,
            project_rules.translate,
            HttpDate(time.time),
            admission_limits(self._settings, cpus(self._processes)),
            log_later=self._reactor.callLater,
            traces=None if self._tracer is None else self._tracer.requests,
        )
        self._edges.append(edge)
        idle_timeout = self._settings.server.idle_timeout_seconds
        factory = ConnectionFactory(edge, self._reactor, idle_timeout, max_connections)
        metrics.watch(edge.classes, factory.connections, max_connections)
        self._factories.append(factory)
        ports: Any = await binder(factory)
        factory.throttle.ports = ports
        self._ports += ports

    async def away(self) -> Collection[str]:
        """The parts that do not work, by the names that ``/ready`` gives them."""
        return () if self._health is None else list(await self._health.away())

    async def check_ready(self, seconds: float) -> None:
        """Raises ``NotReady`` with the names of the parts that do not work in this process, with commas between.
        Each is given so many ``seconds``."""
        if self._assembled is None:
            raise NotReady("start")
        if away := await failing(self._assembled.checks, self._reactor, seconds):
            raise NotReady(",".join(away))

    def reload(self, settings: Settings) -> None:
        """Take over the settings that may change while running.

        Raises ``KeySetError`` for a key file and ``TemplateFault`` for templates that cannot be used; then nothing
        has changed.
        """
        if self._assembled is not None:
            self._assembled.reload(settings)
        self._settings = settings
        for edge in self._edges:
            edge.settings = edge_settings(settings)

    async def stop(self) -> None:
        """Stop accepting, let current requests finish for ``shutdown_seconds``, then close everything."""
        deadline = self._reactor.seconds() + self._settings.server.shutdown_seconds
        ports, self._ports = self._ports, []
        for port in ports:
            await close(port)
        await self._drain(deadline)
        if self._history is not None:
            self._history.stop()
        await self._components.stop()
        if self._tracer is not None:
            await self._tracer.export.stop(max(deadline - self._reactor.seconds(), MIN_STOP_SECONDS))

    async def _drain(self, deadline: float) -> None:
        """Wait until every request is answered and every answer has been read, but no longer than until ``deadline``.

        What is unfinished then is cancelled, but for objects that are being committed, and connections are cut.
        """
        for edge in self._edges:
            edge.close_connections()
        for edge in self._edges:
            if not await self._within(deadline, edge.drained()):
                self.log.warn("requests were still under way at the end of shutdown_seconds")
                edge.cancel_all()
                # What was being committed is answered with what became of it.
                await self._within(deadline + COMMIT_SECONDS, edge.drained())
        for factory in self._factories:
            if not await self._within(deadline, factory.close_all()):
                self.log.warn("answers were still being read at the end of shutdown_seconds")
                factory.abort_all()

    async def _within(self, deadline: float, waiting: Deferred[None]) -> bool:
        left = max(deadline - self._reactor.seconds(), MIN_STOP_SECONDS)
        try:
            await with_timeout(self._reactor, left, waiting, TimeoutError)
        except TimeoutError:
            return False
        return True


class Mounted(Protocol):
    """A part that has routes."""

    def mount(self, router: Router) -> None: ...


@frozen
class Assembled:
    """The parts, put together.

    ``components`` are started in this order and stopped in reverse. ``checks`` are what ``/ready`` asks, by the name
    it gives to what is away. ``reload`` takes over changed settings; if it raises, nothing has changed. The metrics
    observe ``renditions`` and ``outboxes``. ``pools`` are the connections to databases by the names that operators
    see, ``sources`` the databases of the table API, by stage and name. ``readers`` are the standbys, by the names of
    their primaries' pools.
    """

    callers: Callers
    mounted: Sequence[Mounted]
    components: Sequence[Component]
    checks: Mapping[str, Check]
    reload: Callable[[Settings], None]
    renditions: Renditions
    outboxes: Sequence[Outbox[Any]]
    sources: Mapping[tuple[str, str], Source]
    pools: Mapping[str, Pool]
    readers: Mapping[str, Readers[Any]]
    buckets: Buckets
    verifier: Verifier


@frozen
class Made:
    """What the parts are made with: other classes where requests are traced. ``connections`` returns, for the name of
    a database, what makes connections to it, or to a "reader" of it."""

    connections: Callable[..., Callable[[Any], Connection]] = lambda *database: Connection
    store: Callable[[Any, Store], S3Store] = connect_store
    hashes: Callable[[Hashes], Hashes] = lambda hashes: hashes
    outbox: Callable[..., Outbox[Any]] = Outbox

    @classmethod
    def by(cls, tracer: Tracer | None) -> Made:
        if tracer is None:
            return cls()
        return cls(tracer.connections, tracer.connect_store, tracer.hashes, tracer.outbox)


@frozen
class SystemDatabase:
    """The connections to the system database: ``pool`` for statements of the service, and those of ``actor`` for
    statements in which SQL of the project runs. ``services`` keep the trust in that SQL current."""

    connect: Callable[[], Awaitable[Connection]]
    pool: Pool
    actor: Actor
    listener: Listener
    services: tuple[IService, ...]

    @classmethod
    def of(cls, reactor: Any, settings: Settings, made: Made) -> SystemDatabase:
        new_connection, database = made.connections(SYSTEM), settings.database
        connect = connector(reactor, settings, new_connection)
        for_pools, pooled = pooled_connector(reactor, settings, new_connection), settings.is_pooled()
        wait = database.acquire_timeout_seconds
        pool = Pool(for_pools, database.pool_size, wait, reactor, pooled=pooled)
        listener = Listener(connect, reactor, answer_seconds=LISTENER_ANSWER_SECONDS)

        reader = TrustReader(listener.query, in_thread_of(reactor), reactor)
        listener.subscribe(tables.CHANNEL, reader.notified, reader.reload)
        pool.recycler = Recycler(reader.trust)
        look = CatalogWatch(reader, listener.query).look
        watching = Every(LOOK_SECONDS, look, reactor, "functions and policies", errors.outage_of)
        policies = Pool(for_pools, database.policy_pool_size, wait, reactor, pooled=pooled)
        return cls(connect, pool, Actor(policies, reader.trust), listener, (reader, watching))

    def reading(
        self, reactor: Any, settings: Settings, made: Made
    ) -> Callable[[ObjectRows, Buckets], Reading]:
        """How storage reads its rows: with the standbys of this database, if there are any."""
        connections = made.connections(SYSTEM, "reader")
        return partial(reading_of, reactor, settings.database, self.listener.query, connections)


def assemble(reactor: Any, settings: Settings, processes: int, tracer: Tracer | None = None) -> Assembled:
    made = Made.by(tracer)
    system = SystemDatabase.of(reactor, settings, made)
    pool, listener, actor = system.pool, system.listener, system.actor
    ring = keys.KeyRing(listener)
    accounts = auth.assemble(
        settings, pool, actor, listener, reactor, processes, user_view, made.hashes, made.outbox
    )
    revocations, polling = _revocations(ring, accounts, listener, reactor, settings)
    store = storage.assemble(
        reactor,
        settings.storage,
        settings.store,
        pool,
        actor,
        sweep_lock=AdvisoryLock(system.connect, SWEEPER),
        digest_lock=AdvisoryLock(system.connect, DIGESTS),
        images=evolve(settings.images, processes=settings.images.processes or cpus(processes)),
        connect=made.store,
        reading=system.reading(reactor, settings, made),
    )
    rest = tables.assemble(reactor, settings, accounts.verifier, time.time, made.connections)
    by_name = _watched(_by_name(pool, actor, rest), settings, tracer)
    readers: dict[str, Readers[Any]] = {**rest.readers, **store.readers_by_name(SYSTEM)}

    def reload(fresh: Settings) -> None:
        # First, because it is the only one that may raise.
        accounts.reload(fresh)
        store.reload(fresh.storage, fresh.store)
        rest.read_again()
        for each in by_name.values():
            each.slow.limit(fresh.database.slow_query_seconds)

    return Assembled(
        callers=Callers(ring, accounts.verifier, revocations),
        mounted=[accounts, store, rest, *_for_clients(settings, accounts, store, rest)],
        components=[
            *_closed_last(pool, actor.pool, *rest.pools, *readers.values()),
            *(ServiceComponent(each) for each in system.services),
            ServiceComponent(listener),
            # While the database is away a reading waits for it, and its result is not needed any more.
            ServiceComponent(polling, cancels=True),
            ServiceComponent(_trimming(reactor)),
            _KeyUses.of(ring, pool, reactor),
            store,
            # Reading an object may take hours.
            ServiceComponent(store.digesting, cancels=True),
            *(ServiceComponent(each) for each in (*accounts.services, *store.services, *rest.services)),
            _Listening((listener, *rest.listeners), reactor),
        ],
        checks=_checks(pool, listener, revocations, store, rest),
        reload=reload,
        renditions=store.renditions,
        outboxes=accounts.challenges.outboxes,
        sources=_sources(settings, rest),
        pools=by_name,
        readers=readers,
        buckets=store.buckets,
        verifier=accounts.verifier,
    )


def _revocations(
    ring: keys.KeyRing, accounts: auth.Auth, listener: Listener, reactor: Any, settings: Settings
) -> tuple[Revocations, Every]:
    """What keeps this process current about them, and the loop that does."""

    async def read_revoked() -> None:
        await listener.connected()
        await ring.reload()
        await accounts.revoked.read_new()

    revocations = Revocations(read_revoked, reactor, settings.database.acquire_timeout_seconds)
    polling = Every(POLL_SECONDS, revocations.poll, reactor, "revocations", errors.outage_of)

    def keys_changed(payload: str) -> None:
        background(revocations.poll(), "reading the project keys")

    listener.subscribe(keys.CHANNEL, keys_changed, ring.reload)
    return revocations, polling


def _closed_last(*connections: Pool | Readers[Any]) -> list[ClosedLast]:
    return [ClosedLast(partial(each.close, POOL_GRACE_SECONDS)) for each in connections]


def _by_name(pool: Pool, actor: Actor, rest: tables.Tables) -> Mapping[str, Pool]:
    of_tables = {f"{stage}/{name}": each for (stage, name), each in rest.pool_of.items()}
    return {SYSTEM: pool, "policies": actor.pool, **of_tables}


def _watched(pools: Mapping[str, Pool], settings: Settings, tracer: Tracer | None) -> Mapping[str, Pool]:
    for name, pool in pools.items():
        pool.slow = SlowStatements(name, settings.database.slow_query_seconds)
        if tracer is not None:
            tracer.watch(name, pool)
    return pools


def _sources(settings: Settings, rest: tables.Tables) -> Mapping[tuple[str, str], Source]:
    return {
        (stage, name): Source(database, rest.pool_of[stage, name])
        for stage, name, database in settings.stage_databases()
    }


def _for_clients(
    settings: Settings, accounts: auth.Auth, store: storage.Storage, rest: tables.Tables
) -> list[Mounted]:
    """What the clients of the Supabase family call."""
    if not settings.server.client_paths:
        return []
    databases = [(stage, name) for stage, name, _ in settings.stage_databases()]
    signatures = Signatures(lambda: accounts.verifier.issuer.keys, time.time)
    return [
        ClientTables(rest.routes, settings.client_database()),
        ClientAuth(accounts, databases, settings.server.public_url),
        ClientStorage(store, databases, signatures),
        NotOffered(),
    ]


def _trimming(reactor: Any) -> Every:
    """Returns unused memory to the system. In a thread, because it takes some milliseconds in a large process."""
    trim = partial(deferToThreadPool, reactor, reactor.getThreadPool(), trim_memory)
    return Every(TRIM_SECONDS, trim, reactor, "unused memory", errors.outage_of)


def _checks(
    pool: Pool,
    listener: Listener,
    revocations: Revocations,
    store: storage.Storage,
    rest: tables.Tables,
) -> Mapping[str, Check]:
    async def database_works() -> None:
        await pool.query("select 1")

    async def listener_works() -> None:
        if not listener.current:
            raise NotReady("nothing listens for notifications")
        if not revocations.current:
            await revocations.catch_up()

    async def tables_loaded() -> None:
        if not rest.ready:
            raise NotReady("a schema cache has not been read")

    return {
        "database": database_works,
        "notifications": listener_works,
        "store": store.ready,
        "tables": tables_loaded,
    }


@frozen
class _KeyUses:
    """The component that stores when project keys were last used: every minute, and once more at the end."""

    loop: ServiceComponent
    store: Callable[[], Coroutine[Any, Any, None]]
    reactor: Any

    @classmethod
    def of(cls, ring: keys.KeyRing, pool: Pool, reactor: Any) -> _KeyUses:
        store = partial(ring.store_uses, pool)
        loop = Every(USES_SECONDS, store, reactor, "the last use of project keys", errors.outage_of)
        return cls(ServiceComponent(loop), store, reactor)

    async def start(self) -> None:
        await self.loop.start()

    async def stop(self) -> None:
        await self.loop.stop()
        try:
            await with_timeout(self.reactor, LAST_USE_SECONDS, start(self.store()), TimeoutError)
        except Exception as fault:
            # The database is away: the keys are only shown as used a minute earlier than they were.
            _log.debug("the last use of project keys was not stored: {why}", why=type(fault).__name__)


@frozen
class _Listening:
    """A component whose start waits until all ``listeners`` are current, so that no request is answered from stale
    memory.

    It waits for ``LISTENING_SECONDS`` at most: a database that is away must not keep this process from answering what
    does without it, such as ``/live``. Until then its project keys and schema caches are not read, and what needs
    them is refused.
    """

    listeners: Sequence[Listener]
    reactor: Any

    async def start(self) -> None:
        await all_of(self._wait_for(listener) for listener in self.listeners)

    async def _wait_for(self, listener: Listener) -> None:
        try:
            await with_timeout(self.reactor, LISTENING_SECONDS, listener.ready(), TimeoutError)
        except TimeoutError:
            _log.warn("{of} does not answer yet", of=listener.of)

    async def stop(self) -> None:
        return None


class Revocations:
    """Whether this process knows what has been revoked. Implements ``http.caller.Revocations``.

    Project keys and ended sessions are kept in memory. Notifications of changes arrive within milliseconds, but they
    can be lost: a listening connection may be dead for long before anybody notices, and a proxy that pools
    transactions lets none through. So everything is also read a few times a second, and a reading older than
    ``FRESH_SECONDS`` is not trusted: a request with a key or a token then waits for a new one.

    ``read`` reads all that may have been missed, and raises what its queries raise. ``timeout_seconds`` is how long a
    request waits for it.
    """

    log = Logger()

    def __init__(
        self, read: Callable[[], Awaitable[None]], clock: IReactorTime, timeout_seconds: float
    ) -> None:
        self._read = read
        self._clock = clock
        self._timeout = timeout_seconds
        self._known_at = float("-inf")
        self._readings = SharedRun(self._read_once, "reading what has been revoked")
        self._failing = False

    @property
    def current(self) -> bool:
        """Whether everything that was revoked more than ``FRESH_SECONDS`` ago is known."""
        return self._clock.seconds() - self._known_at <= FRESH_SECONDS

    async def catch_up(self) -> None:
        """Returns when a reading has succeeded that began after the call, which all who wait share.

        Raises what ``read`` raises, and ``database_unavailable`` if it takes too long.
        """
        await with_timeout(self._clock, self._timeout, self._readings.join(), database_unavailable)

    async def poll(self) -> None:
        """Read. It does not raise; of several failures in a row the first is logged."""
        try:
            await self.catch_up()
        except CancelledError:
            raise
        except Exception as fault:
            if not self._failing:
                why = getattr(fault, "code", None) or type(fault).__name__
                self.log.warn("revoked keys and sessions cannot be read: {why}", why=why)
            self._failing = True
        else:
            self._failing = False

    async def _read_once(self) -> None:
        began = self._clock.seconds()
        await self._read()
        self._known_at = began


# Settings for the HTTP edge


def admission_limits(settings: Settings, threads: int) -> dict[str, Limits]:
    """How many requests are served at a time, by admission class (``http.admission``). ``settings`` are one process's
    share; ``threads`` is how many threads hash its passwords."""
    slots = {
        auth.ADMISSION: settings.database.pool_size + EXTRA_SLOTS,
        PASSWORDS: threads * SLOTS_PER_THREAD,
        # Apart, so that slow triggers on users keep nobody from signing in.
        CHANGES: threads * SLOTS_PER_THREAD + settings.database.policy_pool_size,
        storage.ADMISSION: max(settings.store.max_connections, MIN_STORAGE_SLOTS),
    }
    for name, database in _databases(settings):
        servers = 1 + count(settings.readers_of(database)[0])
        slots[name] = database.pool_size * servers + EXTRA_SLOTS
    return {name: Limits(count, settings.database.acquire_timeout_seconds) for name, count in slots.items()}


def edge_settings(settings: Settings) -> EdgeSettings:
    server = settings.server
    trace_headers = {
        name: one.trace_header for name, one in _databases(settings) if one.trace_header is not None
    }
    return EdgeSettings(
        server.public_url,
        server.cors_origins,
        parse_networks(server.trusted_proxies),
        server.max_json_bytes,
        trace_headers,
    )


def _databases(settings: Settings) -> Iterator[tuple[str, StageDatabase]]:
    """Every database of the table API with the name of its admission class."""
    for stage, name, database in settings.stage_databases():
        yield admission_class(stage, name), database
