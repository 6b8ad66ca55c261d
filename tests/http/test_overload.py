"""Admission over HTTP: beyond the places and the queue there is 503 at once, what was admitted is served, and what
has left makes room."""

from __future__ import annotations

import json

from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.http.metrics import Metrics
from project_service.http.overload.admission import LEAST_PAUSE_SECONDS
from tests.fakes import Client, parse_response, raw_request
from tests.http.busy_app import PATIENCE, SLOW, TABLE, Busy
from tests.said import captured_logs


class Refused(TestCase):
    def test_beyond_the_queue_requests_get_503_with_retry_after(self) -> None:
        busy = Busy()
        busy.fill()
        refused = busy.app.request("GET", SLOW, {"Origin": "https://a.example", "X-Request-Id": "mine"})
        self.assertEqual((refused.status, refused.header("retry-after")), (503, "2"))
        self.assertEqual(json.loads(refused.body)["error"]["code"], "overloaded")
        self.assertEqual(refused.header("x-request-id"), "mine")
        self.assertEqual(refused.header("access-control-allow-origin"), "*")
        self.assertEqual(len(busy.begun), 1, "no handler saw it")

    def test_on_a_table_path_the_503_has_postgrests_members(self) -> None:
        busy = Busy()
        busy.ask(TABLE)
        busy.ask(TABLE)
        refused = busy.app.request("GET", TABLE)
        self.assertEqual(refused.status, 503)
        self.assertEqual(sorted(json.loads(refused.body)), ["code", "details", "hint", "message"])
        self.assertEqual(json.loads(refused.body)["code"], "overloaded")

    def test_parts_have_places_of_their_own_and_health_needs_none(self) -> None:
        busy = Busy()
        busy.fill()
        self.assertEqual(busy.app.request("GET", SLOW).status, 503)
        for target in ("/live", "/ready", "/metrics", "/nothing"):
            self.assertNotEqual(busy.app.request("GET", target).status, 503, target)
        busy.ask("/auth/user")
        self.assertEqual(len(busy.begun), 2)

    def test_refusals_are_counted_by_part_and_reason(self) -> None:
        busy = Busy()
        busy.fill()
        busy.app.request("GET", SLOW)
        busy.app.request("GET", SLOW)
        self.assertIn(_counted("storage", "full", 2), _metrics(busy.app.metrics))

    def test_refusals_are_logged_once_a_second(self) -> None:
        busy = Busy()
        busy.fill()
        with captured_logs() as events:
            for seconds in (0.0, 0.5, 0.4, 0.1, 0.0, 1.0):
                busy.app.clock.advance(seconds)
                self.assertEqual(busy.app.request("GET", SLOW).status, 503)
        said = [formatEvent(event) for event in events]
        self.assertEqual(said, [f"overloaded: {count} refused" for count in (1, 3, 2)])

    def test_an_upload_is_refused_before_it_is_sent(self) -> None:
        busy = Busy()
        busy.fill()
        client = busy.app.connect()
        head = {"Content-Length": "1000000000", "Expect": "100-continue"}
        client.send(raw_request("POST", "/storage/echo", head, None))
        self.assertEqual(parse_response(client.received()).status, 503)


