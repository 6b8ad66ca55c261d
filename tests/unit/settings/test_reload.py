"""A reload of the configuration by SIGHUP: what is taken over, what needs a restart, and faults that change
nothing."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import evolve
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.auth import tokens
from project_service.auth.tokens import KeySetError
from project_service.certificates import Certificates
from project_service.settings.model import Auth, Database, Secret, Server, Settings, Stage, StageDatabase
from project_service.settings.reading import BadSettings, Fault
from project_service.settings.source import Launch, Source, reread
from project_service.workers.supervisor import Workers
from tests.live.logged import errors_logged, warnings_logged

OLD = Settings()
NEW = evolve(OLD, server=Server(log_level="debug", workers=7))


class Reloading(TestCase):
    def setUp(self) -> None:
        self.errors = errors_logged(self)
        self.taken: list[Settings] = []

    def test_reloadable_settings_are_taken_over(self) -> None:
        found = reread(OLD, lambda: NEW, self.taken.append)
        self.assertEqual(found, evolve(OLD, server=Server(log_level="debug")))
        self.assertEqual(self.taken, [found])

    def test_settings_that_need_a_restart_are_named_once(self) -> None:
        old = evolve(OLD, stages={"dev": Stage({"main": StageDatabase(), "gone": StageDatabase()})})
        new = evolve(NEW, stages={"dev": Stage({"main": StageDatabase(max_rows=7), "new": StageDatabase()})})
        dev = "stages.dev.databases"
        waiting = ", ".join(["server.workers", f"{dev}.gone", f"{dev}.main.max_rows", f"{dev}.new"])
        running = evolve(old, database=Database(dsn=Secret("postgresql://embedded")))
        with warnings_logged() as said:
            reread(running, lambda: new, self.taken.append, old)
            reread(running, lambda: old, self.taken.append, old)
        self.assertEqual(said, [f"changed, but in force only after a restart: {waiting}"])

    def test_a_fault_in_the_file_is_logged_and_nothing_changes(self) -> None:
        def load() -> Settings:
            raise BadSettings([Fault("/c", "auth.x", "is not a setting")])

        self.assertIsNone(reread(OLD, load, self.taken.append))
        (event,) = self.errors.flush("was not reloaded")
        self.assertIn("auth.x is not a setting", event["fault"])
        self.assertEqual(self.taken, [])

    def test_a_refusal_by_a_part_is_logged(self) -> None:
        def refuses(settings: Settings) -> None:
            raise KeySetError("is not JSON")

        self.assertIsNone(reread(OLD, lambda: NEW, refuses))
        (event,) = self.errors.flush("was not reloaded")
        self.assertIn("is not JSON", event["fault"])

    def test_an_unexpected_error_keeps_the_old_settings(self) -> None:
        def breaks(settings: Settings) -> None:
            raise ZeroDivisionError

        self.assertIsNone(reread(OLD, lambda: NEW, breaks))
        self.errors.flush("was not taken over")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_unusable_signing_keys_are_refused_before_workers_are_told(self) -> None:
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "keys.json"
        path.write_text("{")
        settings = evolve(OLD, auth=Auth(jwt_keys_file=str(path)))
        workers = Workers(Clock(), Launch(settings, Source(Path("/c"))), settings, 2, Certificates())
        self.assertRaises(KeySetError, workers.reload, settings)
        path.unlink()
        tokens.create_keys(path, "ES256")
        workers.reload(settings)
