"""Metrics that are collected in batches are the same as if each request had been counted by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.http.metrics import _BUCKETS, GATHER_SECONDS, Metrics

SECONDS = "project_service_request_seconds"
LABELS = {"method": "GET", "route": "/x"}


class Gathering(TestCase):
    @given(st.lists(st.one_of(st.sampled_from(_BUCKETS), st.floats(0, 100)), max_size=20))
    def test_batched_observations_make_the_same_histogram_as_single_ones(
        self, seconds_each: list[float]
    ) -> None:
        metrics, registry = Metrics(), CollectorRegistry()
        single = Histogram(SECONDS, "", tuple(LABELS), buckets=_BUCKETS, registry=registry).labels(**LABELS)
        for seconds in seconds_each:
            metrics.observe("GET", "/x", 200, seconds, 3)
            single.observe(seconds)
        metrics.exposition()
        bounds = [*(str(bound) for bound in _BUCKETS), "+Inf"]
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
