"""The supervisor: how it starts, replaces, reloads and stops workers, and how it asks them whether they are ready."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from shutil import rmtree
from signal import SIGHUP, SIGKILL, SIGTERM
from typing import Any

from attrs import define, evolve, field
from twisted.internet.error import ProcessTerminated
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service import log
from project_service.auth import tokens
from project_service.auth.tokens import KeySetError
from project_service.http.metrics import MULTIPROCESS
from project_service.kept_log import LogQuery
from project_service.lifecycle import CHILD_PAUSES, start
from project_service.settings.model import Auth, Server
from project_service.workers.assignment import (
    ASK,
    CHECK,
    FAILS,
    FIRST_PORT_FD,
    READY,
    STATUS_FD,
    WORKS,
    Assignment,
)
from project_service.workers.supervisor import ROUND_SECONDS, STOP_MARGIN_SECONDS, Readiness
from tests.captured_log import captured_logs
from tests.fakes.workers import SETTINGS, FakeReactor, TwoWorkers, two_workers
from tests.temporary import temporary_directory

OPEN = Server(listen=("tcp:81:backlog=9", "tcp:82:backlog=9"), admin_listen="tcp:83:backlog=9")


class Spawned(TwoWorkers):
    settings = evolve(SETTINGS, server=OPEN)

    def setUp(self) -> None:
        self.patch(os, "environ", {"PROJECT_SERVICE__SERVER__LOG_LEVEL": "warn", "PYTHONPATH": "/elsewhere"})
        super().setUp()
        self.begin()
        self.ports = self.reactor.ports

    def test_the_parent_opens_the_ports_and_workers_accept(self) -> None:
        self.assertEqual([port.number for port in self.ports], [81, 82, 83])
        self.assertEqual(self.workers.addresses, [port.getHost() for port in self.ports])
        self.assertEqual([port.reading for port in self.ports], [False] * 3)
        pipes = {0: "w", 1: "r", 2: "r", STATUS_FD: "r"}
        ports = {FIRST_PORT_FD + n: port.fileno() for n, port in enumerate(self.ports)}
        for process in (self.first, self.second):
            self.assertEqual(process.options["childFDs"], {**pipes, **ports})

    def test_a_worker_inherits_the_parents_environment_and_module_path(self) -> None:
        """It reads its settings from there after a SIGHUP."""
        metrics = self.first.options["env"][MULTIPROCESS]
        self.assertTrue(Path(metrics).is_dir())
        inherited = {"PROJECT_SERVICE__SERVER__LOG_LEVEL": "warn", MULTIPROCESS: metrics}
        for process in (self.first, self.second):
            found = dict(process.options["env"])
            self.assertEqual(found.pop("PYTHONPATH").split(os.pathsep), [path for path in sys.path if path])
            self.assertEqual(found, inherited)
            self.assertEqual(process.argv, [sys.executable, "-m", "project_service.workers.worker"])
            # It starts in its parent's directory, even if that has been deleted.
            self.assertIsNone(process.options["path"])

    def test_workers_are_stopped_after_the_ports_are_closed(self) -> None:
        self.ports[-1].slow = True
        stopping = start(self.workers.stop())
        self.assertEqual([port.closed for port in self.ports], [True] * 3)
        self.assertEqual([port.shut_down for port in self.ports], [False] * 3)
        self.assertEqual((self.first.signals, self.second.signals), ([], []))
        self.ports[-1].left.callback(None)
        self.successResultOf(stopping)
        self.assertEqual((self.first.ended, self.second.ended), (True, True))


class LinesOfWorkers(TwoWorkers):
    def test_the_service_is_up_when_each_worker_has_said_ready(self) -> None:
        for line in (b"", b"readily", READY):
            self.say(self.first, line)
        # The same word in a worker's log does not count.
        self.second.protocol.childDataReceived(1, READY + b"\n")
        self.say(self.first, READY)
        self.assertNoResult(self.starting)
        self.second.protocol.childDataReceived(STATUS_FD, READY[:2])
        self.second.protocol.childDataReceived(STATUS_FD, READY[2:] + b"\n")
        self.successResultOf(self.starting)

    def test_a_worker_that_cannot_start_fails_the_start(self) -> None:
        self.say(self.first)
        self.assertNoResult(self.starting)
        self.second.die()
        fault = self.failureResultOf(self.starting, RuntimeError)
        self.assertEqual(str(fault.value), "a worker ended while starting: exit code 1")
        # No failed Deferred is left that would be logged when it is collected.
        self.successResultOf(self.second.protocol.ready)
        self.errors.flush("died after")
        self.successResultOf(start(self.workers.stop()))

    def test_a_workers_log_lines_are_logged_by_the_parent_to_the_last(self) -> None:
        self.begin()
        with captured_logs() as events:
            self.first.protocol.childDataReceived(1, b"one\ntw")
            self.first.protocol.childDataReceived(2, b"a traceback\n")
            self.first.protocol.childDataReceived(1, b"o\n\xff\nthe last\xff")
            self.first.protocol.childDataReceived(STATUS_FD, b"chec")
            self.first.die()
        lines = ["one", "a traceback", "two", "\ufffd", "the last\ufffd"]
        died = "worker 0 died after 0.0 s (exit code 1); the next one starts in 0.0 s"
        self.assertEqual([formatEvent(event) for event in events], [*lines, died])
        self.errors.flush("died after")

    def test_a_worker_gets_lines_of_the_log_of_all_of_them(self) -> None:
        self.begin()
        self.patch(log, "_log", log._Log(keeps=True))
        self.first.protocol.childDataReceived(1, b"of the first\n")
        query = LogQuery(text="first").to_json()
        self.second.protocol.childDataReceived(STATUS_FD, b"log 7 %s\n" % query)
        word, number, answer = self.second.written.rstrip(b"\n").split(b" ", 2)
        self.assertEqual((word, number), (b"log", b"7"))
        self.assertEqual([line["text"] for line in json.loads(answer)["lines"]], ["of the first"])

    def test_the_log_says_how_a_worker_died(self) -> None:
        """``signal 9`` that nobody sent comes from the kernel, which needed memory."""
        self.begin()
        with captured_logs() as events:
            self.second.protocol.processEnded(Failure(ProcessTerminated(None, SIGKILL, None)))
            self.reactor.full = True
            self.reactor.advance(0)
        why = [str(formatEvent(event)) for event in events]
        self.assertEqual(why[0], "worker 1 died after 0.0 s (signal 9); the next one starts in 0.0 s")
        self.assertIn("worker 1 cannot be started: ", why[1])
        self.assertIn("Resource temporarily unavailable", why[1])
        self.assertEqual(len(self.errors.flush("worker 1")), 2)

    def test_ready_asks_every_worker(self) -> None:
        self.begin()
        self.say(self.first, b"all")
        self.assertEqual((self.first.written, self.second.written), (b"check 1\n", b"check 1\n"))
        self.say(self.first, b"works 1")
        self.say(self.second, b"works 1")
        self.assertEqual((self.first.written, self.second.written), (b"check 1\nall works\n", b"check 1\n"))
        self.second.die()
        self.say(self.first, b"all")
        self.assertTrue(self.first.written.endswith(b"\nall fails\n"), "one is missing")
        self.reactor.advance(0)
        self.say(self.first, b"all")
        self.assertTrue(self.first.written.endswith(b"all fails\nall fails\n"), "the next one is not ready")
        self.say(self.reactor.spawned[-1], READY)
        self.say(self.first, b"all")
        self.assertTrue(self.first.written.endswith(b"\ncheck 4\n"))
        self.reactor.spawned[-1].die()
        self.assertTrue(self.first.written.endswith(b"\ncheck 4\nall fails\n"), "one left meanwhile")
        self.assertEqual(len(self.errors.flush("died after")), 2)

    def test_the_supervisor_itself_learns_what_does_not_work(self) -> None:
        self.begin()
        for answers, expected in (
            ((b"works", b"works"), []),
            ((b"works", b"fails"), ["store", "tables"]),
        ):
            asking = start(self.workers.away())
            number = self.first.written.rpartition(b"check ")[2].strip()
            self.say(self.first, b"%s %s" % (answers[0], number))
            self.assertNoResult(asking)
            parts = b" store,tables" if answers[1] == b"fails" else b""
            self.say(self.second, b"%s %s%s" % (answers[1], number, parts))
            self.assertEqual(self.successResultOf(asking), expected)
        silent = start(self.workers.away())
        self.reactor.advance(ROUND_SECONDS)
        self.assertEqual(self.successResultOf(silent), ["workers"])

    def test_a_reload_is_passed_on_to_workers_unless_its_signing_keys_are_unusable(self) -> None:
        self.begin()
        keys = temporary_directory(self) / "keys.json"
        settings = evolve(SETTINGS, auth=Auth(jwt_keys_file=str(keys), jwt_algorithm="HS256"))
        keys.write_text("nothing like keys")
        self.assertRaises(KeySetError, self.workers.reload, settings)
        self.assertEqual((self.first.signals, self.second.signals), ([], []))
        keys.unlink()
        tokens.load_or_create_keys(keys, "HS256")
        self.first.die()
        self.workers.reload(settings)
        self.assertEqual((self.first.signals, self.second.signals), ([], [SIGHUP]))
        self.errors.flush("died after")

    def test_a_starting_worker_is_reloaded_once_it_has_started(self) -> None:
        """A SIGHUP would end it before it has set up its handler."""
        self.begin()
        keys = temporary_directory(self) / "keys.json"
        tokens.load_or_create_keys(keys, "HS256")
        fresh = evolve(SETTINGS, auth=Auth(jwt_keys_file=str(keys), jwt_algorithm="HS256"))
        self.second.die()
        self.reactor.advance(0)
        third = self.reactor.spawned[-1]
        for _ in range(2):
            self.workers.reload(fresh)
        self.assertEqual((self.first.signals, third.signals), ([SIGHUP, SIGHUP], []))
        self.say(third, READY)
        self.assertEqual(third.signals, [SIGHUP])
        self.assertEqual(Assignment.from_json(third.written).settings, SETTINGS)
        third.die()
        self.reactor.advance(1)
        self.assertEqual(Assignment.from_json(self.reactor.spawned[-1].written).settings, fresh)
        self.assertEqual(len(self.errors.flush("died after")), 2)

    def test_workers_that_do_not_end_in_time_are_killed(self) -> None:
        self.begin()
        self.second.stubborn = True
        metrics = Path(self.first.options["env"][MULTIPROCESS])
        self.say(self.first, b"all")
        self.assertTrue(metrics.is_dir())
        stopping = start(self.workers.stop())
        self.assertTrue(self.first.ended)
        self.reactor.advance(30.0 + STOP_MARGIN_SECONDS - 0.1)
        self.assertNoResult(stopping)
        self.assertEqual(self.second.signals, [SIGTERM])
        self.reactor.advance(0.1)
        self.assertEqual(self.second.signals, [SIGTERM, SIGKILL])
        self.successResultOf(stopping)
        self.assertFalse(metrics.exists())
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_workers_that_end_by_themselves_leave_no_timer(self) -> None:
        self.begin()
        self.say(self.first, b"all")
        self.successResultOf(start(self.workers.stop()))
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_the_live_metrics_of_a_dead_worker_are_removed(self) -> None:
        """The gauges of living workers are added up, such as the requests in progress."""
        self.begin()
        metrics = Path(self.first.options["env"][MULTIPROCESS])
        for process in (self.first, self.second):
            (metrics / f"gauge_livesum_{process.pid}.db").touch()
        self.first.die()
        self.assertEqual([one.name for one in metrics.glob("*.db")], [f"gauge_livesum_{self.second.pid}.db"])
        self.errors.flush("died after")


class NeverBegun(TestCase):
    def test_stopping_before_the_start_does_nothing(self) -> None:
        """That happens if a port could not be opened."""
        self.successResultOf(start(two_workers(FakeReactor()).stop()))


class MetricsFolders(TwoWorkers):
    """The folder where workers keep their metrics."""

    def test_a_removed_metrics_folder_does_not_prevent_replacements(self) -> None:
        def folder() -> Path:
            return Path(self.reactor.spawned[-1].options["env"][MULTIPROCESS])

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


@define(eq=False)
class FakeWorker:
    sent: list[bytes] = field(factory=list)

    def send(self, line: bytes) -> None:
        self.sent.append(line)


class Rounds(TestCase):
    """The supervisor's side of ``/ready``."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.workers: list[Any] = [FakeWorker(), FakeWorker()]
        self.readiness = Readiness(self.clock, 2, lambda: self.workers)

    def sent_to(self, worker: FakeWorker) -> list[bytes]:
        sent, worker.sent = worker.sent, []
        return sent

    def asked(self) -> bytes:
        """The question that all workers are sent once one has asked."""
        self.readiness.received(self.workers[0], ASK)
        (check,) = {one for worker in self.workers for one in self.sent_to(worker)}
        word, _, number = check.partition(b" ")
        self.assertEqual(word, CHECK)
        return number

    def test_ready_if_each_worker_works(self) -> None:
        number = self.asked()
        self.readiness.received(self.workers[1], WORKS + b" " + number)
        self.assertEqual(self.sent_to(self.workers[0]), [])
        self.readiness.received(self.workers[0], WORKS + b" " + number)
        self.assertEqual(self.sent_to(self.workers[0]), [ASK + b" " + WORKS])
        self.assertEqual(self.sent_to(self.workers[1]), [])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_not_ready_if_one_worker_fails(self) -> None:
        number = self.asked()
        self.readiness.received(self.workers[1], FAILS + b" " + number)
        self.assertEqual(self.sent_to(self.workers[0]), [ASK + b" " + FAILS])

    def test_not_ready_if_one_is_missing_dies_or_does_not_answer(self) -> None:
        self.asked()
        self.readiness.ended(self.workers[1])
        self.assertEqual(self.sent_to(self.workers[0]), [ASK + b" " + FAILS])
        self.asked()
        self.clock.advance(ROUND_SECONDS)
        self.assertEqual(self.sent_to(self.workers[0]), [ASK + b" " + FAILS])
        del self.workers[1]
        self.readiness.received(self.workers[0], ASK)
        self.assertEqual(self.sent_to(self.workers[0]), [ASK + b" " + FAILS])

    def test_not_ready_if_one_dies_after_its_answer(self) -> None:
        number = self.asked()
        self.readiness.received(self.workers[1], ASK)
        self.readiness.received(self.workers[1], WORKS + b" " + number)
        self.readiness.ended(self.workers[1])
        self.assertEqual(self.sent_to(self.workers[0]), [ASK + b" " + FAILS])
        self.assertEqual(self.sent_to(self.workers[1]), [], "it has ended")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_answers_to_an_earlier_round_are_ignored(self) -> None:
        old = self.asked()
        self.clock.advance(ROUND_SECONDS)
        self.sent_to(self.workers[0])
        new = self.asked()
        for number in (old, old, b"", b"x"):
            self.readiness.received(self.workers[1], WORKS + b" " + number)
        self.readiness.received(self.workers[0], WORKS + b" " + new)
        self.assertEqual(self.sent_to(self.workers[0]), [])
        self.readiness.received(self.workers[1], WORKS + b" " + new)
        self.assertEqual(self.sent_to(self.workers[0]), [ASK + b" " + WORKS])

    def test_questions_during_a_round_share_its_result(self) -> None:
        number = self.asked()
        self.readiness.received(self.workers[1], ASK)
        for worker in self.workers:
            self.assertEqual(self.sent_to(worker), [])
            self.readiness.received(worker, WORKS + b" " + number)
        for worker in self.workers:
            self.assertEqual(self.sent_to(worker), [ASK + b" " + WORKS])
