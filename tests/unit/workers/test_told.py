"""What the parent tells a worker at its start: its assignment."""

from __future__ import annotations

from pathlib import Path

import orjson
from attrs import evolve
from twisted.trial.unittest import TestCase

from project_service.settings.model import Secret, Settings, Store
from project_service.settings.reading import Launch, Source
from project_service.workers.shared import Assignment, assignment


class Telling(TestCase):
    """What a worker is told through its standard input."""

    def test_embedded_servers_win_over_options(self) -> None:
        options = {"server.workers": "2", "database.dsn": "asked for"}
        store = Store(
            endpoint_url="http://127.0.0.1:1", access_key_id="a", secret_access_key=Secret("s"), bucket="mine"
        )
        found = Settings().with_database("postgresql:///x").with_store(store)
        launch = Launch(Settings(), Source(None, options, Path("/data")))
        told = assignment(launch, found, 2)
        self.assertEqual(
            told.source.options,
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
            },
        )
        self.assertEqual((told.source.config, told.source.data_dir), (None, Path("/data")))
        self.assertEqual(Assignment.from_json(told.to_json()), told)
        self.assertEqual(told.settings, found)

    def test_a_worker_of_another_version_reads_its_settings_itself(self) -> None:
        told = assignment(Launch(Settings(), Source(Path("/c.toml"))), Settings(), 2)
        with_version = orjson.loads(told.to_json())
        number, *names = with_version["version"]
        self.assertLess({"Server.listen", "StageDatabase.max_rows"}, set(names))
        for other in (
            {**with_version, "version": "0"},
            {**with_version, "version": ["0", *names]},
            # This one has the same version number, as a checkout that was updated and has another setting.
            {**with_version, "version": [number, *names[1:]]},
            {**with_version, "version": None, "settings": None},
            # An older parent tells more.
            {**with_version, "version": "0", "number": 1, "changes": 5},
        ):
            self.assertEqual(Assignment.from_json(orjson.dumps(other)), evolve(told, settings=None))

    def test_with_servers_elsewhere_a_worker_reads_its_settings_itself(self) -> None:
        elsewhere = Settings().with_database("postgresql://elsewhere/x")
        elsewhere = evolve(elsewhere, store=Store(endpoint_url="http://s", secret_access_key=Secret("s")))
        for data_dir in (None, Path("/data")):
            told = assignment(Launch(elsewhere, Source(Path("/c.toml"), {}, data_dir)), elsewhere, 2)
            self.assertEqual(told.source, Source(Path("/c.toml"), {}, data_dir))
