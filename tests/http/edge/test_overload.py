"""Admission: the class of each route, and what happens when there is more to do than slots."""

from __future__ import annotations

import json

from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.application import admission_limits
from project_service.errors import ApiError
from project_service.http.metrics import Metrics
from project_service.settings.model import Settings, Stage, StageDatabase
from tests.captured_log import captured_logs
from tests.fakes.common import Response, parse_response, raw_request
from tests.http.edge.busy_app import SLOW, TABLE, TIMEOUT, Busy
from tests.http.edge.test_openapi import whole


class Refused(TestCase):
    """Those that have waited in vain."""

    def late(self, busy: Busy, target: str = SLOW, headers: dict[str, str] | None = None) -> Response:
        busy.ask(target)
        client = busy.ask(target, headers)
        busy.app.clock.advance(TIMEOUT)
        return parse_response(client.received())

    def test_they_get_503_with_retry_after(self) -> None:
        busy = Busy()
        refused = self.late(busy, headers={"Origin": "https://a.example", "X-Request-Id": "mine"})
        self.assertEqual((refused.status, refused.header("retry-after")), (503, "2"))
        self.assertEqual(json.loads(refused.body)["error"]["code"], "overloaded")
        self.assertEqual(refused.header("x-request-id"), "mine")
        self.assertEqual(refused.header("access-control-allow-origin"), "*")
        self.assertEqual(len(busy.begun), 1, "no handler saw it")

    def test_on_a_table_path_the_503_has_postgrests_members(self) -> None:
        refused = self.late(Busy(), TABLE)
        self.assertEqual((refused.status, refused.header("retry-after")), (503, "2"))
        self.assertEqual(sorted(json.loads(refused.body)), ["code", "details", "hint", "message"])
        self.assertEqual(json.loads(refused.body)["code"], "overloaded")

    def test_parts_have_places_of_their_own_and_health_needs_none(self) -> None:
        busy = Busy()
        busy.fill()
        for target in ("/live", "/ready", "/health", "/metrics", "/nothing"):
            self.assertNotEqual(busy.app.request("GET", target).status, 503, target)
        busy.ask("/auth/user")
        self.assertEqual(len(busy.begun), 2)

    def test_refusals_are_counted_by_part_and_reason(self) -> None:
        busy = Busy()
        self.late(busy)
        self.assertIn(_counted("late", 1), _metrics(busy.app.metrics))

    def test_refusals_are_logged_once_a_second(self) -> None:
        busy = Busy(max_waiting_bytes=0)
        busy.ask()
        with captured_logs() as events:
            for seconds in (0.0, 0.5, 0.4, 0.1, 0.0, 1.0):
                busy.app.clock.advance(seconds)
                self.assertEqual(busy.app.request("GET", SLOW).status, 503)
        lines = [formatEvent(event) for event in events if "refused" in formatEvent(event)]
        self.assertEqual(lines, [f"overloaded: {count} refused" for count in (1, 3, 2)])


class Full(TestCase):
    """Requests that wait are limited by their memory, not by their number."""

    def test_beyond_its_memory_requests_get_503_at_once(self) -> None:
        busy = Busy(max_waiting_bytes=100_000)
        busy.ask()
        waiting = [busy.ask() for _ in range(40)]
        statuses = [client.received()[9:12] for client in waiting]
        self.assertLess(10, statuses.count(b""))
        self.assertEqual(set(statuses[:10]), {b""})
        self.assertEqual(set(statuses[-10:]), {b"503"})
        self.assertIn(_counted("full", statuses.count(b"503")), _metrics(busy.app.metrics))

    def test_large_heads_and_bodies_take_more_of_it(self) -> None:
        for headers, count in (({}, 20), ({"X-Large": "x" * 30_000}, 2), ({"Content-Length": "90000"}, 1)):
            busy = Busy(max_waiting_bytes=100_000)
            busy.ask()
            waiting = [busy.ask(headers=headers) for _ in range(50)]
            fit = sum(not client.received() for client in waiting)
            self.assertTrue(count <= fit <= 1.2 * count + 1, fit)

    def test_an_upload_is_refused_before_it_is_sent(self) -> None:
        busy = Busy(max_waiting_bytes=0)
        busy.ask()
        client = busy.app.connect()
        head = {"Content-Length": "1000000000", "Expect": "100-continue"}
        client.send(raw_request("POST", "/storage/echo", head, None))
        self.assertEqual(parse_response(client.received()).status, 503)


