"""What the edge logs and counts for each request."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.errors import ApiError
from project_service.http.admission import AdmissionClass, LimitedSlot, Limits, Refusals
from project_service.http.metrics import Metrics
from project_service.http.request import Request
from project_service.http.response import Reply, Sink, StreamReply
from project_service.http.routing import Router
from project_service.log import BATCH_SECONDS
from project_service.storage.errors import store_unavailable
from tests.captured_log import logged_until_the_end
from tests.fakes.common import App, held, raw_request
from tests.route_description import operation_at

GET = b"GET /x?token=secret HTTP/1.1\r\nHost: a\r\nX-Request-Id: %s\r\n\r\n"


class Logged(TestCase):
    def setUp(self) -> None:
        self.gates: list[Deferred[None]] = []
        self.events = logged_until_the_end(self)
        router = Router()
        router.route("/x", operation_at(), methods=("GET",), key="optional")(self.handler)
        self.app = App(router, gathers_log=True)

    async def handler(self, request: Request) -> Reply:
        if request.request_id == "slow":
            await held(self.gates)
        return Reply(200, (), b"{}")

    @property
    def lines(self) -> list[str]:
        text = "\n".join(str(formatEvent(event)) for event in self.events if "access" in event)
        return text.splitlines()

    def ask(self, *ids: bytes) -> None:
        client = self.app.connect()
        for request_id in ids:
            client.send(GET % request_id)

    def test_every_request_has_one_line_however_it_was_read(self) -> None:
        """Also where its header lines were not parsed again, and where there was no request to be read."""
        self.ask(b"a", b"a", b"b")
        client = self.app.connect()
        client.send(b"BREW /x HTTP/1.1\r\nHost: a\r\n\r\n")
        self.assertEqual(self.lines, [])
        self.app.clock.advance(BATCH_SECONDS)
        self.assertEqual([line.rpartition("id=")[2] for line in self.lines], ["a", "a", "b", "made-here"])
        self.assertNotIn("secret", "".join(self.lines))

    def test_nothing_is_lost_when_the_service_stops(self) -> None:
        self.ask(b"a")
        self.ask(b"slow")
        self.app.edge.close_connections()
        self.assertEqual(len(self.lines), 1)
        # Who is answered from now on is logged at once: the reactor may not come to it any more.
        self.gates.pop().callback(None)
        self.assertEqual([line.rpartition("id=")[2] for line in self.lines], ["a", "slow"])
        self.app.clock.advance(BATCH_SECONDS)
        self.assertEqual(len(self.lines), 2)

    def test_who_left_before_the_answer_is_logged_as_499(self) -> None:
        client = self.app.connect()
        client.send(GET % b"slow")
        client.hang_up()
        self.app.clock.advance(BATCH_SECONDS)
        (line,) = self.lines
        self.assertIn(" 499 ", line)


FAILURES: dict[str, Exception] = {
    "store": store_unavailable(),
    "database": errors.database_unavailable(),
    "ours": ZeroDivisionError(),
    "functions": ApiError(503, "PT503", "What a function of a database says."),
    "mine": ApiError(404, "not_found", "No failure."),
}


class Failures(TestCase):
    def setUp(self) -> None:
        router = Router()
        for name in ("refuse", "stream", "wait", "broken"):
            url = f"/{name}/<path:what>"
            router.route(url, operation_at(url), methods=("GET",), key="optional")(getattr(self, name))
        self.app = App(router)

    async def refuse(self, request: Request) -> Reply:
        raise FAILURES[request.path_args["what"]]

    async def stream(self, request: Request) -> StreamReply:
        async def source(sink: Sink) -> None:
            raise FAILURES[request.path_args["what"]]

        return StreamReply(200, (), None, source)

    async def wait(self, request: Request) -> Reply:
        waiting: Deferred[None] = Deferred()
        await waiting
        raise AssertionError

    async def broken(self, request: Request) -> Reply:
        return Reply(200, (("X-Broken", "a\r\nb"),), b"")

    def counted(self) -> dict[str, float]:
        """How often each code was counted, of those that were."""
        return {code: count for code, count in self.shown().items() if count}

    def shown(self) -> dict[str, float]:
        return {
            one.labels["code"]: one.value
            for family in self.app.metrics.registry.collect()
            for one in family.samples
            if one.name == "project_service_failures_total"
        }

    def test_a_first_fault_of_the_service_is_an_increase(self) -> None:
        """A counter that begins with 1 has not increased for Prometheus."""
        self.assertEqual(self.shown(), {"internal_error": 0})

    def test_failures_are_counted_by_code(self) -> None:
        for name in FAILURES:
            self.app.request("GET", f"/refuse/{name}")
        self.assertEqual(
            self.counted(),
            {"store_unavailable": 1, "database_unavailable": 1, "internal_error": 1, "other": 1},
        )
        self.flushLoggedErrors(ZeroDivisionError)

    def test_a_stream_that_breaks_off_is_a_failure_though_its_status_was_200(self) -> None:
        for name in ("store", "ours"):
            self.app.connect().send(raw_request("GET", f"/stream/{name}", {}, None))
        self.assertEqual(self.counted(), {"store_unavailable": 1, "internal_error": 1})
        self.flushLoggedErrors(ZeroDivisionError)

    def test_a_reply_that_cannot_be_sent_is_a_failure(self) -> None:
        self.assertEqual(self.app.request("GET", "/broken/x").status, 500)
        self.assertEqual(self.counted(), {"internal_error": 1})

    def test_a_client_that_leaves_is_no_failure(self) -> None:
        client = self.app.connect()
        client.send(raw_request("GET", "/wait/x", {}, None))
        client.hang_up()
        self.assertEqual(self.counted(), {})


class RequestBody(TestCase):
    def test_slots_queues_and_connections_are_read_when_metrics_are_written(self) -> None:
        metrics, clock = Metrics(), Clock()
        limited = AdmissionClass("auth", Limits(1, 1.0), clock, Refusals(clock, metrics.refused))
        clients: set[int] = set()
        metrics.watch({"auth": limited}, clients, 100)
        for _ in range(3):
            slot = LimitedSlot(limited)
            if not slot.take_if_free():
                slot.wait("", 1)
        clients.update((1, 2))
        metrics.exposition()

        def value(name: str, **labels: str) -> float | None:
            return metrics.registry.get_sample_value(f"project_service_{name}", labels)

        self.assertEqual(value("places", part="auth"), 1)
        self.assertEqual(value("places_taken", part="auth"), 1)
        self.assertEqual(value("requests_waiting", part="auth"), 2)
        self.assertEqual((value("connections"), value("connections_max")), (2, 100))
        self.assertEqual(value("processes"), 1)
        # A counter that begins with 1 has not increased for Prometheus.
        for part, reason in (("auth", "late"), ("auth", "full"), ("-", "connections")):
            self.assertEqual(value("requests_refused_total", part=part, reason=reason), 0, reason)
