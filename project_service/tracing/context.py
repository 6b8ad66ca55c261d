"""Which trace a request is part of: the headers ``traceparent`` and ``tracestate`` (W3C, "Trace Context"). Pure."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from opentelemetry.trace import SpanContext, TraceFlags, format_span_id, format_trace_id, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from project_service.http.head import HeaderView

_PROPAGATOR = TraceContextTextMapPropagator()
_SAMPLED, _RANDOM = TraceFlags.SAMPLED, 0x02
# As much of tracestate as everybody has to pass on (section 3.3.1.5). What is longer may be sixteen kilobytes, which
# every span would keep until it is exported, and which stores refuse: S3 takes heads of eight.
MAX_STATE = 512


def parent_of(headers: HeaderView) -> SpanContext | None:
    """The span of the caller's that a request belongs to; None if it names none. An invalid ``traceparent``, or more
    than one, is as good as none. A ``tracestate`` that is invalid, or longer than ``MAX_STATE``, is left out (section
    3.2.2, "Mutating")."""
    sent, state = headers.all(b"traceparent"), headers.all(b"tracestate")
    if len(sent) != 1:
        return None
    carrier = {
        "traceparent": [sent[0].decode("latin-1")],
        "tracestate": [value.decode("latin-1") for value in state]
        if len(b",".join(state)) <= MAX_STATE
        else [],
    }
    context = get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
    return context if context.is_valid else None


def headers_of(context: SpanContext) -> dict[str, str]:
    """The headers by which a request that we make belongs to the span ``context``."""
    trace_id, span_id = format_trace_id(context.trace_id), format_span_id(context.span_id)
    headers = {"traceparent": f"00-{trace_id}-{span_id}-{context.trace_flags:02x}"}
    if context.trace_state:
        headers["tracestate"] = context.trace_state.to_header()
    return headers


@frozen
class Sampler:
    """Which requests are traced: ``ratio`` of those without a parent, and ``parent_ratio`` of those whose parent is
    sampled. ``random`` returns numbers from 0 to 1.

    A client chooses the ids of its own traces, so these have no say in it.
    """

    ratio: float
    parent_ratio: float
    random: Callable[[], float]

    def samples(self, parent: SpanContext | None) -> bool:
        if parent is None:
            return self.random() < self.ratio
        return parent.trace_flags.sampled and self.random() < self.parent_ratio


def flags(sampled: bool, parent: SpanContext | None) -> TraceFlags:
    """The flags of a span of ours. Whether the trace's id is random is known to whoever made it."""
    random = _RANDOM if parent is None else parent.trace_flags & _RANDOM
    return TraceFlags(random | _SAMPLED if sampled else random)
