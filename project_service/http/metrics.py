"""What ``/metrics`` shows (Prometheus text format). Labels are route patterns, never paths, keys or tokens.

With several workers, each writes its numbers into files in the folder that ``PROMETHEUS_MULTIPROC_DIR`` names, and
any of them responds with the sums. Writing them for every request would add a tenth to the cost of a small one, so
they are gathered in memory and written once in ``GATHER_SECONDS``; workers see each other's numbers that much later.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping

from attrs import define, field
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

from project_service.errors import ApiError
from project_service.http.admission import AdmissionClass
from project_service.http.database_metrics import DatabaseMetrics
from project_service.http.head import METHODS

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

GATHER_SECONDS = 1.0
_METHODS = frozenset(METHODS)
# The upper bounds, in seconds, of what is counted together of how long requests take.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# So many codes are told apart; SQL may answer with any, so that there is no end to them.
MAX_CODES = 100

Later = Callable[[float, Callable[[], None]], object]


@define
class Tally:
    """What this process has counted since its start: ``requests``, those that were refused (status 400 to 499) and
    that failed (500 and above), how many took how long (``BUCKETS``), and errors by status and code, with a blank
    between."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    buckets: list[int] = field(factory=lambda: [0] * (len(BUCKETS) + 1))
    codes: dict[str, int] = field(factory=dict)

    def add(self, status: int, series: _Series) -> None:
        self.requests += series.requests
        if status >= 500:
            self.failed += series.requests
        elif status >= 400:
            self.refused += series.requests
        self.buckets = [sum(pair) for pair in zip(self.buckets, series.buckets, strict=True)]


@define
class _Series:
    """The requests of one method, route and status, and what has been gathered of them since the last writing."""

    requests: int = 0
    seconds: float = 0.0
    bytes_sent: int = 0
    buckets: list[int] = field(factory=lambda: [0] * (len(BUCKETS) + 1))

    def write(self, counted: Counter, timed: Histogram, sent: Counter) -> None:
        counted.inc(self.requests)
        sent.inc(self.bytes_sent)
        # The library cannot observe many values at once. A test compares this with its own ``observe``.
        timed._sum.inc(self.seconds)
        for value, count in zip(timed._buckets, self.buckets, strict=True):
            if count:
                value.inc(count)
        self.requests, self.seconds, self.bytes_sent = 0, 0.0, 0
        self.buckets = [0] * len(self.buckets)


