"""A serving process from start to end with fake ports, its admission limits, and its knowledge of revocations."""

from __future__ import annotations

import json
from typing import Any, cast
from unittest.mock import Mock

from attrs import define, evolve, field
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import SynchronousTestCase, TestCase

from project_service import application
from project_service.application import (
    COMMIT_SECONDS,
    FRESH_SECONDS,
    MIN_STOP_SECONDS,
    POLL_SECONDS,
    Application,
    Assembled,
    Revocations,
    admission_limits,
    edge_settings,
)
from project_service.errors import ApiError
from project_service.http.caller import Callers
from project_service.http.connection import ConnectionFactory
from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Router
from project_service.lifecycle import start, to_its_end
from project_service.network import CannotListen
from project_service.settings.model import Server, Settings, Stage, StageDatabase
from tests.captured_log import captured_logs
from tests.fakes.common import (
    Client,
    FakeKeys,
    FakeRevocations,
    FakeTokens,
    MemoryTransport,
    held,
    parse_response,
    raw_request,
)
from tests.fakes.pools import StillPool
from tests.route_description import operation_at

SHUTDOWN = 5.0


@define(eq=False)
class FakePort:
    """A fake port and its binder."""

    name: str
    done: list[str]
    free: bool = True
    factory: ConnectionFactory | None = None

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
class FakePart:
    """A fake part with one route, whose responses wait."""

    done: list[str]
    answers: list[Deferred[None]] = field(factory=list)

    async def start(self) -> None:
        self.done.append("start")

    async def stop(self) -> None:
        self.done.append("stop")

    def mount(self, router: Router) -> None:
        router.route("/slow", operation_at(), methods=("GET",), key="optional")(self.slow)
        router.route("/commit", operation_at(), methods=("GET",), key="optional")(self.commit)

    async def slow(self, request: Request) -> Reply:
        self.answers.append(Deferred())
        await self.answers[-1]
        return envelope({})

    async def commit(self, request: Request) -> Reply:
        return await to_its_end(self.slow(request))

    def assembled(self) -> Assembled:
        return Assembled(
            Callers(FakeKeys(), FakeTokens(), FakeRevocations()),
            [self],
            [self],
            {},
            lambda _: None,
            Mock(),
            outboxes=[],
            pools={"system": cast(Any, StillPool())},
            readers={},
            buckets=Mock(),
            sources={},
            verifier=Mock(),
        )


