"""What ``/metrics`` shows (Prometheus text format). Labels are route patterns, never paths, keys or tokens.

With several workers each writes its numbers into files of a folder that ``PROMETHEUS_MULTIPROC_DIR`` names, and any
of them answers with the sums.
"""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """One registry a service; parts may add their own collectors to ``registry``."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.in_flight = Gauge(
            "project_service_requests_in_flight",
            "Requests being answered.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self._requests = Counter(
            "project_service_requests_total",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "project_service_request_seconds",
            "From the end of the headers to the end of the response.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._sent = Counter(
            "project_service_response_bytes_total",
            "Bytes of response bodies.",
            ("route",),
            registry=self.registry,
        )
        self._refused = Counter(
            "project_service_requests_refused_total",
            "Requests answered 503 at once, because there was too much to do.",
            ("part", "reason"),
            registry=self.registry,
        )
        self._refusals: dict[tuple[str, str], Counter] = {}
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram, Counter]] = {}

    def observe(self, method: str, route: str, status: int, seconds: float, sent: int) -> None:
        method = method if method in _METHODS else "other"
        series = self._series.get((method, route, status))
        if series is None:
            # Routes, methods and statuses are few, so these are too.
            series = self._series[method, route, status] = (
                self._requests.labels(method, route, str(status)),
                self._seconds.labels(method, route),
                self._sent.labels(route),
            )
        counted, timed, bytes_sent = series
        counted.inc()
        timed.observe(seconds)
        if sent:
            bytes_sent.inc(sent)

    def refused(self, part: str, reason: str) -> None:
        series = self._refusals.get((part, reason))
        if series is None:
            series = self._refusals[part, reason] = self._refused.labels(part, reason)
        series.inc()

    def exposition(self) -> bytes:
        if MULTIPROCESS not in os.environ:
            return generate_latest(self.registry)
        summed = CollectorRegistry()
        MultiProcessCollector(summed)
        return generate_latest(summed)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
