"""What SIGHUP takes over."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import evolve
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.auth import keyfile
from project_service.auth.keyset import KeySetError
from project_service.settings.configure import BadSettings, Fault
from project_service.settings.launch import Launch
from project_service.settings.model import Auth, Database, Secret, Server, Settings, Stage, StageDatabase
from project_service.settings.reload import reread
from project_service.workers.supervisor import Workers
from tests.live.logged import errors_logged, warnings_logged

OLD = Settings()
NEW = evolve(OLD, server=Server(log_level="debug", workers=7))


class Reloading(TestCase):
    def setUp(self) -> None:
        self.errors = errors_logged(self)
        self.taken: list[Settings] = []

    def test_what_can_change_is_taken_over(self) -> None:
        found = reread(OLD, lambda: NEW, self.taken.append)
        self.assertEqual(found, evolve(OLD, server=Server(log_level="debug")))
        self.assertEqual(self.taken, [found])

    def test_what_waits_for_a_restart_is_named(self) -> None:
        old = evolve(OLD, stages={"dev": Stage({"main": StageDatabase(), "gone": StageDatabase()})})
        new = evolve(NEW, stages={"dev": Stage({"main": StageDatabase(max_rows=7), "new": StageDatabase()})})
        dev = "stages.dev.databases"
        waiting = ", ".join(["server.workers", f"{dev}.gone", f"{dev}.main.max_rows", f"{dev}.new"])
        running = evolve(old, database=Database(dsn=Secret("postgresql://embedded")))
        with warnings_logged() as said:
            reread(running, lambda: new, self.taken.append, old)
            reread(running, lambda: old, self.taken.append, old)
        self.assertEqual(said, [f"changed, but in force only after a restart: {waiting}"])

    def test_a_fault_in_the_file_is_named_and_nothing_changes(self) -> None:
        def load() -> Settings:
            raise BadSettings([Fault("/c", "auth.x", "is not a setting")])

        self.assertIsNone(reread(OLD, load, self.taken.append))
        (event,) = self.errors.flush("was not reloaded")
        self.assertIn("auth.x is not a setting", event["fault"])
        self.assertEqual(self.taken, [])

    def test_so_it_is_where_a_part_refuses(self) -> None:
        def refuses(settings: Settings) -> None:
            raise KeySetError("is not JSON")

        self.assertIsNone(reread(OLD, lambda: NEW, refuses))
        (event,) = self.errors.flush("was not reloaded")
        self.assertIn("is not JSON", event["fault"])

    def test_a_fault_nobody_thought_of_leaves_the_old_ones_in_force(self) -> None:
        def breaks(settings: Settings) -> None:
            raise ZeroDivisionError

        self.assertIsNone(reread(OLD, lambda: NEW, breaks))
        self.errors.flush("was not taken over")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_and_no_worker_is_told_then(self) -> None:
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "keys.json"
        path.write_text("{")
        settings = evolve(OLD, auth=Auth(jwt_keys_file=str(path)))
        workers = Workers(Clock(), Launch(settings, Path("/c"), {}, None), settings, 2)
        self.assertRaises(KeySetError, workers.reload, settings)
        path.unlink()
        keyfile.create(path, "ES256")
        workers.reload(settings)