class Metrics:
    """The numbers of this process; ``registry`` has them as they were last written.

    ``later`` is the reactor's ``callLater``; without it the numbers are written when ``exposition`` asks for them.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, later: Later | None = None) -> None:
        self.registry = CollectorRegistry()
        self._later = later
        self.gathering = False
        self._in_flight = self._gauge("requests_in_flight", "Requests being answered.")
        self._requests = self._counter("requests_total", "Requests answered.", "method", "route", "status")
        self._seconds = Histogram(
            "project_service_request_seconds",
            "From the end of the headers to the end of the response.",
            ("method", "route"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._sent = self._counter("response_bytes_total", "Bytes of response bodies.", "route")
        why = "Requests and connections refused, because there was too much to do."
        self._refused = self._counter("requests_refused_total", why, "part", "reason")
        why = "Answers of 500 and above, and streams broken off, by what was wrong."
        self._failures = self._counter("failures_total", why, "code")
        # It may fail once in a year, and the first time is to be seen as an increase, as that of a refusal is.
        self._failures.labels("internal_error")
        why = "Pictures that were requested in another size or format, by outcome."
        self._renditions = self._counter("renditions_total", why, "outcome")
        for outcome in ("stored", "made", "refused"):
            self._renditions.labels(outcome)
        self._stored = 0
        self._rendition_seconds = Histogram(
            "project_service_rendition_seconds",
            "How long pictures took that were made or refused, from their process on.",
            ("outcome",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        why = "Spans of traces, by outcome: exported, or lost."
        self._spans = self._counter("trace_spans_total", why, "outcome")
        for outcome in ("made", "refused"):
            self._rendition_seconds.labels(outcome)
        self._mails = self._counter("mails_total", "Tries to send an e-mail, by outcome.", "outcome")
        for outcome in ("sent", "refused", "given_up"):
            self._mails.labels(outcome)
        self._places = self._gauge("places", "Requests that may be served at once.", "part")
        self._taken = self._gauge("places_taken", "Requests being served.", "part")
        self._queued = self._gauge("requests_waiting", "Requests that wait for a place.", "part")
        self._clients = self._gauge("connections", "Connections of clients.")
        self._max_clients = self._gauge("connections_max", "Connections of clients that there may be.")
        self._processes = self._gauge("processes", "Processes that serve.")
        self.databases = DatabaseMetrics(self.registry)
        self._classes: Mapping[str, AdmissionClass] = {}
        # The requests that are being answered, or that wait for their turn; the edge sets and changes it.
        self.requests: Collection[object] = ()
        self._connections: Collection[object] = ()
        self._series: dict[tuple[str, str, int], _Series] = {}
        self._tally = Tally()

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"project_service_{name}", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        """A gauge that shows the sum over the processes that are alive."""
        return Gauge(
            f"project_service_{name}", help_text, labels, registry=self.registry, multiprocess_mode="livesum"
        )

    def watch(
        self, classes: Mapping[str, AdmissionClass], connections: Collection[object], max_connections: int
    ) -> None:
        """Record how much of ``classes`` and ``connections`` is in use whenever numbers are written."""
        self._classes, self._connections = classes, connections
        self._max_clients.set(max_connections)
        self._processes.set(1)
        for part, limited in classes.items():
            self._places.labels(part).set(limited.limits.slots)
            for reason in ("late", "full"):
                self._refused.labels(part, reason)
        self._refused.labels("-", "connections")

    def observe(self, method: str, route: str, status: int, seconds: float, sent: int) -> None:
        method = method if method in _METHODS else "other"
        series = self._series.get((method, route, status))
        if series is None:
            # Routes, methods and statuses are few, so these are too.
            series = self._series[method, route, status] = _Series()
        series.requests += 1
        series.seconds += seconds
        series.bytes_sent += sent
        series.buckets[bisect_left(BUCKETS, seconds)] += 1
        if not self.gathering:
            self.gather()

    def refused(self, part: str, reason: str) -> None:
        """Count a request that was refused with ``overloaded``; ``part`` is its admission class."""
        self._refused.labels(part, reason).inc()

    def rendition(self, outcome: str, seconds: float) -> None:
        """Count a picture in another size or format. ``outcome``: "stored" if it had been made before, "made", or
        "refused" if it cannot be."""
        if outcome == "stored":
            # Written with the numbers of the request.
            self._stored += 1
            return
        self._renditions.labels(outcome).inc()
        self._rendition_seconds.labels(outcome).observe(seconds)

    def spans(self, outcome: str, count: int) -> None:
        """Count spans that were "exported", or lost: "queue_full", "not_taken" by the collector, or "stopped" as the
        process was. May be called in any thread."""
        self._spans.labels(outcome).inc(count)

    def mail(self, outcome: str) -> None:
        """Count a try to send an e-mail: "sent", "refused" if it is tried again, or "given_up"."""
        self._mails.labels(outcome).inc()

    def failed(self, error: ApiError) -> None:
        codes = self._tally.codes
        code = f"{error.status} {error.code}"
        if code not in codes and len(codes) >= MAX_CODES:
            code = f"{error.status} other"
        codes[code] = codes.get(code, 0) + 1
        if error.status >= 500 and error.code != "shutting_down":
            # Not all by their code, because SQL may answer with any.
            self._failures.labels(error.code if error.counted else "other").inc()

    def gather(self) -> None:
        """Write the numbers within ``GATHER_SECONDS``."""
        if not self.gathering and self._later is not None:
            self.gathering = True
            self._later(GATHER_SECONDS, self._write)

    def _write(self) -> None:
        self.gathering = False
        self._in_flight.set(len(self.requests))
        if self._stored:
            self._renditions.labels("stored").inc(self._stored)
            self._stored = 0
        for part, limited in self._classes.items():
            self._taken.labels(part).set(limited.served)
            self._queued.labels(part).set(limited.waiting)
        self._clients.set(len(self._connections))
        self.databases.write()
        for (method, route, status), series in self._series.items():
            if series.requests:
                self._tally.add(status, series)
                # ``labels`` makes a series, which is shown from then on, also by other processes. So it is made only
                # once there is something to write.
                series.write(
                    self._requests.labels(method, route, str(status)),
                    self._seconds.labels(method, route),
                    self._sent.labels(route),
                )

    @property
    def clients(self) -> int:
        """How many connections of clients there are."""
        return len(self._connections)

    @property
    def waiting(self) -> int:
        """How many requests wait for their turn."""
        return sum(limited.waiting for limited in self._classes.values())

    def tally(self) -> Tally:
        """What has been counted up to now. It is not to be changed."""
        self._write()
        return self._tally

    def exposition(self) -> bytes:
        self._write()
        if MULTIPROCESS not in os.environ:
            return generate_latest(self.registry)
        summed = CollectorRegistry()
        MultiProcessCollector(summed)
        return generate_latest(summed)
