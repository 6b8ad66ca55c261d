"""What a worker is given at its start: its assignment, and its share of the connections."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.settings.model import Secret, Server, Settings, Smtp, Stage, StageDatabase, Store
from project_service.settings.reading import Launch, Source
from project_service.shares import TooManyWorkers, share, totals, worker_count
from project_service.workers.assignment import Assignment


class Assignments(TestCase):
    def test_embedded_servers_win_over_options(self) -> None:
        options = {"server.workers": "2", "database.dsn": "asked for"}
        store = Store(
            endpoint_url="http://127.0.0.1:1", access_key_id="a", secret_access_key=Secret("s"), bucket="mine"
        )
        found = Settings(smtp=Smtp(mail_dir="/data/mail")).with_database("postgresql:///x").with_store(store)
        launch = Launch(Settings(), Source(None, options, Path("/data")))
        assignment = Assignment.of(launch, found, 2)
        self.assertEqual(
            assignment.source.options,
            {
                "server.workers": "2",
                "database.dsn": "postgresql:///x",
                "store.endpoint_url": "http://127.0.0.1:1",
                "store.region": "us-east-1",
                "store.access_key_id": "a",
                "store.addressing_style": "path",
                "store.secret_access_key": "s",
                "store.session_token": None,
                "store.credentials_file": None,
                # Or a worker that reads its settings again would miss it, since it finds both servers named.
                "smtp.mail_dir": "/data/mail",
            },
        )
        self.assertEqual((assignment.source.config, assignment.source.data_dir), (None, Path("/data")))
        self.assertEqual(Assignment.from_json(assignment.to_json()), assignment)
        self.assertEqual(assignment.settings, found)

    def test_what_an_embedded_database_allows_is_passed_on(self) -> None:
        """A worker finds the database named, and would not allow it."""
        server = Server(console_sql=True, console_log=False, migrations_dir="/srv/migrations")
        found = Settings(server=server).with_database("postgresql:///x")
        passed = Assignment.of(Launch(Settings(), Source(None, {}, Path("/data"))), found, 2).source.options
        self.assertEqual(
            [passed[f"server.{name}"] for name in ("console_sql", "console_log", "migrations_dir")],
            [True, False, "/srv/migrations"],
        )

    def test_a_worker_of_another_version_reads_its_settings_itself(self) -> None:
        assignment = Assignment.of(Launch(Settings(), Source(Path("/c.toml"))), Settings(), 2)
        with_version = orjson.loads(assignment.to_json())
        number, *names = with_version["version"]
        self.assertLess({"Server.listen", "StageDatabase.max_rows"}, set(names))
        for other in (
            {**with_version, "version": "0"},
            {**with_version, "version": ["0", *names]},
            # This one has the same version number, as a checkout that was updated and has another setting.
            {**with_version, "version": [number, *names[1:]]},
            {**with_version, "version": None, "settings": None},
            # An older supervisor sends more.
            {**with_version, "version": "0", "number": 1, "changes": 5},
        ):
            self.assertEqual(Assignment.from_json(orjson.dumps(other)), evolve(assignment, settings=None))

    def test_with_servers_elsewhere_a_worker_reads_its_settings_itself(self) -> None:
        elsewhere = Settings().with_database("postgresql://elsewhere/x")
        elsewhere = evolve(elsewhere, store=Store(endpoint_url="http://s", secret_access_key=Secret("s")))
        for data_dir in (None, Path("/data")):
            assignment = Assignment.of(Launch(elsewhere, Source(Path("/c.toml"), {}, data_dir)), elsewhere, 2)
            self.assertEqual(assignment.source, Source(Path("/c.toml"), {}, data_dir))


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
