"""The parts of a serving process (keys, authentication, storage, tables), put together from settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from attrs import frozen
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from project_service import keys
from project_service.auth import assemble as auth
from project_service.database import sqlstate
from project_service.database.advisory_lock import SWEEPER, AdvisoryLock
from project_service.database.connect import connector
from project_service.database.listener import Listener
from project_service.database.pool import Pool
from project_service.deferreds import all_of, background, with_timeout
from project_service.http.caller import Callers
from project_service.http.health import Check, NotReady
from project_service.http.router import Router
from project_service.lifecycle import Closing, Every, Part, ServicePart
from project_service.process import give_back
from project_service.revocations import POLL_SECONDS, Revocations
from project_service.settings.model import Settings
from project_service.storage import assemble as storage
from project_service.tables import assemble as tables

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
    polling = Every(POLL_SECONDS, revocations.poll, reactor, "revocations", sqlstate.outage_of)

    def keys_changed(payload: str) -> None:
        background(revocations.poll(), "reading the project keys")

    listener.subscribe(keys.CHANNEL, keys_changed, ring.reload)
    store = storage.assemble(
        reactor,
        settings.storage,
        settings.store,
        pool,
        in_force=lambda: storage_settings,
        alone=AdvisoryLock(connect, SWEEPER),
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
    work = partial(deferToThreadPool, reactor, reactor.getThreadPool(), give_back)
    return Every(GIVE_BACK_SECONDS, work, reactor, "unused memory", sqlstate.outage_of)


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
