"""What the parent hears from its workers, tells them, and does when they end."""

from __future__ import annotations

from pathlib import Path
from signal import SIGHUP, SIGKILL, SIGTERM

from attrs import evolve
from twisted.internet.error import ProcessTerminated
from twisted.logger import formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service.auth import tokens
from project_service.auth.tokens import KeySetError
from project_service.http.metrics import MULTIPROCESS
from project_service.lifecycle import start
from project_service.settings.model import Auth
from project_service.workers.shared import Assignment
from project_service.workers.supervisor import READY, STATUS_FD, STOP_MARGIN_SECONDS
from tests.captured_log import captured_logs
from tests.fakes.workers import SETTINGS, FakeReactor, TwoWorkers, two_workers
from tests.temporary import temporary_directory


class Lines(TwoWorkers):
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
        with captured_logs() as said:
            self.first.protocol.childDataReceived(1, b"one\ntw")
            self.first.protocol.childDataReceived(2, b"a traceback\n")
            self.first.protocol.childDataReceived(1, b"o\n\xff\nthe last\xff")
            self.first.protocol.childDataReceived(STATUS_FD, b"chec")
            self.first.die()
        lines = ["one", "a traceback", "two", "\ufffd", "the last\ufffd"]
        died = "worker 0 died after 0.0 s (exit code 1); the next one starts in 0.0 s"
        self.assertEqual([formatEvent(event) for event in said], [*lines, died])
        self.errors.flush("died after")

    def test_the_log_says_how_a_worker_died(self) -> None:
        """``signal 9`` that nobody sent comes from the kernel, which needed memory."""
        self.begin()
        with captured_logs() as said:
            self.second.protocol.processEnded(Failure(ProcessTerminated(None, SIGKILL, None)))
            self.reactor.full = True
            self.reactor.advance(0)
        why = [str(formatEvent(event)) for event in said]
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
        numbers = Path(self.first.born_with["env"][MULTIPROCESS])
        self.say(self.first, b"all")
        self.assertTrue(numbers.is_dir())
        stopping = start(self.workers.stop())
        self.assertTrue(self.first.ended)
        self.reactor.advance(30.0 + STOP_MARGIN_SECONDS - 0.1)
        self.assertNoResult(stopping)
        self.assertEqual(self.second.signals, [SIGTERM])
        self.reactor.advance(0.1)
        self.assertEqual(self.second.signals, [SIGTERM, SIGKILL])
        self.successResultOf(stopping)
        self.assertFalse(numbers.exists())
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_workers_that_end_by_themselves_leave_no_timer(self) -> None:
        self.begin()
        self.say(self.first, b"all")
        self.successResultOf(start(self.workers.stop()))
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_the_live_metrics_of_a_dead_worker_are_removed(self) -> None:
        """The gauges of living workers are added up, such as the requests in progress."""
        self.begin()
        numbers = Path(self.first.born_with["env"][MULTIPROCESS])
        for process in (self.first, self.second):
            (numbers / f"gauge_livesum_{process.pid}.db").touch()
        self.first.die()
        self.assertEqual([one.name for one in numbers.glob("*.db")], [f"gauge_livesum_{self.second.pid}.db"])
        self.errors.flush("died after")


class NeverBegun(TestCase):
    def test_stopping_before_the_start_does_nothing(self) -> None:
        """That happens if a port could not be opened."""
        self.successResultOf(start(two_workers(FakeReactor()).stop()))
