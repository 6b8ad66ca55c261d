"""When a worker is replaced, and how a service with several ends."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import rmtree

from twisted.internet.error import ReactorNotRunning
from twisted.trial.unittest import TestCase

from project_service.http.metrics import MULTIPROCESS
from project_service.lifecycle import CHILD_PAUSES, start
from project_service.settings.reading import Source
from project_service.workers.shared import Assignment
from project_service.workers.worker import Worker
from tests.fakes.workers import FakeReactor, TwoWorkers
from tests.temporary import temporary_directory


class RunningReactor(FakeReactor):
    """A reactor that refuses to be stopped twice, as Twisted's do."""

    running = True
    stopped = False

    def stop(self) -> None:
        if self.stopped:
            raise ReactorNotRunning
        self.stopped = True


class Stopping(TestCase):
    def test_stopping_twice_stops_the_reactor_once(self) -> None:
        reactor = RunningReactor()
        worker = Worker(reactor, Assignment(Source(data_dir=Path("/nowhere")), 1, None))
        worker.stop()
        worker.stop()
        self.assertTrue(reactor.stopped)


class Numbers(TwoWorkers):
    """The folder where workers keep their metrics."""

    def test_a_removed_metrics_folder_does_not_prevent_replacements(self) -> None:
        def folder() -> Path:
            return Path(self.reactor.spawned[-1].born_with["env"][MULTIPROCESS])

        at_first = folder()
        for process in (self.first, self.second):
            self.say(process)
        # Another process may have made a folder of the same name.
        for taken in (False, True):
            lost = folder()
            rmtree(lost)
            if taken:
                lost.mkdir()
            self.reactor.spawned[-1].die()
            self.reactor.advance(1)
            self.assertTrue(folder().is_dir())
            self.assertNotEqual(folder(), lost)
        self.assertEqual(len(self.errors.flush("died after")), 2)
        self.successResultOf(start(self.workers.stop()))
        self.assertFalse(folder().exists() or at_first.exists())


class Replacing(TwoWorkers):
    """When the next worker is started, with a clock of the test's own."""

    def setUp(self) -> None:
        super().setUp()
        self.begin()

    def replaced_after(self, uptime: float, becomes_ready: bool = True) -> float:
        """Lets the newest worker die, and returns the seconds until another is started."""
        self.reactor.advance(uptime)
        before = len(self.reactor.spawned)
        self.reactor.spawned[-1].die()
        passed = 0.0
        self.reactor.advance(0)
        while len(self.reactor.spawned) == before:
            self.assertLess(passed, CHILD_PAUSES[1], "nobody comes")
            self.reactor.advance(0.5)
            passed += 0.5
        if becomes_ready:
            self.say(self.reactor.spawned[-1])
        self.assertEqual(len(self.errors.flush("died after")), 1)
        return passed

    def test_replacements_start_at_once_and_then_after_growing_pauses(self) -> None:
        self.assertEqual([self.replaced_after(1) for _ in range(8)], [0, 1, 2, 4, 8, 16, 30, 30])

    def test_after_a_long_life_the_next_replacement_starts_at_once(self) -> None:
        self.assertEqual([self.replaced_after(1) for _ in range(3)], [0, 1, 2])
        self.assertEqual([self.replaced_after(up) for up in (60, 1, 1)], [0, 1, 2])

    def test_a_worker_that_never_got_ready_is_replaced_after_a_pause(self) -> None:
        self.assertEqual(self.replaced_after(1, becomes_ready=False), 0)
        self.assertEqual(self.replaced_after(70, becomes_ready=False), 1)
        self.assertEqual(self.replaced_after(70), 1)
        # No failed Deferred is left that would be logged when it is collected.
        self.successResultOf(self.reactor.spawned[-2].protocol.ready)

    def test_a_worker_that_cannot_be_launched_is_tried_again(self) -> None:
        self.reactor.full = True
        self.reactor.spawned[-1].die()
        self.reactor.advance(0)
        self.reactor.advance(1)
        self.assertEqual(len(self.errors.flush("cannot be started")), 2)
        self.reactor.full = False
        self.reactor.advance(2)
        self.assertEqual(len(self.reactor.spawned), 3)
        self.errors.flush("died after")

    def test_workers_start_though_the_current_directory_is_gone(self) -> None:
        gone = temporary_directory(self) / "gone"
        gone.mkdir()
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(gone)
        Path.cwd().rmdir()
        self.reactor.spawned[-1].die()
        self.reactor.advance(0)
        self.assertEqual(len(self.reactor.spawned), 3)
        self.errors.flush("died after")

    def test_no_worker_is_replaced_during_the_stop(self) -> None:
        self.reactor.spawned[-1].die()
        self.assertEqual(len(self.errors.flush("died after")), 1)
        self.successResultOf(start(self.workers.stop()))
        self.reactor.advance(100)
        self.assertEqual(len(self.reactor.spawned), 2)
