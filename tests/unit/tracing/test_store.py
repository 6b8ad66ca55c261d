"""Requests to the store while one of a client is traced: what the store gets, and what is recorded of each try."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from attrs import define, field
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.lifecycle import start
from project_service.log import request_at_work
from project_service.settings.model import Secret, Store
from project_service.storage.s3.signing import EMPTY_SHA256, Address, Signer
from project_service.tracing.context import headers_of
from project_service.tracing.seams import TracedClient, TracedSender
from project_service.tracing.spans import Recorder, Span

NOW = datetime(2026, 11, 29, tzinfo=UTC)
SETTINGS = Store(
    endpoint_url="http://store.example.test",
    access_key_id="key",
    secret_access_key=Secret("secret"),
)


class Answer:
    code = 200
    headers: ClassVar[dict[bytes, bytes]] = {}

    def buffered(self) -> bytes:
        return b""

    def header(self, name: str) -> str:
        return ""


@define(eq=False)
class FakePool:
    """Keeps the heads of requests; the first ``failures`` of them fail."""

    failures: int = 0
    heads: list[bytes] = field(factory=list)

    def request(self, method: bytes, head: bytes, body: Any) -> Deferred[Any]:
        self.heads.append(head)
        if len(self.heads) <= self.failures:
            return fail(ConnectionLost())
        return succeed(Answer())


class OneRequest:
    request_id = "one"
    trace_id = ""

    def __init__(self, span: Span | None) -> None:
        self.span = span

    def outlined(self) -> str:
        return ""


class StoreRequests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.taken: list[ReadableSpan] = []
        self.pool = FakePool()
        address = Address(SETTINGS.endpoint_url or "", SETTINGS.bucket, "path")
        recorder = Recorder(self.taken.append, Resource({}), InstrumentationScope("test"))
        pool: Any = self.pool
        sender = TracedSender(pool, self.clock, address, Signer.of(SETTINGS), lambda: NOW, recorder=recorder)
        self.client = TracedClient(sender, self.clock, 60.0, 5.0, lambda: 0.5)

    def send(self, *spans: Span | None) -> list[dict[str, str]]:
        """Send requests within each of the spans at the same time. Returns the headers of each try, by names in
        lower case."""

        async def within(span: Span | None) -> None:
            request_at_work.set(OneRequest(span))
            await self.client.send("GET", "key")

        sending = [start(within(span)) for span in spans]
        self.clock.pump([0.1] * 20)
        for one in sending:
            self.successResultOf(one)
        lines = [head.decode().split("\r\n")[1:-2] for head in self.pool.heads]
        return [
            {name.lower(): value for name, _, value in (line.partition(": ") for line in head)}
            for head in lines
        ]

    def test_the_store_gets_the_span_of_the_request_to_it_and_the_signature_is_of_all_else(self) -> None:
        span = Span.of_request(None, True, 0)
        [headers] = self.send(span)
        [recorded] = self.taken
        assert recorded.context is not None
        self.assertEqual(headers["traceparent"], headers_of(recorded.context)["traceparent"])
        self.assertEqual(recorded.parent, span.context)
        signed = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        self.assertIn("host", signed)
        self.assertNotIn("traceparent", signed)
        address = self.client.sender.address
        plain = {"host": address.host, "user-agent": "project-service"}
        url = address.url("key", None)
        again = self.client.sender.signer.headers("GET", url, plain, EMPTY_SHA256, NOW)
        self.assertEqual(headers["authorization"], again["Authorization"])

    def test_a_trace_that_is_not_sampled_is_passed_on_and_not_recorded(self) -> None:
        [headers] = self.send(Span.of_request(None, False, 0))
        self.assertRegex(headers["traceparent"], r"\A00-[0-9a-f]{32}-[0-9a-f]{16}-0[02]\Z")
        self.assertEqual(self.taken, [])

    def test_outside_of_a_trace_nothing_is_sent(self) -> None:
        [headers] = self.send(None)
        self.assertNotIn("traceparent", headers)
        self.assertEqual(self.taken, [])

    def test_after_its_request_has_ended_nothing_belongs_to_it(self) -> None:
        span = Span.of_request(None, True, 0)
        span.ended = True
        [headers] = self.send(span)
        self.assertNotIn("traceparent", headers)

    def test_each_try_is_a_span_of_its_own_with_its_number(self) -> None:
        self.pool.failures = 2
        tries = self.send(Span.of_request(None, True, 0))
        self.assertEqual(len({headers["traceparent"] for headers in tries}), 3)
        shown = [dict(one.attributes or {}) for one in self.taken]
        self.assertEqual([one.get("http.request.resend_count") for one in shown], [None, 1, 2])
        self.assertEqual([one.get("error.type") for one in shown], ["ConnectionLost"] * 2 + [None])
        self.assertEqual([one.get("http.response.status_code") for one in shown], [None, None, 200])

    def test_requests_at_the_same_time_count_their_own_tries(self) -> None:
        self.pool.failures = 2
        spans = [Span.of_request(None, True, 0) for _ in range(2)]
        self.send(*spans)
        shown = [
            (one.parent, dict(one.attributes or {}).get("http.request.resend_count")) for one in self.taken
        ]
        first, second = (span.context for span in spans)
        self.assertEqual(shown, [(first, None), (second, None), (first, 1), (second, 1)])
