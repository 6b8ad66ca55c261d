"""Several processes without one: how they answer for each other, when one is replaced."""

from __future__ import annotations

import os
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready, ProcessTerminated, ReactorNotRunning
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service.deferreds import start
from project_service.launch import Launch
from project_service.roll_call import (
    WORKER_SECONDS,
    Parent,
)
from project_service.settings import Server, Settings
from project_service.worker import Worker
from project_service.workers import READY, STATUS_FD, Assignment, Workers
from tests.live.logged import LoggedErrors


class FakeReactor(Clock):
    """A clock with descriptors and processes that only exist here."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Any] = []
        self.spawned: list[Any] = []
        self.full = False

    def addReader(self, reader: Any) -> None:
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        self.readers.remove(reader)

    def spawnProcess(self, protocol: Any, *arguments: Any, **more: Any) -> Any:
        if self.full:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        process = FakeProcess(2**22 + 1 + len(self.spawned), protocol)
        self.spawned.append(process)
        protocol.makeConnection(process)
        return process


@define(eq=False)
class FakeProcess:
    pid: int
    protocol: Any
    written: bytes = b""
    ended: bool = False
    stubborn: bool = False
    signals: list[int] = field(factory=list)

    def write(self, data: bytes) -> None:
        self.written += data

    def signalProcess(self, number: int) -> None:
        if self.ended:
            raise ProcessExitedAlready
        self.signals.append(number)
        if number == SIGKILL or (number == SIGTERM and not self.stubborn):
            self.die()

    def die(self) -> None:
        self.ended = True
        self.protocol.processEnded(Failure(ProcessTerminated(1, None, None)))


class WorkersSide(TestCase):
    """A worker's side of ``/ready``, on real pipes."""

    def setUp(self) -> None:
        self.reactor = FakeReactor()
        incoming, self.to_worker = os.pipe()
        self.from_worker, outgoing = os.pipe()
        os.set_blocking(self.from_worker, False)
        for descriptor in (incoming, self.from_worker, outgoing):
            self.addCleanup(os.close, descriptor)
        self.checks: list[Deferred[None]] = []
        self.ended = 0
        self.parent = Parent(self.reactor, self._works, self._gone, incoming, outgoing)
        self.parent.watch()

    async def _works(self) -> None:
        waiting: Deferred[None] = Deferred()
        self.checks.append(waiting)
        await waiting

    def _gone(self) -> None:
        self.ended += 1

    def say(self, text: bytes) -> None:
        os.write(self.to_worker, text)
        self.parent.doRead()

    def heard(self) -> bytes:
        try:
            return os.read(self.from_worker, 100)
        except BlockingIOError:
            return b""

    def test_it_says_whether_it_works_and_when_it_cannot_tell(self) -> None:
        self.say(b"che")
        self.say(b"ck 7\ncheck 8\ncheck 9\n")
        works, fails, _ = self.checks
        works.callback(None)
        self.assertEqual(self.heard(), b"works 7\n")
        fails.errback(RuntimeError("no store"))
        self.assertEqual(self.heard(), b"fails 8\n")
        self.reactor.advance(WORKER_SECONDS)
        self.assertEqual(self.heard(), b"fails 9\n")

    def test_it_asks_once_for_many(self) -> None:
        first, second = (start(self.parent.all_work()) for _ in range(2))
        self.assertEqual(self.heard(), b"all\n")
        self.say(b"all works\n")
        self.successResultOf(first)
        self.successResultOf(second)
        third = start(self.parent.all_work())
        self.say(b"all fails\n")
        self.failureResultOf(third, RuntimeError)

    def test_who_gave_up_waiting_is_forgotten(self) -> None:
        first = start(self.parent.all_work())
        first.cancel()
        self.failureResultOf(first)
        second = start(self.parent.all_work())
        self.assertEqual(self.heard(), b"all\nall\n")
        self.say(b"all works\nall works\n")
        self.successResultOf(second)

    def test_the_end_of_the_parent(self) -> None:
        os.close(self.to_worker)
        self.parent.doRead()
        self.assertEqual((self.ended, self.reactor.readers), (1, []))
        for _ in range(50_000):
            self.parent.tell(b"nobody reads this")


class RunningReactor(FakeReactor):
    """Refuses to stop twice, as Twisted's do."""

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


class Replacing(TestCase):
    """When the next worker starts, by a clock that is turned by hand."""

    def setUp(self) -> None:
        self.reactor = FakeReactor()
        self.errors = LoggedErrors()
        globalLogPublisher.addObserver(self.errors)
        self.addCleanup(globalLogPublisher.removeObserver, self.errors)
        settings = Settings(server=Server(listen=(), workers=2))
        self.workers = Workers(self.reactor, Launch(settings, Path("/c"), {}, None), settings, 2)
        starting = start(self.workers.start())
        for process in self.reactor.spawned:
            self.ready(process)
        self.successResultOf(starting)

    def ready(self, process: Any) -> None:
        process.protocol.childDataReceived(STATUS_FD, READY + b"\n")

    def replaced_after(self, uptime: float, becomes_ready: bool = True) -> float:
        """Let the newest worker die; the seconds until there is another one."""
        self.reactor.advance(uptime)
        before = len(self.reactor.spawned)
        self.reactor.spawned[-1].die()
        passed = 0.0
        self.reactor.advance(0)
        while len(self.reactor.spawned) == before:
            self.reactor.advance(0.5)
            passed += 0.5
        if becomes_ready:
            self.ready(self.reactor.spawned[-1])
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
        gone = Path(self.mktemp())
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

    def test_one_that_cannot_begin_fails_the_start_with_its_words(self) -> None:
        settings = Settings(server=Server(listen=(), workers=2))
        reactor = FakeReactor()
        workers = Workers(reactor, Launch(settings, None, {}, None), settings, 2)
        starting = start(workers.start())
        self.ready(reactor.spawned[0])
        self.assertNoResult(starting)
        reactor.spawned[1].die()
        fault = self.failureResultOf(starting, RuntimeError)
        self.assertEqual(str(fault.value), "a worker ended while starting: exit code 1")
        self.successResultOf(reactor.spawned[1].protocol.ready)
        self.errors.flush("died after")
        self.successResultOf(start(workers.stop()))

    def tearDown(self) -> None:
        self.errors.raise_if_any()