class Turns(TestCase):
    def test_clients_take_turns(self) -> None:
        busy = Busy()
        busy.ask()
        many = [busy.ask() for _ in range(20)]
        other = busy.ask(host="192.0.2.8")
        for _ in range(3):
            busy.begun.pop(0).callback(None)
        self.assertEqual(parse_response(other.received()).status, 200)
        self.assertEqual(sum(bool(client.received()) for client in many), 1)

    def test_whoever_sends_bodies_apart_from_heads_waits_for_a_turn_all_the_same(self) -> None:
        busy = Busy()
        sending = [busy.app.connect() for _ in range(20)]
        for client in sending:
            client.send(raw_request("POST", "/storage/read", {"Content-Length": "2"}, None))
        for client in sending:
            client.send(b"{}")
        self.assertEqual(len(busy.begun), 1)
        other = busy.ask(host="192.0.2.8")
        for _ in range(3):
            busy.begun.pop(0).callback(None)
        self.assertEqual(parse_response(other.received()).status, 200)
        while busy.begun:
            busy.begun.pop(0).callback(None)
        self.assertEqual({parse_response(client.received()).status for client in sending}, {200})

    def test_a_request_whose_body_came_later_waits_no_longer_than_others(self) -> None:
        busy = Busy()
        client = busy.app.connect()
        client.send(raw_request("POST", "/storage/read", {"Content-Length": "2"}, None))
        busy.ask()
        client.send(b"{}")
        busy.app.clock.advance(TIMEOUT)
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
        busy.app.clock.advance(TIMEOUT)
        refused = parse_response(second.received())
        self.assertEqual(refused.status, 503)
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


def _metrics(metrics: Metrics) -> str:
    return metrics.exposition().decode()


def _counted(reason: str, count: int) -> str:
    return f'project_service_requests_refused_total{{part="storage",reason="{reason}"}} {float(count)}'


class Classes(TestCase):
    def test_the_class_of_each_kind_of_request(self) -> None:
        router = whole(self)
        for asked, name in {
            ("GET", b"/auth/user"): "auth",
            ("POST", b"/auth/refresh"): "auth",
            ("POST", b"/auth/login"): "passwords",
            ("POST", b"/auth/signup"): "accounts",
            ("POST", b"/auth/reset"): "passwords",
            ("PATCH", b"/auth/user"): "accounts",
            ("DELETE", b"/auth/user"): "accounts",
            ("POST", b"/admin/users"): "accounts",
            ("PATCH", b"/admin/users/ada@example.test"): "accounts",
            ("DELETE", b"/admin/users/ada@example.test"): "accounts",
            ("GET", b"/admin/users"): "auth",
            ("DELETE", b"/admin/users/1/sessions"): "auth",
            ("GET", b"/.well-known/jwks.json"): "",
            ("GET", b"/admin/buckets"): "storage",
            ("GET", b"/storage/download"): "storage",
            ("PUT", b"/storage/buckets/b/objects/a/b/c"): "storage",
            ("GET", b"/dev/db/main/rest/orders"): "tables:dev/main",
            ("PURGE", b"/dev/db/main/rest/orders"): "tables:dev/main",
            ("GET", b"/dev/db/main/rest"): "tables:dev/main",
            ("GET", b"/d%65v/db/m%61in/rest/orders"): "tables:dev/main",
            ("GET", b"/live"): "",
            ("GET", b"/ready"): "",
            ("GET", b"/health"): "",
            ("GET", b"/metrics"): "",
            ("GET", b"/openapi.json"): "",
        }.items():
            self.assertEqual(router.match(*asked).admission, name, asked)

    def test_a_method_that_a_path_lacks_has_the_class_of_the_path_and_an_unknown_path_none(self) -> None:
        router = whole(self)
        self.assertRaises(ApiError, router.match, "PUT", b"/auth/user")
        at = router.at(b"/storage/buckets/b/objects")
        assert at is not None
        self.assertEqual(at.admission, "storage")
        for path in (b"/", b"*", b"/auth/nothing", b"/dev/db/main", b"/dev/db/%ff/rest\xff"):
            match = router.at(path)
            self.assertIn(match and match.admission, (None, ""), path)

    def test_each_class_of_a_mounted_route_is_limited(self) -> None:
        settings = Settings(stages={"{stage}": Stage({"{database}": StageDatabase()})})
        named = {route.policy.admission for _, _, route in whole(self).routes} - {""}
        self.assertEqual(named, set(admission_limits(settings, 1)))
