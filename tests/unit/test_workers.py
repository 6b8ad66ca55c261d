"""When a worker is replaced, and how a service with several ends."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import rmtree

from twisted.internet.error import ReactorNotRunning
from twisted.trial.unittest import TestCase

from project_service.backoff import CHILD_PAUSES
from project_service.deferreds import start
from project_service.http.metrics import MULTIPROCESS
from project_service.workers.assignment import Assignment
from project_service.workers.changes import Changes
from project_service.workers.worker import Worker
from tests.places import temporary_directory
from tests.workers_fake import FakeProcess, FakeReactor, TwoWorkers


class RunningReactor(FakeReactor):
    """A reactor that refuses to be stopped twice, as Twisted's do."""

    running = True
    stopped = False

    def stop(self) -> None:
        if self.stopped:
            raise ReactorNotRunning
        self.stopped = True


class Stopping(TestCase):
    def test_once_however_often_it_is_said(self) -> None:
        reactor = RunningReactor()
        worker = Worker(reactor, Assignment(None, {}, "/nowhere", 1, None))
        worker.stop()
        worker.stop()
        self.assertTrue(reactor.stopped)


class Numbered(TwoWorkers):
    """Each worker counts its changes at a place of its own."""

    def told(self) -> list[int]:
        lines = [process.written.splitlines()[0] for process in self.reactor.spawned]
        return [Assignment.from_json(line).number for line in lines]

    def changes(self, process: FakeProcess) -> Changes:
        told = Assignment.from_json(process.written.splitlines()[0])
        assert told.changes is not None
        return Changes.shared(process.born_with["childFDs"][told.changes], told.processes, told.number)

    def test_who_takes_anothers_place_takes_his_number(self) -> None:
        self.assertEqual(self.told(), [0, 1])
        for process in (self.first, self.second):
            self.say(process)
        self.first.die()
        self.reactor.advance(0)
        self.assertEqual(self.told(), [0, 1, 0])
        self.errors.flush("died after")

    def test_what_one_counts_the_other_sees(self) -> None:
        one, other = self.changes(self.first), self.changes(self.second)
        before = other.stamp(7)
        one.happened(7)
        self.assertNotEqual(other.stamp(7), before)
        self.assertEqual(other.stamp(8), before)

    def test_that_a_clean_up_takes_the_folder_of_the_metrics_keeps_nobody_from_coming(self) -> None:
        def folder() -> Path:
            return Path(self.reactor.spawned[-1].born_with["env"][MULTIPROCESS])

        at_first = folder()
        for process in (self.first, self.second):
            self.say(process)
        # Somebody else may have taken the name.
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
        one, other = self.changes(self.first), self.changes(self.reactor.spawned[-1])
        before = other.stamp(7)
        one.happened(7)
        self.assertNotEqual(other.stamp(7), before)
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

    def test_at_once_and_then_after_growing_pauses(self) -> None:
        self.assertEqual([self.replaced_after(1) for _ in range(8)], [0, 1, 2, 4, 8, 16, 30, 30])

    def test_at_once_again_after_a_time_of_health(self) -> None:
        self.assertEqual([self.replaced_after(1) for _ in range(3)], [0, 1, 2])
        self.assertEqual([self.replaced_after(up) for up in (60, 1, 1)], [0, 1, 2])

    def test_one_that_never_got_ready_waits_whatever_it_took(self) -> None:
        self.assertEqual(self.replaced_after(1, becomes_ready=False), 0)
        self.assertEqual(self.replaced_after(70, becomes_ready=False), 1)
        self.assertEqual(self.replaced_after(70), 1)
        # Nothing is left of it that would be logged as a failure unseen.
        self.successResultOf(self.reactor.spawned[-2].protocol.ready)

    def test_one_that_the_machine_does_not_let_begin_is_tried_again(self) -> None:
        self.reactor.full = True
        self.reactor.spawned[-1].die()
        self.reactor.advance(0)
        self.reactor.advance(1)
        self.assertEqual(len(self.errors.flush("cannot be started")), 2)
        self.reactor.full = False
        self.reactor.advance(2)
        self.assertEqual(len(self.reactor.spawned), 3)
        self.errors.flush("died after")

    def test_the_folder_of_the_start_need_not_be_there_any_more(self) -> None:
        gone = temporary_directory(self) / "gone"
        gone.mkdir()
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(gone)
        Path.cwd().rmdir()
        self.reactor.spawned[-1].die()
        self.reactor.advance(0)
        self.assertEqual(len(self.reactor.spawned), 3)
        self.errors.flush("died after")

    def test_nobody_is_replaced_once_they_are_told_to_stop(self) -> None:
        self.reactor.spawned[-1].die()
        self.assertEqual(len(self.errors.flush("died after")), 1)
        self.successResultOf(start(self.workers.stop()))
        self.reactor.advance(100)
        self.assertEqual(len(self.reactor.spawned), 2)
