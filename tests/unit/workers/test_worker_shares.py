"""How many of the connections that all workers share each may use."""

from __future__ import annotations

import os

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.settings.model import Settings, Stage, StageDatabase
from project_service.workers.shared import TooManyWorkers, share, totals, worker_count

POOLS = st.integers(1, 50)


def settings_of(workers: int | str, database: int, store: int, tables: int) -> Settings:
    settings = Settings(stages={"dev": Stage({"main": StageDatabase(pool_size=tables)})})
    return evolve(
        settings,
        server=evolve(settings.server, workers=workers),
        database=evolve(settings.database, pool_size=database),
        store=evolve(settings.store, max_connections=store),
    )


class Shares(TestCase):
    @given(st.integers(1, 60) | st.just("auto"), POOLS, POOLS, POOLS)
    def test_shares_stay_within_the_totals_and_are_at_least_one(
        self, workers: int | str, database: int, store: int, tables: int
    ) -> None:
        settings = settings_of(workers, database, store, tables)
        try:
            count = worker_count(settings)
        except TooManyWorkers:
            assert workers != "auto"
            self.assertGreater(int(workers), min(database, store, tables))
            return
        self.assertGreaterEqual(count, 1)
        part = totals(share(settings, count))
        for name, total in totals(settings).items():
            self.assertGreaterEqual(part[name], 1)
            self.assertLessEqual(part[name] * count, total)

    def test_too_many_workers_are_refused_with_the_name_of_the_limit(self) -> None:
        with self.assertRaisesRegex(
            TooManyWorkers, r"server.workers is 3 and stages.dev.databases.main.pool_size is 2"
        ):
            worker_count(settings_of(3, 10, 50, 2))

    def test_auto_is_one_worker_for_each_cpu(self) -> None:
        self.assertEqual(worker_count(settings_of("auto", 10000, 10000, 10000)), len(os.sched_getaffinity(0)))
