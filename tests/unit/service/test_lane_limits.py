"""Every part of a configuration has a lane, whose size follows from its connection pool or the store."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.application import lanes, trace_headers
from project_service.http.admission import lane_of
from project_service.settings.model import Settings, Stage, StageDatabase

SETTINGS = Settings(
    stages={
        "dev": Stage({"main": StageDatabase(pool_size=4), "other": StageDatabase()}),
        "live": Stage({"main": StageDatabase()}),
    }
)


class Lanes(SynchronousTestCase):
    def test_each_part_and_each_database_has_a_lane(self) -> None:
        found = lanes(SETTINGS, 2)
        for target in (
            b"/auth/user",
            b"/storage/buckets",
            b"/dev/db/main/rest/t",
            b"/dev/db/other/rest",
            b"/live/db/main/rest/t",
        ):
            self.assertIn(lane_of("GET", target), found)
        self.assertIn(lane_of("POST", b"/auth/login"), found)
        self.assertEqual(len(found), 6)

    def test_trace_headers_are_those_of_the_databases_that_configure_one(self) -> None:
        traced = evolve(
            SETTINGS,
            stages={"dev": Stage({"a": StageDatabase(trace_header="X-Trace"), "b": StageDatabase()})},
        )
        self.assertEqual(trace_headers(traced), {lane_of("GET", b"/dev/db/a/rest"): "X-Trace"})

    def test_a_lane_has_a_place_for_each_connection_and_two_more(self) -> None:
        found = lanes(SETTINGS, 2)
        self.assertEqual(found["tables:dev/main"].slots, 4 + 2)
        self.assertEqual(found["tables:dev/other"].slots, 10 + 2)
        self.assertEqual(found["auth"].slots, SETTINGS.database.pool_size + 2)
        self.assertEqual(found["storage"].slots, SETTINGS.store.max_connections)
        few = evolve(SETTINGS, store=evolve(SETTINGS.store, max_connections=1))
        self.assertEqual(lanes(few, 2)["storage"].slots, 16)

    def test_hashing_has_two_places_for_each_thread(self) -> None:
        self.assertEqual(lanes(SETTINGS, 3)["passwords"].slots, 6)

    def test_requests_wait_no_longer_than_for_a_connection(self) -> None:
        settings = evolve(SETTINGS, database=evolve(SETTINGS.database, acquire_timeout_seconds=1.5))
        for name, limits in lanes(settings, 1).items():
            self.assertEqual(limits.timeout_seconds, 1.5, name)
