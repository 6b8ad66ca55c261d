"""A serving process from start to end, with fake parts and ports."""

from __future__ import annotations

import json
from typing import Any

from attrs import define, field
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service import application
from project_service.application import LEAST_SECONDS, Application, Parts
from project_service.http.caller import Callers
from project_service.http.connection import ChannelFactory
from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Router
from project_service.lifecycle import start
from project_service.network import CannotListen
from project_service.settings.model import Server, Settings
from tests.fakes.common import (
    Client,
    FakeKeys,
    FakeRevocations,
    FakeTokens,
    MemoryTransport,
    parse_response,
    raw_request,
)
from tests.route_description import operation_at

SHUTDOWN = 5.0


@define(eq=False)
class FakePort:
    """A fake port and its binder."""

    name: str
    done: list[str]
    free: bool = True
    factory: ChannelFactory | None = None

    async def bind(self, factory: Any) -> list[Any]:
        if not self.free:
            raise CannotListen(self.name)
        self.factory = factory
        return [self]

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", self.name, 80)

    def stopListening(self) -> None:
        self.done.append(f"close {self.name}")

    def connect(self, clock: Clock) -> Client:
        assert self.factory is not None
        transport = MemoryTransport()
        channel: Any = self.factory.buildProtocol(None)
        channel.makeConnection(transport)
        return Client(channel, transport, clock)


@define(eq=False)
class FakeParts:
    """Fake parts with one route, whose responses wait."""

    done: list[str]
    answers: list[Deferred[None]] = field(factory=list)

    async def start(self) -> None:
        self.done.append("start")

    async def stop(self) -> None:
        self.done.append("stop")

    def mount(self, router: Router) -> None:
        router.route("/slow", operation_at(), methods=("GET",), key="optional")(self.slow)

    async def slow(self, request: Request) -> Reply:
        self.answers.append(Deferred())
        await self.answers[-1]
        return envelope({})

    def assembled(self) -> Parts:
        return Parts(Callers(FakeKeys(), FakeTokens(), FakeRevocations()), [self], [self], {}, lambda _: None)


class Case(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(10)
        self.done: list[str] = []
        self.parts = FakeParts(self.done)
        self.patch(application, "assemble", lambda *_: self.parts.assembled())
        self.port, self.admin = FakePort("clients", self.done), FakePort("admin", self.done)

    def application(self, admin: bool = False) -> Application:
        settings = Settings(server=Server(shutdown_seconds=SHUTDOWN))
        return Application(self.clock, settings, self.port.bind, self.admin.bind if admin else None)

    def started(self, admin: bool = False) -> Application:
        made = self.application(admin)
        self.successResultOf(start(made.start()))
        return made

    def slow_client(self) -> Client:
        client = self.port.connect(self.clock)
        client.send(raw_request("GET", "/slow", {}, None))
        return client


class Starting(Case):
    def test_if_a_port_cannot_be_opened_the_parts_are_stopped(self) -> None:
        self.admin.free = False
        self.failureResultOf(start(self.application(admin=True).start()), CannotListen)
        self.assertEqual(self.done, ["start", "stop"])

    def test_with_admin_listen_health_and_metrics_are_served_only_there(self) -> None:
        self.started(admin=True)
        for path in ("/live", "/ready", "/metrics"):
            asked = [port.connect(self.clock).request("GET", path).status for port in (self.port, self.admin)]
            self.assertEqual(asked, [404, 200], path)
        self.assertEqual(self.admin.connect(self.clock).request("GET", "/slow").status, 404)

    def test_without_admin_listen_health_and_metrics_are_served_on_the_main_port(self) -> None:
        self.started()
        self.assertEqual(self.port.connect(self.clock).request("GET", "/metrics").status, 200)

    def test_ready_is_503_if_another_worker_is_away(self) -> None:
        async def away() -> None:
            raise RuntimeError

        made = Application(self.clock, Settings(), self.port.bind, peers=away)
        self.successResultOf(start(made.start()))
        answer = self.port.connect(self.clock).request("GET", "/ready")
        self.assertEqual(
            (answer.status, list(json.loads(answer.body)["error"]["details"])), (503, ["workers"])
        )

    def test_addresses_list_the_main_port_before_the_admin_port(self) -> None:
        self.assertEqual([each.host for each in self.started(admin=True).addresses], ["clients", "admin"])


class Stopping(Case):
    def test_stopping_closes_ports_first_and_finishes_requests_under_way(self) -> None:
        made = self.started(admin=True)
        busy, idle = self.slow_client(), self.port.connect(self.clock)
        stopping = start(made.stop())
        self.assertEqual(self.done, ["start", "close clients", "close admin"])
        self.clock.advance(SHUTDOWN - 0.1)
        self.parts.answers[0].callback(None)
        answer = parse_response(busy.received())
        self.assertEqual((answer.status, answer.header("connection")), (200, "close"))
        self.assertTrue(busy.transport.disconnecting)
        self.assertTrue(idle.transport.disconnecting)
        self.assertNoResult(stopping)
        for client in (busy, idle):
            client.hang_up()
        self.successResultOf(stopping)
        self.assertEqual(self.done[3:], ["stop"])

    def test_requests_still_running_after_shutdown_seconds_are_503_and_cut_off(self) -> None:
        made = self.started()
        client = self.slow_client()
        stopping = start(made.stop())
        self.clock.advance(SHUTDOWN)
        answer = parse_response(client.received())
        self.assertEqual((answer.status, json.loads(answer.body)["error"]["code"]), (503, "shutting_down"))
        self.assertFalse(client.transport.aborted)
        self.assertNoResult(stopping)
        self.clock.advance(LEAST_SECONDS)
        self.assertTrue(client.transport.aborted)
        self.successResultOf(stopping)
        self.assertEqual(self.done, ["start", "close clients", "stop"])
