"""One serving process: pools, parts, router and ports, made from settings sweep_lock.

It keeps nothing that another process needs, so any number of them can run. First come the parts, how many requests of
each are served at once, and how current the process is about revoked keys and ended sessions.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from attrs import frozen
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IListeningPort, IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from project_service import __version__, keys
from project_service.auth import assemble as auth
from project_service.database import errors
from project_service.database.connecting import connector
from project_service.database.listener import SWEEPER, AdvisoryLock, Listener
from project_service.database.pool import Pool
from project_service.errors import database_unavailable
from project_service.http.admission import Limits
from project_service.http.caller import Callers
from project_service.http.connection import ChannelFactory
from project_service.http.edge import Edge, HttpDate
from project_service.http.head import parse_networks
from project_service.http.health import Check, Health, NotReady
from project_service.http.metrics import Metrics
from project_service.http.openapi import OpenApi
from project_service.http.request import EdgeSettings
from project_service.http.routing import Router
from project_service.lifecycle import (
    Closing,
    Every,
    Ordered,
    Part,
    ServicePart,
    SharedRun,
    all_of,
    background,
    with_timeout,
)
from project_service.log import RequestIds
from project_service.network import Binder, close
from project_service.process import cpus, room_for_clients, trim_memory
from project_service.settings.model import Settings, StageDatabase
from project_service.storage import assemble as storage
from project_service.tables import assemble as tables

# The lanes of ``http.overload`` from the settings: how many requests of each part are served at a time.
#
# A lane is named as ``http.overload.lanes`` names it.


# How many requests are served beyond the number of database connections, so that no connection is idle while a
# request is being read or answered. With more, requests would wait for a connection after everything has been made
# for them; a request that waits in its lane has cost next to nothing yet.
PLACES_MORE = 2
LEAST_STORAGE_PLACES = 16
# For each thread that hashes passwords: one is hashed while the next is made ready.
PLACES_PER_THREAD = 2


def lanes(settings: Settings, threads: int) -> dict[str, Limits]:
    """The limits by lane. ``settings`` are one process's share; ``threads`` is how many threads hash its
    passwords."""
    places = {
        "auth": settings.database.pool_size + PLACES_MORE,
        "passwords": threads * PLACES_PER_THREAD,
        "storage": max(settings.store.max_connections, LEAST_STORAGE_PLACES),
    }
    for lane, database in _databases(settings):
        places[lane] = database.pool_size + PLACES_MORE
    return {lane: Limits(count, settings.database.acquire_timeout_seconds) for lane, count in places.items()}


def trace_headers(settings: Settings) -> dict[str, str]:
    """The name of the header that is sent back to the client, by lane, for databases that have ``trace_header``."""
    return {lane: one.trace_header for lane, one in _databases(settings) if one.trace_header is not None}


def _databases(settings: Settings) -> Iterator[tuple[str, StageDatabase]]:
    """Every database of the table API with the name of its lane."""
    for stage, name, database in settings.stage_databases():
        yield f"tables:{stage}/{name}", database


# How current this process is about revoked project keys and ended sessions, both of which it keeps in memory.
#
# Notifications bring them within milliseconds. They can be lost: a listening connection may be dead for long before
# anybody notices, and a proxy that pools transactions lets none through. So everything is also read a few times a
# second, and what was read longer than a second ago is not trusted: whoever shows a key or a token then waits for a
# new reading.


# A revoked key and the tokens of an ended session are refused everywhere within this time, in seconds.
FRESH_SECONDS = 1.0
# How often ``poll`` has to be called: two may fail, or be late, before anybody waits.
POLL_SECONDS = 0.4


class Revocations:
    """Implements ``http.caller.Revocations``.

    ``read`` reads all that may have been missed, and raises what its queries raise. ``patience_seconds`` is how long
    a request waits for it.
    """

    log = Logger()

    def __init__(
        self, read: Callable[[], Awaitable[None]], clock: IReactorTime, patience_seconds: float
    ) -> None:
        self._read = read
        self._clock = clock
        self._patience = patience_seconds
        self._known_at = float("-inf")
        self._readings = SharedRun(self._read_once, "reading what has been revoked")
        self._failing = False

    @property
    def current(self) -> bool:
        """Whether everything that was revoked more than ``FRESH_SECONDS`` ago is known."""
        return self._clock.seconds() - self._known_at <= FRESH_SECONDS

    async def catch_up(self) -> None:
        """Returns when a reading has succeeded that began after the call, which all who wait share.

        Raises what ``read`` raises, and ``database_unavailable`` where it takes too long.
        """
        await with_timeout(self._clock, self._patience, self._readings.join(), database_unavailable)

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


# The parts of a serving process (keys, authentication, storage, tables), put together from settings.


_log = Logger()

# How long a query may still run after the last request has been answered or given up.
POOL_GRACE_SECONDS = 2.0
# How long the start waits for databases that may be away.
LISTENING_SECONDS = 5.0
# How long the listening connection to the system database may be silent. It asks a few times a second.
LISTENER_ANSWER_SECONDS = 5.0
# How often freed memory is returned to the system. It takes some milliseconds of a thread.
GIVE_BACK_SECONDS = 15.0


class Mounted(Protocol):
    """A part that has routes."""

    def mount(self, router: Router) -> None: ...


@frozen
class Parts:
    """What ``Application`` needs of the assembled parts.

    ``ordered`` are started in this order and stopped in reverse. ``checks`` are what ``/ready`` asks, by name.
    ``reload`` takes over changed settings; where it raises, nothing has changed.
    """

    callers: Callers
    mounted: Sequence[Mounted]
    ordered: list[Part]
    checks: Mapping[str, Check]
    reload: Callable[[Settings], None]


def assemble(reactor: Any, settings: Settings, processes: int) -> Parts:
    connect = connector(reactor, settings)
    database = settings.database
    pool = Pool(connect, database.pool_size, database.acquire_timeout_seconds, reactor)
    listener = Listener(connect, reactor, answer_seconds=LISTENER_ANSWER_SECONDS)
    ring = keys.KeyRing(listener)
    storage_settings = settings.storage
    accounts = auth.assemble(settings, pool, listener, reactor, processes)

    async def read_revoked() -> None:
        await listener.connected()
        await ring.reload()
        await accounts.revoked.read_new()

    revocations = Revocations(read_revoked, reactor, database.acquire_timeout_seconds)
    polling = Every(POLL_SECONDS, revocations.poll, reactor, "revocations", errors.outage_of)

    def keys_changed(payload: str) -> None:
        background(revocations.poll(), "reading the project keys")

    listener.subscribe(keys.CHANNEL, keys_changed, ring.reload)
    store = storage.assemble(
        reactor,
        settings.storage,
        settings.store,
        pool,
        current_settings=lambda: storage_settings,
        sweep_lock=AdvisoryLock(connect, SWEEPER),
    )
    rest = tables.assemble(reactor, settings, accounts.verifier, time.time)

    def reload(fresh: Settings) -> None:
        nonlocal storage_settings
        # First, because it is the only one that may raise.
        accounts.reload(fresh)
        storage_settings = fresh.storage
        store.reload(fresh.store)
        rest.read_again()

    return Parts(
        callers=Callers(ring, accounts.verifier, revocations),
        mounted=[accounts, store, rest],
        ordered=[
            *(Closing(partial(each.close, POOL_GRACE_SECONDS)) for each in (pool, *rest.pools)),
            ServicePart(listener),
            # While the database is away a reading waits for it all the time, and nobody needs it any more.
            ServicePart(polling, cancels=True),
            ServicePart(_giving_back(reactor)),
            store,
            *(ServicePart(service) for service in (*accounts.services, *store.services, *rest.services)),
            _Listening((listener, *rest.listeners), reactor),
        ],
        checks=_checks(pool, listener, revocations, store, rest),
        reload=reload,
    )


def _checks(
    pool: Pool,
    listener: Listener,
    revocations: Revocations,
    store: storage.Storage,
    rest: tables.Tables,
) -> Mapping[str, Check]:
    """What ``/ready`` asks, by the name it gives to what is away."""

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


def _giving_back(reactor: Any) -> Every:
    # In a thread, because it takes some milliseconds in a large process, for which the reactor would stand still.
    work = partial(deferToThreadPool, reactor, reactor.getThreadPool(), trim_memory)
    return Every(GIVE_BACK_SECONDS, work, reactor, "unused memory", errors.outage_of)


@frozen
class _Listening:
    """A part whose start waits until all ``listeners`` are current, so that no request is answered from stale memory.

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


