"""What a serving process consists of: the parts, put together from settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import define, frozen

from project_service import keys
from project_service.auth import assemble as auth
from project_service.database import dsn as dsns
from project_service.database import sqlstate
from project_service.database.connect import Connector
from project_service.database.listener import Listener
from project_service.database.pool import Pool
from project_service.deferreds import background
from project_service.errors import ApiError
from project_service.http.caller import KeyRing, TokenVerifier
from project_service.http.health import Check
from project_service.http.metrics import Metrics
from project_service.http.router import Router
from project_service.lifecycle import Closing, Part, ServicePart
from project_service.settings import Settings, Storage
from project_service.storage import assemble as storage
from project_service.tables import assemble as tables


class Mounted(Protocol):
    """A part that has routes."""

    def mount(self, router: Router) -> None: ...


@frozen
class Parts:
    """``ordered`` start in this order; ``reload`` takes over changed settings."""

    keys: KeyRing
    tokens: TokenVerifier
    mounted: Sequence[Mounted]
    ordered: list[Part]
    checks: Mapping[str, Check]
    translate: Callable[[BaseException], ApiError | None]
    reload: Callable[[Settings], None]


def connector(reactor: Any, settings: Settings) -> Connector:
    """Connections to the system database."""
    assert settings.database.dsn is not None
    return Connector(
        reactor,
        dsns.parse(settings.database.dsn.reveal()),
        settings.database.statement_timeout_seconds,
        timezone="UTC",
    )


def assemble(reactor: Any, settings: Settings, metrics: Metrics, processes: int) -> Parts:
    connect = connector(reactor, settings)
    database = settings.database
    pool = Pool(connect, database.pool_size, database.acquire_timeout_seconds, reactor)
    listener = Listener(connect, reactor)
    ring = keys.KeyRing(pool)
    listener.subscribe(
        keys.CHANNEL, lambda _: background(ring.reload(), "reading the project keys"), ring.reload
    )
    live = _Live(settings.storage)
    authentication = auth.assemble(settings, pool, listener, reactor, processes)

    store = storage.assemble(reactor, settings.storage, settings.store, pool, limits=lambda: live.storage)

    rest = tables.assemble(reactor, settings, authentication.verifier, reactor.seconds)

    async def database_works() -> None:
        await pool.query("select 1")

    async def tables_loaded() -> None:
        if not rest.ready:
            raise RuntimeError("a schema cache has not been read")

    async def listener_works() -> None:
        if not listener.current:
            raise RuntimeError("not listening")

    ordered: list[Part] = [
        Closing(pool.close),
        *(Closing(each.close) for each in rest.pools),
        ServicePart(listener),
        _Until(listener),
        store,
        *(ServicePart(service) for service in (*authentication.services, *store.services, *rest.services)),
    ]

    def reload(fresh: Settings) -> None:
        authentication.reload(fresh)
        live.storage = fresh.storage

    return Parts(
        keys=ring,
        tokens=authentication.verifier,
        mounted=[authentication, store, rest],
        ordered=ordered,
        checks={
            "database": database_works,
            "notifications": listener_works,
            "store": store.check,
            "tables": tables_loaded,
        },
        translate=sqlstate.translate,
        reload=reload,
    )


@define
class _Live:
    """Settings that SIGHUP may change, for parts that ask each time."""

    storage: Storage


@frozen
class _Until:
    """Keys and ended sessions are read before the first request is taken."""

    listener: Listener

    async def start(self) -> None:
        await self.listener.ready()

    async def stop(self) -> None:
        return None
