"""The daemon's signals."""

from __future__ import annotations

import atexit
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.error import ReactorNotRunning
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from project_service.daemon import Daemon
from project_service.settings.model import Settings
from project_service.settings.reading import Launch, Source


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