class Waiting(TestCase):
    def test_a_waiting_request_is_served_when_a_place_is_free(self) -> None:
        busy = Busy()
        first, second = busy.fill()
        self.assertEqual(len(busy.begun), 1)
        busy.begun[0].callback(None)
        self.assertEqual(parse_response(first.received()).status, 200)
        self.assertEqual(len(busy.begun), 2)
        busy.begun[1].callback(None)
        self.assertEqual(parse_response(second.received()).status, 200)

    def test_a_request_does_not_wait_beyond_the_patience(self) -> None:
        busy = Busy()
        _, second = busy.fill()
        busy.app.clock.advance(PATIENCE)
        refused = parse_response(second.received())
        self.assertEqual((refused.status, refused.header("retry-after")), (503, "2"))
        self.assertEqual(json.loads(refused.body)["error"]["code"], "overloaded")
        self.assertIn(_counted("storage", "late", 1), _metrics(busy.app.metrics))
        busy.begun[0].callback(None)
        self.assertEqual(len(busy.begun), 1, "it is not served afterwards")

    def test_a_client_that_leaves_makes_room(self) -> None:
        busy = Busy()
        first, second = busy.fill()
        second.hang_up()
        third = busy.ask()
        first.hang_up()
        self.assertEqual(len(busy.begun), 2)
        busy.begun[1].callback(None)
        self.assertEqual(parse_response(third.received()).status, 200)

    def test_stopping_waits_for_queued_requests_too(self) -> None:
        busy = Busy()
        busy.fill()
        drained: list[None] = []
        busy.app.edge.drained().addCallback(drained.append)
        busy.begun[0].callback(None)
        self.assertEqual(drained, [])
        busy.begun[1].callback(None)
        self.assertEqual(drained, [None])

    def test_at_the_end_of_the_shutdown_queued_requests_get_503(self) -> None:
        busy = Busy()
        _, second = busy.fill()
        busy.app.edge.cancel_all()
        refused = parse_response(second.received())
        self.assertEqual((refused.status, json.loads(refused.body)["error"]["code"]), (503, "shutting_down"))
        self.assertEqual(len(busy.begun), 1)

    def test_the_request_for_metrics_does_not_count_itself(self) -> None:
        shown = parse_response(Busy().ask("/metrics").received()).body
        self.assertIn(b"project_service_requests_in_flight 0.0", shown)

    def test_queued_requests_count_as_in_flight_and_as_ended(self) -> None:
        busy = Busy()
        first, second = busy.fill()
        self.assertIn("project_service_requests_in_flight 2.0", _metrics(busy.app.metrics))
        for client in (second, first):
            client.hang_up()
        shown = _metrics(busy.app.metrics)
        self.assertIn("project_service_requests_in_flight 0.0", shown)
        self.assertIn(f'{{method="GET",route="{SLOW}",status="499"}} 2.0', shown)


class Elsewhere(TestCase):
    """Time that a request spends on its client, and not in the service, does not occupy a place."""

    def test_a_stream_being_read_takes_no_place(self) -> None:
        busy = Busy()
        reading = [busy.ask("/storage/stream") for _ in range(5)]
        self.assertEqual(len(busy.begun), 5)
        self.assertTrue(all(b"a beginning" in client.received() for client in reading))

    def test_a_body_being_sent_takes_no_place(self) -> None:
        busy = Busy()
        sending = [busy.app.connect() for _ in range(5)]
        for client in sending:
            client.send(raw_request("POST", "/storage/echo", {"Content-Length": "3"}, None) + b"a")
        self.assertEqual(busy.app.request("POST", "/storage/echo", body=b"whole").body, b"whole")
        for client in sending:
            client.send(b"bc")
            self.assertEqual(parse_response(client.received()).body, b"abc")


class Paused(TestCase):
    """A client that asks again at once after a refusal is read only after a pause, so that refusals cost little."""

    def refused(self) -> tuple[Busy, Client]:
        busy = Busy()
        busy.fill()
        client = busy.ask()
        self.assertEqual(parse_response(client.received()).status, 503)
        return busy, client

    def test_the_next_request_on_a_refused_connection_is_read_a_moment_later(self) -> None:
        busy, client = self.refused()
        client.send(raw_request("GET", "/live", {}, None))
        self.assertEqual(client.received(), b"")
        busy.app.clock.advance(LEAST_PAUSE_SECONDS)
        self.assertEqual(parse_response(client.received()).status, 200)

    def test_other_connections_are_read_meanwhile(self) -> None:
        busy, _ = self.refused()
        self.assertEqual(busy.app.request("GET", "/live").status, 200)

    def test_a_client_that_leaves_during_the_pause_leaves_no_timer(self) -> None:
        busy = Busy()
        busy.fill()
        pending = len(busy.app.clock.getDelayedCalls())
        client = busy.ask()
        self.assertGreater(len(busy.app.clock.getDelayedCalls()), pending)
        client.hang_up()
        self.assertEqual(len(busy.app.clock.getDelayedCalls()), pending)

    def test_a_connection_that_closes_is_not_paused(self) -> None:
        busy = Busy()
        busy.fill()
        client = busy.ask(headers={"Connection": "close"})
        self.assertEqual(parse_response(client.received()).status, 503)
        self.assertTrue(client.transport.ended)


def _metrics(metrics: Metrics) -> str:
    return metrics.exposition().decode()


def _counted(part: str, reason: str, count: int) -> str:
    return f'project_service_requests_refused_total{{part="{part}",reason="{reason}"}} {float(count)}'