# One serving process: pools, parts, router and ports.
#
# It is built from settings sweep_lock and keeps nothing that another process needs, so any number of them can run.


# Each step of a stop gets at least this long, even after ``shutdown_seconds``: enough for a cancelled request to
# answer.
LEAST_SECONDS = 0.2


class Application:
    """A ``Part``: ``start`` returns when requests are answered, ``stop`` when the last one has been.

    ``settings`` are this process's share; ``processes`` is how many processes there are on this machine's CPUs.
    ``binder`` opens the ports for clients, ``admin_binder`` the one for health and metrics; without it those are
    served with the rest. ``peers`` is a check that ``/ready`` makes as well: whether the other processes are ready.
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
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._binder = binder
        self._admin_binder = admin_binder
        self._processes = processes
        self._peers = peers
        self._ports: list[IListeningPort] = []
        self._ordered = Ordered([])
        self._edges: list[Edge] = []
        self._factories: list[ChannelFactory] = []
        self._built: Parts | None = None

    @property
    def addresses(self) -> list[Any]:
        """Where requests are taken, as ``IAddress`` values."""
        return [port.getHost() for port in self._ports]

    async def start(self) -> None:
        built = assemble(self._reactor, self._settings, self._processes)
        self._built = built
        self._ordered = Ordered(built.ordered)
        await self._ordered.start()
        try:
            await self._open(built)
        except BaseException:
            await self._ordered.stop()
            raise

    async def works(self) -> None:
        """Raises as long as a part that this process needs does not work."""
        if self._built is None:
            raise RuntimeError("not started")
        await all_of(check() for check in self._built.checks.values())

    async def _open(self, built: Parts) -> None:
        metrics = Metrics(self._reactor.callLater)
        others = {"workers": self._peers} if self._peers is not None else {}
        health = Health({**built.checks, **others}, metrics, self._reactor)
        router = Router()
        for part in built.mounted:
            part.mount(router)
        if self._admin_binder is None:
            health.mount(router)
        OpenApi(__version__).mount(router)
        # The order matters: what clients use comes first in ``addresses``.
        await self._serve(self._binder, router, built, metrics)
        if self._admin_binder is not None:
            admin = Router()
            health.mount(admin)
            OpenApi(__version__).mount(admin)
            # With metrics of its own, which nobody sees: these requests are not counted among the service's.
            await self._serve(self._admin_binder, admin, built, Metrics())

    async def _serve(self, binder: Binder, router: Router, built: Parts, metrics: Metrics) -> None:
        """Open the ports of ``binder`` for the routes of ``router``."""
        most = room_for_clients(self._settings.server.max_connections)
        edge = Edge(
            router,
            built.callers,
            edge_settings(self._settings),
            self._reactor,
            RequestIds(secrets.token_bytes),
            metrics,
            errors.translate,
            HttpDate(time.time),
            lanes(self._settings, cpus(self._processes)),
            log_later=self._reactor.callLater,
        )
        self._edges.append(edge)
        factory = ChannelFactory(edge, self._reactor, self._settings.server.idle_timeout_seconds, most)
        metrics.watch(edge.classes, factory.connections, most)
        self._factories.append(factory)
        ports: Any = await binder(factory)
        factory.throttle.ports = ports
        self._ports += ports

    def reload(self, settings: Settings) -> None:
        """Take over the settings that may change while running.

        Raises ``KeySetError`` for a key file that cannot be used, and then nothing has changed.
        """
        if self._built is not None:
            self._built.reload(settings)
        self._settings = settings
        for edge in self._edges:
            edge.settings = edge_settings(settings)

    async def stop(self) -> None:
        """Stop accepting, let what is under way finish for ``shutdown_seconds``, then close everything."""
        ports, self._ports = self._ports, []
        for port in ports:
            await close(port)
        await self._drain()
        await self._ordered.stop()

    async def _drain(self) -> None:
        """Wait until every request is answered and every answer has been read, but no longer than
        ``shutdown_seconds``.

        What is unfinished then is cancelled, and connections are cut.
        """
        deadline = self._reactor.seconds() + self._settings.server.shutdown_seconds
        for edge in self._edges:
            edge.close_connections()
        for edge in self._edges:
            if not await self._within(deadline, edge.drained()):
                self.log.warn("requests were still under way at the end of shutdown_seconds")
                edge.cancel_all()
        for factory in self._factories:
            if not await self._within(deadline, factory.close_all()):
                self.log.warn("answers were still being read at the end of shutdown_seconds")
                factory.abort_all()

    async def _within(self, deadline: float, waiting: Deferred[None]) -> bool:
        left = max(deadline - self._reactor.seconds(), LEAST_SECONDS)
        try:
            await with_timeout(self._reactor, left, waiting, TimeoutError)
        except TimeoutError:
            return False
        return True


def edge_settings(settings: Settings) -> EdgeSettings:
    server = settings.server
    return EdgeSettings(
        server.public_url,
        server.cors_origins,
        parse_networks(server.trusted_proxies),
        server.max_json_bytes,
        trace_headers(settings),
    )
