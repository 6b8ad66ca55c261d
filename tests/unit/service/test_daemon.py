"""The life of the process: signals, what a start prints and logs, and a reload that does not read a pipe again."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from twisted.internet.error import ReactorNotRunning
from twisted.logger import formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase

from project_service import log
from project_service.daemon import Daemon, Startup, say
from project_service.settings.model import Settings
from project_service.settings.reading import BadSettings, Launch, Source
from project_service.workers.assignment import Assignment
from project_service.workers.worker import Worker
from tests.captured_log import captured_logs
from tests.live.logged import errors_logged
from tests.temporary import temporary_directory


class Reactor:
    """One that runs, and can be stopped once. Calls of signal handlers run at once."""

    running = True

    def __init__(self) -> None:
        self.stopped = 0

    def stop(self) -> None:
        self.stopped += 1
        if self.stopped > 1:
            raise ReactorNotRunning

    def callWhenRunning(self, call: Callable[[], None]) -> None:
        call()

    callFromThread = callWhenRunning


class Stopping(SynchronousTestCase):
    def setUp(self) -> None:
        self.handlers: dict[int, Callable[[int, object], None]] = {}
        self.patch(signal, "signal", self.handlers.__setitem__)
        self.patch(atexit, "register", lambda call: None)
        self.reactor: Any = Reactor()
        self.daemon = Daemon(self.reactor, Launch(Settings(), Source(data_dir=Path("/nowhere"))))
        self.daemon._take_signals()

    def signalled(self, *numbers: int) -> int:
        for number in numbers:
            self.handlers[number](number, None)
        stopped: int = self.reactor.stopped
        return stopped

    def test_further_signals_stop_nothing_twice(self) -> None:
        self.assertEqual(self.signalled(signal.SIGTERM, signal.SIGINT, signal.SIGTERM), 1)

    def test_nor_does_one_beside_a_start_that_fails(self) -> None:
        self.daemon.running = 1
        self.daemon._failed(Failure(OSError("no")))
        self.assertEqual(self.signalled(signal.SIGTERM), 1)


class Saying(TestCase):
    def test_a_message_is_printed_on_a_line(self) -> None:
        out = StringIO()
        self.patch(sys, "__stdout__", out)
        say("ready")
        self.assertEqual(out.getvalue(), "ready\n")

    def test_an_unusable_standard_output_does_not_stop_the_start(self) -> None:
        """It may be absent, closed, or on a full disk."""
        closed = StringIO()
        closed.close()
        full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
        for out in (None, closed, full):
            self.patch(sys, "__stdout__", out)
            say("ready")
        # What is left in its buffer cannot be written when it is closed either.
        self.assertRaises(OSError, full.close)

    def test_a_message_is_also_logged_if_the_log_goes_elsewhere(self) -> None:
        """As a daemon the service has no output that anybody sees, and a migration may wait for a table."""
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

    def test_a_json_log_on_standard_output_gets_no_plain_lines(self) -> None:
        out = StringIO()
        self.patch(sys, "__stdout__", out)
        self._logged({"nodaemon": True}, "json")
        self.assertEqual(out.getvalue(), "")
        self._logged({"nodaemon": True, "logfile": "there"}, "json")
        self.assertEqual(out.getvalue(), "waiting\n")

    def _logged(self, options: dict[str, Any], log_format: str) -> list[str]:
        self.patch(log, "_log", log._Log())
        log.install(options, log_format, "info")
        with captured_logs() as events:
            say("waiting")
        return [str(formatEvent(event)) for event in events]


class Reloading(TestCase):
    def test_a_pipe_is_not_read_again(self) -> None:
        """A program that keeps secrets hands out a pipe, which can be read once; reading it again would block."""
        pipe = temporary_directory(self) / "c.toml"
        os.mkfifo(pipe)
        errors = errors_logged(self)
        Startup(None, Launch(Settings(), Source(pipe))).reload()
        [event] = errors.flush("the configuration was not reloaded")
        self.assertEqual(event["fault"], f"{pipe}: is a pipe, which is read at the start only")
        worker = Worker.__new__(Worker)
        worker._assignment = Assignment(Source(pipe), 2, None)
        self.assertRaises(BadSettings, worker._load)
