"""One serving process: pools, parts, router and ports.

It is built from settings alone and keeps nothing that another process needs, so any number of them can run.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from project_service import __version__, parts
from project_service.database import sqlstate
from project_service.deferreds import all_of, with_timeout
from project_service.http.arrival import EdgeSettings
from project_service.http.date import HttpDate
from project_service.http.edge import Edge
from project_service.http.forwarding import parse_networks
from project_service.http.health import Check, Health
from project_service.http.metrics import Metrics
from project_service.http.openapi.route import OpenApi
from project_service.http.protocol.channel_factory import ChannelFactory
from project_service.http.router import Router
from project_service.lane_limits import lanes, trace_headers
from project_service.lifecycle import Ordered
from project_service.log.journal import RequestIds
from project_service.network.ports import Binder, close
from project_service.process import cpus, room_for_clients
from project_service.settings.model import Settings

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
        self._built: parts.Parts | None = None

    @property
    def addresses(self) -> list[Any]:
        """Where requests are taken, as ``IAddress`` values."""
        return [port.getHost() for port in self._ports]

    async def start(self) -> None:
        built = parts.assemble(self._reactor, self._settings, self._processes)
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

    async def _open(self, built: parts.Parts) -> None:
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

    async def _serve(self, binder: Binder, router: Router, built: parts.Parts, metrics: Metrics) -> None:
        """Open the ports of ``binder`` for the routes of ``router``."""
        most = room_for_clients(self._settings.server.max_connections)
        edge = Edge(
            router,
            built.callers,
            edge_settings(self._settings),
            self._reactor,
            RequestIds(secrets.token_bytes),
            metrics,
            sqlstate.translate,
            HttpDate(time.time),
            lanes(self._settings, cpus(self._processes)),
            log_later=self._reactor.callLater,
        )
        self._edges.append(edge)
        factory = ChannelFactory(edge, self._reactor, self._settings.server.idle_timeout_seconds, most)
        metrics.watch(edge.lanes, factory.connections, most)
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
