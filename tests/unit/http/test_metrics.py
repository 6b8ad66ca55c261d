"""Metrics that are collected in batches are the same as if each request had been counted by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.http.metrics import BUCKETS, GATHER_SECONDS, Metrics
from tests.fakes.pools import StillPool

SECONDS = "project_service_request_seconds"
LABELS = {"method": "GET", "route": "/x"}


class Gathering(TestCase):
    @given(st.lists(st.one_of(st.sampled_from(BUCKETS), st.floats(0, 100)), max_size=20))
    def test_batched_observations_make_the_same_histogram_as_single_ones(
        self, seconds_each: list[float]
    ) -> None:
        metrics, registry = Metrics(), CollectorRegistry()
        single = Histogram(SECONDS, "", tuple(LABELS), buckets=BUCKETS, registry=registry).labels(**LABELS)
        for seconds in seconds_each:
            metrics.observe("GET", "/x", 200, seconds, 3)
            single.observe(seconds)
        metrics.exposition()
        bounds = [*(str(bound) for bound in BUCKETS), "+Inf"]
        names = [(f"{SECONDS}_bucket", {**LABELS, "le": bound}) for bound in bounds] if seconds_each else []
        for name, labels in [*names, (f"{SECONDS}_count", LABELS)]:
            expected = registry.get_sample_value(name, labels)
            self.assertEqual(metrics.registry.get_sample_value(name, labels) or 0, expected, (name, labels))
        total = metrics.registry.get_sample_value(f"{SECONDS}_sum", LABELS) or 0
        self.assertAlmostEqual(total, sum(seconds_each))

    def test_batches_are_written_in_time_and_once(self) -> None:
        clock = Clock()
        metrics = Metrics(clock.callLater)
        value = metrics.registry.get_sample_value
        requests = ["one"]
        metrics.requests = requests
        for _ in range(3):
            metrics.observe("GET", "/x", 200, 0.1, 5)
        self.assertEqual(len(clock.getDelayedCalls()), 1)
        clock.advance(GATHER_SECONDS)
        self.assertEqual(value("project_service_requests_total", {**LABELS, "status": "200"}), 3)
        self.assertEqual(value("project_service_response_bytes_total", {"route": "/x"}), 15)
        self.assertEqual(value("project_service_requests_in_flight"), 1)
        requests.clear()
        metrics.gather()
        clock.advance(GATHER_SECONDS)
        self.assertEqual(value("project_service_requests_total", {**LABELS, "status": "200"}), 3)
        self.assertEqual(value("project_service_requests_in_flight"), 0)
        metrics.observe("GET", "/x", 200, 0.1, 5)
        clock.advance(GATHER_SECONDS)
        self.assertEqual(value("project_service_requests_total", {**LABELS, "status": "200"}), 4)
        self.assertEqual(value("project_service_response_bytes_total", {"route": "/x"}), 20)
        self.assertEqual(value(f"{SECONDS}_count", LABELS), 4)
        requests.append("other")
        metrics.gather()
        clock.advance(GATHER_SECONDS)
        self.assertEqual(value("project_service_requests_in_flight"), 1)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_methods_that_clients_make_up_do_not_make_series(self) -> None:
        metrics = Metrics()
        for method in ("GET", "BREW", "MADE-UP"):
            metrics.observe(method, "/x", 405, 0.1, 0)
        metrics.exposition()
        counts = [
            metrics.registry.get_sample_value(
                "project_service_requests_total", {"method": method, "route": "/x", "status": "405"}
            )
            for method in ("GET", "other", "BREW")
        ]
        self.assertEqual(counts, [1, 2, None])

    def test_a_series_appears_only_once_it_has_been_written(self) -> None:
        """In the files of several workers a series is seen as soon as it is made; one that is never written would
        stay at 0."""
        metrics = Metrics()
        metrics.observe("GET", "/ready", 200, 0.1, 5)
        self.assertNotIn(b"/ready", generate_latest(metrics.registry))
        self.assertIn(b"/ready", metrics.exposition())

    def test_connections_to_databases_are_shown_as_they_are_when_numbers_are_written(self) -> None:
        pool, metrics = StillPool(size=10, open=4, busy=3, waiting=2), Metrics()
        metrics.databases.watch_pools({"dev/main": pool})
        shown = {"connections_max": 10, "connections": 4, "connections_used": 3, "callers_waiting": 2}
        for expected in (shown, {**shown, "connections_used": 7}):
            pool.busy = expected["connections_used"]
            metrics.exposition()
            for name, count in expected.items():
                value = metrics.registry.get_sample_value(
                    f"project_service_database_{name}", {"pool": "dev/main"}
                )
                self.assertEqual(value, count, name)

    def test_slow_statements_are_counted_once(self) -> None:
        pool, metrics = StillPool(), Metrics()
        metrics.databases.watch_pools({"system": pool})
        for count in (0, 2, 2, 5):
            pool.slow.count = count
            metrics.exposition()
            value = metrics.registry.get_sample_value(
                "project_service_slow_statements_total", {"pool": "system"}
            )
            self.assertEqual(value, count)

    def test_reads_are_shown_by_the_server_that_they_were_sent_to(self) -> None:
        metrics, readers = Metrics(), FakeReaders()
        metrics.databases.watch_readers({"dev/main": readers})
        value = metrics.registry.get_sample_value
        for reads in (3, 5):
            readers.served["primary", "stale"] = reads
            metrics.exposition()
            labels = {"pool": "dev/main", "server": "primary", "reason": "stale"}
            self.assertEqual(value("project_service_reads_total", labels), reads)
        for seconds in (0.5, float("inf")):
            readers.staleness["db2:5432"] = seconds
            metrics.exposition()
            of_reader = {"pool": "dev/main", "reader": "db2:5432"}
            self.assertEqual(value("project_service_reader_staleness_seconds", of_reader), seconds)


class FakeReaders:
    def __init__(self) -> None:
        self.served: dict[tuple[str, str], int] = {}
        self.staleness: dict[str, float] = {}
