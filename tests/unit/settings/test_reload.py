"""A reload of the configuration on SIGHUP: what is applied, what needs a restart, and faults that change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.auth import tokens
from project_service.auth.tokens import KeySetError
from project_service.certificates import Certificates
from project_service.daemon import Startup
from project_service.settings.model import Auth, Database, Secret, Settings, Stage, StageDatabase, Store
from project_service.settings.reading import Launch, Source
from project_service.workers.supervisor import Workers
from tests.live.logged import errors_logged, warnings_logged
from tests.temporary import temporary_directory

OLD = "[server]\nworkers = 1\n[stages.dev.databases.main]\n[stages.dev.databases.gone]\n"
NEW = """
[server]
workers = 7
log_level = "debug"
[stages.dev.databases.main]
max_rows = 7
[stages.dev.databases.new]
"""


class Serving:
    """What a service reloads. Raises ``fault`` if there is one."""

    def __init__(self) -> None:
        self.reloaded: list[Settings] = []
        self.fault: Exception | None = None

    def reload(self, settings: Settings) -> None:
        if self.fault is not None:
            raise self.fault
        self.reloaded.append(settings)


class Reloading(TestCase):
    def setUp(self) -> None:
        self.errors = errors_logged(self)
        self.config = temporary_directory(self) / "c.toml"
        self.config.write_text(OLD)
        source = Source(self.config, data_dir=Path("/data"))
        self.settings = source.read({})
        self.startup = Startup(Clock(), Launch(self.settings, source))
        self.serving = Serving()
        serving: Any = self.serving
        self.startup._serving = serving

    def reload(self, toml: str) -> None:
        self.config.write_text(toml)
        self.startup.reload()

    def test_only_settings_that_need_no_restart_are_applied(self) -> None:
        with warnings_logged():
            self.reload(NEW)
        [applied] = self.serving.reloaded
        server = attrs.evolve(self.settings.server, log_level="debug")
        self.assertEqual(applied, attrs.evolve(self.settings, server=server))

    def test_settings_that_need_a_restart_are_named(self) -> None:
        with warnings_logged() as warnings:
            self.reload(NEW)
            self.reload(OLD)
        dev = "stages.dev.databases"
        names = ", ".join(["server.workers", f"{dev}.gone", f"{dev}.main.max_rows", f"{dev}.new"])
        self.assertEqual(warnings, [f"changed, but used only after a restart: {names}"])

    def test_addresses_of_embedded_servers_do_not_count_as_changed(self) -> None:
        self.startup._settings = attrs.evolve(self.settings, database=Database(Secret("postgresql:///e")))
        with warnings_logged() as warnings:
            self.reload(OLD)
        self.assertEqual(warnings, [])
        self.assertEqual(self.serving.reloaded, [self.startup._settings])

    def test_a_fault_in_the_file_is_logged_and_nothing_changes(self) -> None:
        self.reload(f"{OLD}[auth]\nx = 1\n")
        [event] = self.errors.flush("was not reloaded")
        self.assertIn("auth.x is not a setting", event["fault"])
        self.assertEqual(self.serving.reloaded, [])

    def test_a_refusal_by_a_part_is_logged_and_nothing_changes(self) -> None:
        self.serving.fault = KeySetError("is not JSON")
        self.reload(NEW)
        [event] = self.errors.flush("was not reloaded")
        self.assertIn("is not JSON", event["fault"])
        self.assertEqual(self.startup._settings, self.settings)

    def test_an_unexpected_error_changes_nothing(self) -> None:
        self.serving.fault = ZeroDivisionError()
        self.reload(NEW)
        self.errors.flush("was not reloaded")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.startup._settings, self.settings)

    def test_unusable_signing_keys_are_refused_before_workers_are_reloaded(self) -> None:
        path = self.config.with_name("keys.json")
        path.write_text("{")
        settings = Settings(auth=Auth(jwt_keys_file=str(path)), stages={"dev": Stage({"m": StageDatabase()})})
        workers = Workers(Clock(), Launch(settings, Source(self.config)), settings, 2, Certificates())
        self.assertRaises(KeySetError, workers.reload, settings)
        path.unlink()
        tokens.create_keys(path, "ES256")
        workers.reload(settings)


class StoreKeys(TestCase):
    """A reload uses a new key pair for the same store."""

    old = Settings(store=Store(endpoint_url="http://s3.test", access_key_id="old"))

    def test_a_new_key_pair_for_the_same_store_is_applied(self) -> None:
        new = attrs.evolve(
            self.old, store=attrs.evolve(self.old.store, access_key_id="new", session_token=Secret("t"))
        )
        current = self.old.changed_without_restart(new)
        self.assertEqual(current, new)
        self.assertEqual(self.old.waiting_for_restart(new), [])

    def test_the_key_pair_of_another_store_waits_for_a_restart(self) -> None:
        """Until then requests go to the old store."""
        elsewhere = Store(endpoint_url="http://other.test", access_key_id="new")
        new = attrs.evolve(self.old, store=elsewhere)
        self.assertEqual(self.old.changed_without_restart(new), self.old)
        waiting = self.old.waiting_for_restart(new)
        self.assertEqual(waiting, ["store.endpoint_url", "store.access_key_id"])

    def test_an_embedded_stores_key_pair_is_kept(self) -> None:
        """It is not in the configuration."""
        running = Settings(store=Store(session_token=Secret("t"))).with_store(self.old.store)
        self.assertIsNone(running.store.session_token)
        self.assertEqual(running.changed_without_restart(Settings()), running)