class Case(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(10)
        self.done: list[str] = []
        self.part = FakePart(self.done)
        self.patch(application, "assemble", lambda *_: self.part.assembled())
        self.port, self.admin = FakePort("clients", self.done), FakePort("admin", self.done)

    def application(self, admin: bool = False, console: bool = False) -> Application:
        settings = Settings(server=Server(shutdown_seconds=SHUTDOWN, console=console))
        return Application(self.clock, settings, self.port.bind, self.admin.bind if admin else None)

    def started(self, admin: bool = False, console: bool = False) -> Application:
        made = self.application(admin, console)
        self.successResultOf(start(made.start()))
        return made

    def slow_client(self, path: str = "/slow") -> Client:
        client = self.port.connect(self.clock)
        client.send(raw_request("GET", path, {}, None))
        return client


class Starting(Case):
    def test_if_a_port_cannot_be_opened_the_parts_are_stopped(self) -> None:
        self.admin.free = False
        self.failureResultOf(start(self.application(admin=True).start()), CannotListen)
        self.assertEqual(self.done, ["start", "stop"])

    def test_with_admin_listen_health_and_metrics_are_served_only_there(self) -> None:
        self.started(admin=True)
        for path in ("/live", "/ready", "/health", "/metrics"):
            asked = [port.connect(self.clock).request("GET", path).status for port in (self.port, self.admin)]
            self.assertEqual(asked, [404, 200], path)
        self.assertEqual(self.admin.connect(self.clock).request("GET", "/slow").status, 404)

    def test_the_console_is_on_admin_listen_with_the_parts_that_it_asks(self) -> None:
        self.started(admin=True, console=True)
        asked = [
            port.connect(self.clock).request("GET", "/console").status for port in (self.port, self.admin)
        ]
        self.assertEqual(asked, [404, 200])
        client = self.admin.connect(self.clock)
        client.send(raw_request("GET", "/slow", {}, None))
        self.assertEqual(len(self.part.answers), 1)

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
        self.part.answers[0].callback(None)
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
        self.clock.advance(MIN_STOP_SECONDS)
        self.assertTrue(client.transport.aborted)
        self.successResultOf(stopping)
        self.assertEqual(self.done, ["start", "close clients", "stop"])

    def test_what_is_being_committed_at_the_end_of_shutdown_seconds_is_answered_as_it_ends(self) -> None:
        for late, status in ((COMMIT_SECONDS / 2, 200), (COMMIT_SECONDS, None)):
            self.setUp()
            made = self.started()
            client = self.slow_client("/commit")
            stopping = start(made.stop())
            self.clock.advance(SHUTDOWN)
            self.clock.advance(late)
            if status is None:
                self.clock.advance(MIN_STOP_SECONDS)
                self.assertTrue(client.transport.aborted)
            self.part.answers[0].callback(None)
            if status is not None:
                self.assertEqual(parse_response(client.received()).status, status)
                client.hang_up()
            self.successResultOf(stopping)


SETTINGS = Settings(
    stages={
        "dev": Stage({"main": StageDatabase(pool_size=4), "other": StageDatabase()}),
        "live": Stage({"main": StageDatabase()}),
    }
)


class AdmissionLimits(SynchronousTestCase):
    def test_each_part_and_each_database_has_an_admission_class(self) -> None:
        tables = {"tables:dev/main", "tables:dev/other", "tables:live/main"}
        self.assertEqual(
            set(admission_limits(SETTINGS, 2)), {"accounts", "auth", "passwords", "storage"} | tables
        )

    def test_trace_headers_are_those_of_the_databases_that_configure_one(self) -> None:
        traced = evolve(
            SETTINGS,
            stages={"dev": Stage({"a": StageDatabase(trace_header="X-Trace"), "b": StageDatabase()})},
        )
        self.assertEqual(edge_settings(traced).trace_headers, {"tables:dev/a": "X-Trace"})

    def test_a_class_has_a_slot_for_each_connection_and_two_more(self) -> None:
        limits = admission_limits(SETTINGS, 2)
        self.assertEqual(limits["tables:dev/main"].slots, 4 + 2)
        self.assertEqual(limits["tables:dev/other"].slots, 10 + 2)
        self.assertEqual(limits["auth"].slots, SETTINGS.database.pool_size + 2)
        self.assertEqual(limits["storage"].slots, SETTINGS.store.max_connections)
        few = evolve(SETTINGS, store=evolve(SETTINGS.store, max_connections=1))
        self.assertEqual(admission_limits(few, 2)["storage"].slots, 16)

    def test_hashing_has_two_slots_for_each_thread(self) -> None:
        self.assertEqual(admission_limits(SETTINGS, 3)["passwords"].slots, 6)

    def test_requests_wait_no_longer_than_for_a_connection(self) -> None:
        settings = evolve(SETTINGS, database=evolve(SETTINGS.database, acquire_timeout_seconds=1.5))
        for name, one in admission_limits(settings, 1).items():
            self.assertEqual(one.timeout_seconds, 1.5, name)


class CurrentRevocations(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.readings: list[Deferred[None]] = []
        self.revocations = Revocations(self.read, self.clock, timeout_seconds=5.0)

    async def read(self) -> None:
        await held(self.readings)

    def catch_up(self) -> Deferred[None]:
        return start(self.revocations.catch_up())

    def test_before_the_first_read_requests_wait(self) -> None:
        self.assertFalse(self.revocations.current)
        waiting = self.catch_up()
        self.assertNoResult(waiting)
        self.readings[0].callback(None)
        self.successResultOf(waiting)
        self.assertTrue(self.revocations.current)

    def test_revocations_are_current_for_a_second_from_the_beginning_of_their_read(self) -> None:
        self.catch_up()
        self.clock.advance(FRESH_SECONDS / 2)
        self.readings[0].callback(None)
        self.clock.advance(FRESH_SECONDS / 2)
        self.assertTrue(self.revocations.current)
        self.clock.advance(0.01)
        self.assertFalse(self.revocations.current)

    def test_two_polls_may_fail_before_requests_have_to_wait(self) -> None:
        self.catch_up()
        self.readings[0].callback(None)
        self.clock.advance(2 * POLL_SECONDS)
        self.assertTrue(self.revocations.current)

    def test_all_waiting_requests_share_the_next_read(self) -> None:
        first = self.catch_up()
        later = [self.catch_up() for _ in range(100)]
        self.assertEqual(len(self.readings), 1)
        self.readings[0].callback(None)
        self.successResultOf(first)
        # They asked after it had begun, when something may have been revoked already.
        for one in later:
            self.assertNoResult(one)
        self.assertEqual(len(self.readings), 2)
        self.readings[1].callback(None)
        for one in later:
            self.successResultOf(one)
        self.assertEqual(len(self.readings), 2)

    def test_a_failed_read_fails_the_waiting_requests_and_no_later_ones(self) -> None:
        first = self.catch_up()
        self.readings[0].errback(RuntimeError("the database is away"))
        self.failureResultOf(first, RuntimeError)
        self.assertFalse(self.revocations.current)
        again = self.catch_up()
        self.readings[1].callback(None)
        self.successResultOf(again)

    def test_a_request_waits_no_longer_than_configured(self) -> None:
        waiting = self.catch_up()
        self.clock.advance(5.0)
        self.assertEqual(self.failureResultOf(waiting, ApiError).value.code, "database_unavailable")
        self.readings[0].callback(None)

    def test_nothing_is_kept_of_who_gave_up_while_a_reading_hangs(self) -> None:
        self.catch_up().addErrback(lambda _: None)
        waiting = [self.catch_up() for _ in range(100)]
        self.clock.advance(5.0)
        for one in waiting:
            self.failureResultOf(one, ApiError)
        self.readings[0].callback(None)
        self.assertEqual(len(self.readings), 1, "nobody waits for another one")

    def test_a_cancelled_wait_does_not_stop_the_read_for_others(self) -> None:
        leaver, stayer = self.catch_up(), self.catch_up()
        leaver.cancel()
        leaver.addErrback(lambda _: None)
        self.readings[0].callback(None)
        self.readings[1].callback(None)
        self.successResultOf(stayer)

    def test_only_the_first_of_failed_polls_in_a_row_is_logged(self) -> None:
        with captured_logs() as events:
            for number in range(3):
                polling = start(self.revocations.poll())
                self.readings[number].errback(RuntimeError("away"))
                self.successResultOf(polling)
        self.assertEqual(
            [formatEvent(event) for event in events],
            ["revoked keys and sessions cannot be read: RuntimeError"],
        )
        polling = start(self.revocations.poll())
        self.readings[3].callback(None)
        self.successResultOf(polling)
        with captured_logs() as events:
            start(self.revocations.poll())
            self.readings[4].errback(RuntimeError("away again"))
        self.assertEqual(len(events), 1)
