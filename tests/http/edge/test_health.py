"""``/live``, ``/ready`` and ``/metrics``: what they ask, how long an answer stands, and what they never show."""

from __future__ import annotations

import json
import re
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import TestCase

from project_service.errors import database_unavailable
from project_service.http.health import (
    CHECK_SECONDS,
    METRICS_REUSE,
    METRICS_SECONDS,
    Check,
    Health,
    NotReady,
)
from project_service.http.metrics import Metrics
from project_service.http.routing import Router
from project_service.lifecycle import start
from tests.fakes.common import App, parse_response, raw_request


async def works() -> None:
    return


async def broken() -> None:
    raise RuntimeError("the password is hunter2")


async def hangs() -> None:
    await Deferred()


def app_of(**checks: Check) -> App:
    router = Router()
    app = App(router)
    Health(checks, app.metrics, app.clock).mount(router)
    # So that no earlier answer can stand for the first.
    app.clock.advance(10)
    return app


class HealthTests(TestCase):
    def test_live_checks_nothing(self) -> None:
        self.assertEqual(app_of(database=broken).request("GET", "/live").status, 200)

    def test_ready_names_what_is_away_and_nothing_else(self) -> None:
        response = app_of(database=works, store=broken).request("GET", "/ready")
        self.assertEqual((response.status, response.header("retry-after")), (503, "2"))
        error = json.loads(response.body)["error"]
        self.assertEqual((error["code"], list(error["details"])), ("not_ready", ["store"]))
        self.assertNotIn(b"hunter2", response.body)

    def test_health_is_an_alias_of_ready(self) -> None:
        for checks in ({"database": works}, {"database": works, "store": broken}):
            for method in ("GET", "HEAD"):
                ready, health = (app_of(**checks).request(method, path) for path in ("/ready", "/health"))
                self.assertEqual(
                    (health.status, health.header("retry-after"), health.header("cache-control")),
                    (ready.status, ready.header("retry-after"), "no-store"),
                )
                self.assertEqual(health.body, ready.body)

    def test_the_log_says_why_unless_that_might_be_a_secret(self) -> None:
        async def waits() -> None:
            raise NotReady("it has not begun")

        async def away() -> None:
            raise database_unavailable()

        with capturedLogs() as events:
            app_of(tables=waits, database=away, store=broken).request("GET", "/ready")
        self.assertEqual(
            [formatEvent(one) for one in events if "part" in one],
            [
                "not ready: tables (it has not begun)",
                "not ready: database (database_unavailable)",
                "not ready: store (RuntimeError)",
            ],
        )

    def test_what_is_away_is_logged_when_that_changes(self) -> None:
        """Monitors ask every few seconds, for as long as it lasts."""
        why: list[str] = []

        async def store() -> None:
            if why:
                raise NotReady(why[0])

        app = app_of(database=works, store=store)
        with capturedLogs() as events:
            for now in ([], ["refuses"], ["refuses"], ["is away"], [], []):
                why[:] = now
                app.request("GET", "/ready")
                app.clock.advance(2)
        lines = [formatEvent(one) for one in events if "part" in one]
        expected = ["not ready: store (refuses)", "not ready: store (is away)", "ready again: store"]
        self.assertEqual(lines, expected)

    def test_responses_may_not_be_cached(self) -> None:
        for path, check in (("/live", works), ("/ready", works), ("/ready", broken), ("/metrics", works)):
            response = app_of(database=check).request("GET", path)
            self.assertEqual(response.header("cache-control"), "no-store", path)

    def test_checks_that_hang_count_as_away_after_the_time_of_one(self) -> None:
        app = app_of(database=hangs, store=hangs)
        client = app.connect()
        client.send(raw_request("GET", "/ready", {}, None))
        self.assertEqual(client.received(), b"")
        app.clock.advance(CHECK_SECONDS)
        self.assertEqual(parse_response(client.received()).status, 503)

    def test_a_good_result_stands_for_a_second_and_a_bad_one_does_not(self) -> None:
        asked: list[int] = []
        good = [True]

        async def counted() -> None:
            asked.append(1)
            if not good[0]:
                raise RuntimeError

        app = app_of(database=counted)
        self.assertEqual([app.request("GET", "/ready").status for _ in range(3)], [200] * 3)
        self.assertEqual(len(asked), 1)
        app.clock.advance(1.1)
        good[0] = False
        self.assertEqual([app.request("GET", "/ready").status for _ in range(2)], [503] * 2)
        good[0] = True
        self.assertEqual(app.request("GET", "/ready").status, 200)

    def test_simultaneous_requests_share_one_check(self) -> None:
        asked: list[Deferred[None]] = []

        async def slow() -> None:
            asked.append(Deferred())
            await asked[-1]

        app = app_of(database=slow)
        clients = [app.connect() for _ in range(4)]
        for client in clients:
            client.send(raw_request("GET", "/ready", {}, None))
        # The check goes on without the client that began it, and without another one.
        leaving, *_, also_leaving = clients
        leaving.hang_up()
        also_leaving.hang_up()
        self.assertEqual(len(asked), 1)
        asked[0].errback(RuntimeError())
        self.assertEqual([parse_response(one.received()).status for one in clients[1:3]], [503, 503])
        client = app.connect()
        client.send(raw_request("GET", "/ready", {}, None))
        asked[1].callback(None)
        self.assertEqual(parse_response(client.received()).status, 200)

    def test_a_request_cancelled_by_the_result_does_not_affect_others(self) -> None:
        checked: Deferred[None] = Deferred()

        async def slow() -> None:
            await checked

        health = Health({"database": slow}, Metrics(lambda *_: None), Clock())
        unread: Any = None
        first, leaving, last = (start(health.ready(unread)) for _ in range(3))
        first.addBoth(lambda _: leaving.cancel())
        checked.callback(None)
        self.failureResultOf(leaving, CancelledError)
        self.assertEqual(self.successResultOf(last).status, 200)

    def test_metrics_are_counted_by_route_and_show_no_path(self) -> None:
        app = app_of()
        self.assertEqual(app.request("GET", "/live").body, b'{"status":"live"}')
        app.request("HEAD", "/live")
        app.request("GET", "/secret-path?token=abc")
        text = app.request("GET", "/metrics").body.decode()
        self.assertRegex(text, r'requests_total\{method="GET",route="/live",status="200"\} 1\.0')
        self.assertRegex(text, r'requests_total\{method="GET",route="-",status="404"\} 1\.0')
        self.assertRegex(text, r'response_bytes_total\{route="/live"\} 17\.0')
        self.assertNotIn("secret-path", text)
        self.assertFalse(re.search("abc", text))

    def test_slow_metrics_are_not_computed_for_every_request(self) -> None:
        made: list[float] = []
        app = app_of()

        def slow() -> bytes:
            made.append(app.clock.seconds())
            app.clock.advance(0.05)
            return b"made %d" % len(made)

        self.patch(app.metrics, "exposition", slow)
        self.assertEqual([app.request("GET", "/metrics").body for _ in range(5)], [b"made 1"] * 5)
        app.clock.advance(0.05 * METRICS_REUSE + 0.01)
        self.assertEqual([app.request("GET", "/metrics").body for _ in range(5)], [b"made 2"] * 5)
        # A clock that was set back does not make the result stand for longer.
        app.clock.rightNow -= 3600
        self.assertEqual(app.request("GET", "/metrics").body, b"made 3")

    def test_metrics_that_took_long_because_the_machine_stood_still_are_soon_computed_again(self) -> None:
        made: list[float] = []
        app = app_of()

        def interrupted() -> bytes:
            made.append(app.clock.seconds())
            app.clock.advance(4.0)
            return b"made %d" % len(made)

        self.patch(app.metrics, "exposition", interrupted)
        self.assertEqual([app.request("GET", "/metrics").body for _ in range(2)], [b"made 1"] * 2)
        app.clock.advance(METRICS_SECONDS + 0.01)
        self.assertEqual(app.request("GET", "/metrics").body, b"made 2")

    def test_metrics_of_several_services_are_separate(self) -> None:
        one, two = Metrics(), Metrics()
        one.observe("GET", "/x", 200, 0.1, 5)
        self.assertNotIn(b'route="/x"', two.exposition())
