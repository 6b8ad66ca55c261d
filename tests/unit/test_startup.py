"""What a start prints, and what a reload does not read again."""

from __future__ import annotations

import os
import sys
from io import StringIO
from typing import Any

from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.log import setup as log_setup
from project_service.settings.configure import BadSettings
from project_service.settings.launch import Launch
from project_service.settings.model import Settings
from project_service.startup import Startup, say
from project_service.workers.assignment import Assignment
from project_service.workers.worker import Worker
from tests.live.logged import errors_logged
from tests.places import temporary_directory
from tests.said import captured_logs


class Saying(TestCase):
    def test_it_is_said_on_a_line(self) -> None:
        out = StringIO()
        self.patch(sys, "__stdout__", out)
        say("ready")
        self.assertEqual(out.getvalue(), "ready\n")

    def test_nobody_has_to_listen(self) -> None:
        """Started without standard output, or it was closed since, or its disk is full: the start goes on."""
        closed = StringIO()
        closed.close()
        full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
        for out in (None, closed, full):
            self.patch(sys, "__stdout__", out)
            say("ready")
        # What is left in its buffer cannot be written at its end either.
        self.assertRaises(OSError, full.close)

    def test_it_is_in_the_log_where_that_goes_elsewhere(self) -> None:
        """A migration that waits for a table, say: as a daemon the service has no output that anybody sees."""
        elsewhere: list[tuple[dict[str, Any], str]] = [
            ({"nodaemon": False}, "text"),
            ({"nodaemon": True, "logfile": "there"}, "text"),
            ({"nodaemon": True, "syslog": True}, "text"),
            ({"nodaemon": True, "logger": "their.observer"}, "text"),
            ({"nodaemon": True}, "json"),
        ]
        for options, log_format in elsewhere:
            self.assertEqual(self._logged(options, log_format), ["waiting"], options)
        self.assertEqual(self._logged({"nodaemon": True}, "text"), [])

    def test_no_line_of_a_log_in_json_is_anything_else(self) -> None:
        out = StringIO()
        self.patch(sys, "__stdout__", out)
        self._logged({"nodaemon": True}, "json")
        self.assertEqual(out.getvalue(), "")
        self._logged({"nodaemon": True, "logfile": "there"}, "json")
        self.assertEqual(out.getvalue(), "waiting\n")

    def _logged(self, options: dict[str, Any], log_format: str) -> list[str]:
        self.patch(log_setup, "_log", log_setup._Log())
        log_setup.install(options, log_format, "info")
        with captured_logs() as events:
            say("waiting")
        return [str(formatEvent(event)) for event in events]


class Reloading(TestCase):
    def test_nobody_waits_for_a_pipe(self) -> None:
        """As a program that keeps secrets hands out: it has been read, and nobody writes into it any more."""
        pipe = temporary_directory(self) / "c.toml"
        os.mkfifo(pipe)
        errors = errors_logged(self)
        Startup(None, Launch(Settings(), pipe, {}, None)).reload()
        [said] = errors.flush("the configuration was not reloaded")
        self.assertEqual(said["fault"], f"{pipe}: is a pipe, which is read at the start only")
        worker = Worker.__new__(Worker)
        worker._told = Assignment(str(pipe), {}, None, 2, None)
        self.assertRaises(BadSettings, worker._load)
