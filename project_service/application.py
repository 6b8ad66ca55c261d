"""One serving process: pools, parts, router, ports. Built from settings alone, so any number can run."""

from __future__ import annotations

import secrets
import uuid
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from project_service import keys
from project_service.database import dsn as dsns
from project_service.database.connect import Connector
from project_service.database.listener import Listener
from project_service.database.pool import Pool
from project_service.deferreds import with_timeout
from project_service.http.channel import ChannelFactory
from project_service.http.clock import HttpDate
from project_service.http.edge import Edge
from project_service.http.health import Check, Health
from project_service.http.metrics import Metrics
from project_service.http.router import Router
from project_service.lifecycle import Closing, Ordered, Part, ServicePart
from project_service.ports import Binder
from project_service.settings import Settings


class Application:
    """A ``Part``: ``start`` returns when requests are answered, ``stop`` when the last one has been."""

    log = Logger()

    def __init__(self, reactor: Any, settings: Settings, binder: Binder) -> None:
        self._reactor = reactor
        self._settings = settings
        self._binder = binder
        self._ports: list[IListeningPort] = []
        self._parts = Ordered([])
        self.edge: Edge | None = None

    @property
    def addresses(self) -> list[Any]:
        """Where requests are taken, as ``IAddress`` values."""
        return [port.getHost() for port in self._ports]

    async def start(self) -> None:
        settings = self._settings
        metrics = Metrics()
        assert settings.database.dsn is not None
        connector = Connector(
            self._reactor,
            dsns.parse(settings.database.dsn.reveal()),
            settings.database.statement_timeout_seconds,
            timezone="UTC",
        )
        pool = Pool(
            connector, settings.database.pool_size, settings.database.acquire_timeout_seconds, self._reactor
        )
        listener = Listener(connector, self._reactor)
        ring = keys.KeyRing(pool)
        listener.subscribe(
            keys.CHANNEL, lambda _: self._in_background(ring.reload, "reading the project keys"), ring.reload
        )
        # PARTS
        router = Router()
        checks: dict[str, Check] = {"database": _database_check(pool)}
        Health(checks, metrics, self._reactor).mount(router)
        self.edge = Edge(
            router,
            ring,
            _NoTokens(),
            edge_settings(settings),
            self._reactor,
            lambda: uuid.UUID(bytes=secrets.token_bytes(16)).hex,
            metrics,
            translate,
            HttpDate(self._reactor),
        )
        parts: list[Part] = [Closing(pool.close), ServicePart(listener)]
        self._parts = Ordered(parts)
        await self._parts.start()
        factory = ChannelFactory(self.edge, self._reactor, settings.server.idle_timeout_seconds)
        self._ports = await self._binder(factory)

    async def stop(self) -> None:
        """Stop accepting, let what is under way finish for ``shutdown_seconds``, then close everything."""
        for port in self._ports:
            await _maybe(port.stopListening())
        if self.edge is not None:
            seconds = self._settings.server.shutdown_seconds
            try:
                await with_timeout(self._reactor, seconds, self.edge.drained(), TimeoutError)
            except (TimeoutError, CancelledError):
                self.log.warn("requests were still under way after {seconds} s", seconds=seconds)
                self.edge.cancel_all()
        await self._parts.stop()
