"""What is recorded of requests as the edge sees them: waits for admission, how they end, and nothing of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, StatusCode
from twisted.trial.unittest import TestCase

from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.lifecycle import background
from project_service.tracing.context import Sampler
from project_service.tracing.seams import ADMISSION, TracedRequests
from project_service.tracing.spans import Recorder, Span, current
from tests.fakes.common import App, raw_request
from tests.http.edge.busy_app import SLOW, Busy
from tests.http.toy_app import app_of, hello

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def traceparent(number: int, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{number:032x}-{CALLER}-{flags}"}


def shown(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


class Traced(TestCase):
    def setUp(self) -> None:
        self.spans: list[ReadableSpan] = []

    def trace(self, app: App, ratio: float = 1.0) -> None:
        recorder = Recorder(self.spans.append, Resource({}), InstrumentationScope("test"))
        sampler = Sampler(ratio, 1.0, lambda: 0.5)
        app.edge._traces = TracedRequests(recorder, sampler, app.clock)

    def test_a_request_that_waited_for_its_turn_shows_for_how_long(self) -> None:
        busy = Busy()
        self.trace(busy.app)
        first, second = busy.fill()
        busy.app.clock.advance(2.0)
        busy.begun.pop().callback(None)
        busy.begun.pop().callback(None)
        self.assertIn(b"200", first.received())
        self.assertIn(b"200", second.received())
        [wait] = [one for one in self.spans if one.name == ADMISSION]
        self.assertEqual(shown(wait), {"project_service.admission_class": "storage"})
        [request] = [one for one in self.spans if one.context == wait.parent]
        self.assertEqual(request.name, f"GET {SLOW}")
        assert wait.start_time and wait.end_time
        self.assertGreaterEqual(wait.end_time - wait.start_time, 1_900_000_000)
        self.assertEqual(request.start_time, wait.start_time)
        self.assertEqual(len(self.spans), 3)

    def test_a_request_that_waits_again_once_its_body_has_come_shows_that_too(self) -> None:
        busy = Busy()
        self.trace(busy.app)
        reading = busy.app.connect()
        reading.send(raw_request("POST", "/storage/read", {"Content-Length": "2"}, None))
        other = busy.ask()
        reading.send(b"{}")
        busy.app.clock.advance(1.0)
        busy.begun.pop().callback(None)
        busy.begun.pop().callback(None)
        self.assertIn(b"200", reading.received())
        self.assertIn(b"200", other.received())
        [wait] = [one for one in self.spans if one.name == ADMISSION]
        [request] = [one for one in self.spans if one.context == wait.parent]
        self.assertEqual(request.name, "POST /storage/read")

    def test_one_that_made_room_for_another_has_nothing_of_it(self) -> None:
        """The second is answered within the call that ends the first."""
        busy, found = Busy(), list[Span | None]()
        slow = busy.slow

        async def looked(request: Request) -> Reply:
            found.append(current())
            return await slow(request)

        self.patch(busy, "slow", looked)
        app = app_of(looked, "/looked")
        self.trace(app, ratio=0.0)
        client = app.connect()
        client.send(raw_request("GET", "/looked", traceparent(7), None))
        client.send(raw_request("GET", "/looked", {}, None))
        busy.begun.pop().callback(None)
        busy.begun.pop().callback(None)
        traced, other = found
        assert traced is not None
        self.assertEqual(traced.trace_id, f"{7:032x}")
        self.assertIsNone(other)

    def test_what_runs_in_the_background_is_no_part_of_the_request(self) -> None:
        found: list[Span | None] = []

        async def beside() -> None:
            found.append(current())

        async def handler(request: Request) -> Reply:
            background(beside(), "something")
            found.append(current())
            return await hello(request)

        app = app_of(handler)
        self.trace(app)
        app.request("GET", "/x")
        self.assertIsNone(found[0])
        self.assertIsNotNone(found[1])

    def test_a_failure_of_the_service_is_an_error_and_a_refusal_is_none(self) -> None:
        async def broken(request: Request) -> Reply:
            raise KeyError("secret")

        app = app_of(broken)
        self.trace(app)
        self.assertEqual(app.request("GET", "/x").status, 500)
        self.flushLoggedErrors(KeyError)
        self.assertEqual(app.request("GET", "/absent").status, 404)
        failed, absent = self.spans
        self.assertEqual(failed.status.status_code, StatusCode.ERROR)
        self.assertEqual(shown(failed)["error.type"], "500")
        self.assertEqual((absent.name, absent.status.status_code), ("GET", StatusCode.UNSET))
        self.assertNotIn("error.type", shown(absent))

    def test_a_client_that_has_left_is_named_as_that(self) -> None:
        busy = Busy()
        self.trace(busy.app)
        busy.ask().hang_up()
        [span] = self.spans
        self.assertEqual(shown(span)["error.type"], "client_gone")
        self.assertNotIn("http.response.status_code", shown(span))

    def test_a_method_that_no_route_has_is_not_named(self) -> None:
        app = app_of(hello)
        self.trace(app)
        self.assertEqual(app.request("PROPFIND", "/x").status, 405)
        [span] = self.spans
        self.assertEqual(shown(span)["http.request.method"], "_OTHER")
        self.assertEqual((span.name, span.kind), ("HTTP /x", SpanKind.SERVER))

    def test_without_a_parent_and_beyond_the_ratio_nothing_is_recorded(self) -> None:
        app = app_of(hello)
        self.trace(app, ratio=0.5)
        app.request("GET", "/x")
        app.request("GET", "/x", traceparent(1, "00"))
        self.assertEqual(self.spans, [])
        app.request("GET", "/x", traceparent(1))
        self.assertEqual(len(self.spans), 1)
