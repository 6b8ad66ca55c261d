"""A worker process: what it reads again, and how it ends if it cannot start."""

from __future__ import annotations

import os

from twisted.logger import LogLevel, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service.settings.reading import Source
from project_service.workers.shared import Assignment
from project_service.workers.worker import Worker
from tests.captured_log import captured_logs
from tests.fakes.workers import FakeReactor
from tests.live.logged import errors_logged
from tests.temporary import temporary_directory


class OneOfSeveral(TestCase):
    def setUp(self) -> None:
        self.errors = errors_logged(self)
        place = temporary_directory(self)
        self.config = place / "c.toml"
        self.config.write_text("server.log_level = 'warn'")
        self.worker = Worker(FakeReactor(), Assignment(Source(self.config, {}, place), 2, None))

    def logs(self, level: str) -> bool:
        event = {"log_level": LogLevel.levelWithName(level), "log_namespace": "project_service.http"}
        return self.worker.levels.passes(event)

    def test_a_reload_changes_the_log_level_unless_the_file_has_a_fault(self) -> None:
        self.assertEqual((self.logs("warn"), self.logs("info")), (True, False))
        self.config.write_text("server.log_level = 'debug'")
        self.worker._reload()
        self.assertEqual((self.logs("debug"), self.worker.settings.server.log_level), (True, "debug"))
        self.config.write_text("server.log_level = 'loud'")
        self.worker._reload()
        self.assertEqual((self.logs("debug"), self.worker.settings.server.log_level), (True, "debug"))
        self.assertEqual(len(self.errors.flush("the configuration was not reloaded")), 1)

    def test_it_uses_its_share_of_the_connections(self) -> None:
        self.assertEqual(self.worker.settings.database.pool_size, 5)
        self.config.write_text("server.log_level = 'info'")
        self.worker._reload()
        self.assertEqual(self.worker.settings.database.pool_size, 5)

    def test_a_worker_that_cannot_start_says_why_and_ends(self) -> None:
        codes: list[int] = []
        self.patch(os, "_exit", codes.append)
        with captured_logs() as said:
            self.worker._failed(Failure(ValueError("no such key file")))
        self.assertEqual(codes, [1])
        self.assertEqual(
            [formatEvent(event) for event in said], ["the worker cannot start: no such key file"]
        )
        self.assertEqual(len(self.errors.flush("cannot start")), 1)
