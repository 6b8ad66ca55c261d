"""``GET /admin/overview``: who may see it, and what it says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.database.pool import Pool
from project_service.errors import database_unavailable
from project_service.http.health import CHECK_SECONDS, Health
from project_service.http.routing import Router
from project_service.operators.assemble import Operators
from project_service.operators.history import SECONDS, History
from project_service.operators.overview import MAX_BUCKETS, SIZES_SECONDS, SIZES_WAIT_SECONDS, Overview, Sizes
from project_service.storage.values import Bucket, BucketRules
from tests.fakes.common import ANON_KEY, SERVICE_KEY, App, Response, parse_response
from tests.fakes.pools import StillPool
from tests.fakes.storage import START

T = TypeVar("T")
BEGIN = 1_795_230_240
BUCKET = Bucket("photos", BucketRules("private"), 3, 4096, START, False, START, None)


class OverviewTests(TestCase):
    def setUp(self) -> None:
        self.patch(os, "environ", {})
        router = Router()
        self.app = App(router)
        self.clock = self.app.clock
        self.pool = StillPool(rows=[(12345,)])
        self.buckets = [BUCKET]
        self.away = False
        pools = {"system": cast(Pool, self.pool)}
        history = History(self.app.metrics, pools, 100, self.clock, self.at_once, self.now)
        history.start()
        self.addCleanup(history.stop)
        health = Health({"database": self.works}, self.app.metrics, self.clock)
        sizes = Sizes(pools, self.all_buckets, self.clock, self.now)
        Operators((Overview(health, history, sizes, self.clock, self.now),)).mount(router)

    def now(self) -> float:
        return BEGIN + self.clock.seconds()

    async def at_once(self, function: Callable[[], T]) -> T:
        return function()

    async def works(self) -> None:
        if self.away:
            raise database_unavailable()

    async def all_buckets(self) -> list[Bucket]:
        return self.buckets

    def get(self, query: str = "", key: str = SERVICE_KEY) -> Response:
        client = self.app.connect()
        client.send(
            f"GET /admin/overview{query} HTTP/1.1\r\nHost: a\r\nX-Service-Key: {key}\r\n\r\n".encode()
        )
        # It lets others have their turns in between.
        self.clock.pump([0] * 10)
        return parse_response(client.received())

    def shown(self, query: str = "") -> dict[str, Any]:
        response = self.get(query)
        self.assertEqual((response.status, response.header("cache-control")), (200, "no-store"))
        value: dict[str, Any] = json.loads(response.body)
        return value

    def test_it_is_for_the_service_key_alone(self) -> None:
        self.assertEqual(self.get(key=ANON_KEY).status, 403)
        self.assertEqual(self.app.request("GET", "/admin/overview").status, 401)

    def test_what_is_away_is_named(self) -> None:
        self.clock.advance(CHECK_SECONDS)
        self.away = True
        self.assertEqual(self.shown()["parts"], [{"name": "database", "works": False}])
        self.away = False
        self.assertEqual(self.shown()["parts"], [{"name": "database", "works": True}])

    def test_samples_say_how_many_requests_there_were_and_how_long_they_took(self) -> None:
        for seconds in (0.002, 0.02, 0.02, 0.4):
            self.app.metrics.observe("GET", "/x", 200, seconds, 0)
        self.app.metrics.failed(database_unavailable())
        self.clock.pump([SECONDS, 5])
        shown = self.shown()
        (sample,) = shown["samples"]
        self.assertEqual((sample["time"], sample["requests"]), ("2026-11-21T03:04:10Z", 4))
        self.assertTrue(0.01 <= sample["p50"] <= 0.025, sample)
        self.assertTrue(0.25 <= sample["p99"] <= 0.5, sample)
        hour = shown["last_hour"]
        self.assertEqual((hour["requests"], hour["p50"]), (4, sample["p50"]))
        self.assertEqual(hour["codes"], [{"status": 503, "code": "database_unavailable", "count": 1}])
        (process,) = shown["processes"]
        self.assertEqual((process["pid"], process["started_at"]), (os.getpid(), "2026-11-21T03:04:00Z"))

    def test_samples_that_are_known_need_not_be_sent_again(self) -> None:
        self.clock.pump([SECONDS, SECONDS, 5])
        self.assertEqual(len(self.shown()["samples"]), 2)
        (sample,) = self.shown(f"?after={BEGIN + 10}")["samples"]
        self.assertEqual(sample["time"], "2026-11-21T03:04:20Z")
        for wrong in ("-1", "x", ""):
            self.assertEqual(self.get(f"?after={wrong}").status, 422)

    def test_sizes_are_asked_of_the_database_once_in_half_a_minute(self) -> None:
        sizes = self.shown()["sizes"]
        self.assertEqual(sizes["databases"], [{"name": "system", "bytes": 12345}])
        self.assertEqual(sizes["buckets"], [{"name": "photos", "object_count": 3, "total_bytes": 4096}])
        self.pool.rows = [(54321,)]
        self.clock.advance(SIZES_SECONDS - 1)
        self.assertEqual((self.shown()["sizes"], self.pool.asked), (sizes, 1))
        self.clock.advance(1)
        self.assertEqual(self.shown()["sizes"]["databases"][0]["bytes"], 54321)

    def test_a_database_that_is_away_is_not_asked_more_often_and_the_last_sizes_stay(self) -> None:
        self.pool.fault = database_unavailable()
        self.assertIsNone(self.shown()["sizes"])
        self.assertEqual((self.shown()["sizes"], self.pool.asked), (None, 1))
        self.pool.fault = None
        self.clock.advance(SIZES_SECONDS)
        sizes = self.shown()["sizes"]
        self.pool.fault = database_unavailable()
        self.clock.advance(SIZES_SECONDS)
        self.assertEqual(self.shown()["sizes"], sizes)

    def test_a_database_that_does_not_answer_holds_up_nothing(self) -> None:
        self.patch(self.pool.__class__, "query", lambda *_: Deferred())
        client = self.app.connect()
        client.send(
            f"GET /admin/overview HTTP/1.1\r\nHost: a\r\nX-Service-Key: {SERVICE_KEY}\r\n\r\n".encode()
        )
        self.clock.pump([0] * 10)
        self.assertEqual(client.received(), b"")
        self.clock.advance(SIZES_WAIT_SECONDS)
        self.assertIsNone(json.loads(parse_response(client.received()).body)["sizes"])

    def test_the_largest_buckets_are_named_and_all_are_counted(self) -> None:
        self.buckets = [evolve(BUCKET, name=f"b{n}", total_bytes=n) for n in range(MAX_BUCKETS + 50)]
        sizes = self.shown()["sizes"]
        self.assertEqual((len(sizes["buckets"]), sizes["bucket_count"]), (MAX_BUCKETS, MAX_BUCKETS + 50))
        self.assertEqual(sizes["buckets"][0]["name"], f"b{MAX_BUCKETS + 49}")
        self.assertEqual(sizes["total_bytes"], sum(range(MAX_BUCKETS + 50)))
