"""A collector of traces: takes them by OTLP over HTTP and decodes the protobuf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from attrs import define, field, frozen
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@frozen
class CollectedSpan:
    """A span as it came. Ids are in hexadecimal; ``parent`` is "" for the first of a trace."""

    name: str
    trace: str
    id: str
    parent: str
    kind: str
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    began: int
    ended: int
    failed: bool
    state: str


@define(eq=False)
class Collector:
    """``url`` takes traces. ``status`` is what it answers; while ``held`` is not set it does not answer at all."""

    port: int = 0
    status: int = 200
    bodies: list[bytes] = field(factory=list)
    headers: list[dict[str, str]] = field(factory=list)
    spans: list[CollectedSpan] = field(factory=list)
    held: Event = field(factory=Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def named(self, name: str) -> list[CollectedSpan]:
        return [one for one in list(self.spans) if one.name == name]

    def trace(self, trace_id: str) -> list[CollectedSpan]:
        return [one for one in list(self.spans) if one.trace == trace_id]

    def take(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in headers.items()})
        message = ExportTraceServiceRequest.FromString(body)
        for of_resource in message.resource_spans:
            resource = _values(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                self.spans.extend(_collected(one, resource) for one in of_scope.spans)


def _collected(span: Any, resource: Mapping[str, Any]) -> CollectedSpan:
    return CollectedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        _values(span.attributes),
        resource,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == Status.STATUS_CODE_ERROR,
        span.trace_state,
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in pairs}


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """A collector on a free port, or on ``port``, for as long as the block lasts."""
    collector = Collector()
    collector.held.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.held.wait(60)
            if collector.status == 200 and self.path == "/v1/traces":
                collector.take(body, dict(self.headers.items()))
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # the name that the library has
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    collector.port = server.server_port
    serving = Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield collector
    finally:
        collector.held.set()
        server.shutdown()
        server.server_close()
        serving.join()
