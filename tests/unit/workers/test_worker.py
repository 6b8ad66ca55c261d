"""A worker process: what it reads again, how it ends, and its line to the supervisor."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ReactorNotRunning
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service.http.health import NotReady
from project_service.kept_log import LogQuery
from project_service.lifecycle import start
from project_service.settings.reading import Source
from project_service.workers.assignment import Assignment
from project_service.workers.worker import LOG_SECONDS, WORKER_SECONDS, SupervisorPipe, Worker
from tests.captured_log import captured_logs
from tests.fakes.workers import FakeReactor
from tests.live.logged import errors_logged
from tests.temporary import temporary_directory


class OneOfSeveral(TestCase):
    def setUp(self) -> None:
        self.errors = errors_logged(self)
        directory = temporary_directory(self)
        self.config = directory / "c.toml"
        self.config.write_text("server.log_level = 'warn'")
        self.worker = Worker(FakeReactor(), Assignment(Source(self.config, {}, directory), 2, None))

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
        with captured_logs() as events:
            self.worker._failed(Failure(ValueError("no such key file")))
        self.assertEqual(codes, [1])
        self.assertEqual(
            [formatEvent(event) for event in events], ["the worker cannot start: no such key file"]
        )
        self.assertEqual(len(self.errors.flush("cannot start")), 1)


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


class PipeReactor(Clock):
    """A clock that also records readers."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[object] = []

    def addReader(self, reader: object) -> None:
        self.readers.append(reader)

    def removeReader(self, reader: object) -> None:
        self.readers.remove(reader)


class Pipe(TestCase):
    """A worker's line to the supervisor."""

    def setUp(self) -> None:
        self.reactor = PipeReactor()
        incoming, self.to_worker = os.pipe()
        self.from_worker, outgoing = os.pipe()
        for descriptor in (incoming, self.from_worker, outgoing):
            self.addCleanup(os.close, descriptor)
        os.set_blocking(self.from_worker, False)
        self.checks: list[Deferred[None]] = []
        self.ended = 0
        self.renewed = 0
        self.pipe = SupervisorPipe(
            self.reactor, self.works, self.supervisor_ended, self.renew, incoming, outgoing
        )
        self.pipe.watch()

    async def works(self) -> None:
        self.checks.append(Deferred())
        await self.checks[-1]

    def supervisor_ended(self) -> None:
        self.ended += 1

    def renew(self) -> None:
        self.renewed += 1

    def receive(self, data: bytes) -> None:
        os.write(self.to_worker, data)
        self.assertEqual(self.reactor.readers, [self.pipe])
        self.pipe.doRead()

    def sent(self) -> bytes:
        try:
            return os.read(self.from_worker, 1000)
        except BlockingIOError:
            return b""

    def test_a_worker_answers_with_the_number_of_the_round(self) -> None:
        self.receive(b"check 1\nche")
        self.receive(b"ck 2\ncheck 3\ncheck 4\n")
        self.assertEqual((len(self.checks), self.sent()), (4, b""))
        self.checks[1].callback(None)
        self.checks[0].errback(RuntimeError("away"))
        self.checks[2].errback(NotReady("store,tables"))
        self.assertEqual(self.sent(), b"works 2\nfails 1 workers\nfails 3 store,tables\n")
        self.reactor.advance(WORKER_SECONDS)
        self.assertEqual(self.sent(), b"fails 4 workers\n")

    def test_all_requests_waiting_in_a_worker_share_one_question(self) -> None:
        for verdict in (b"works", b"fails"):
            first, leaving, last = (start(self.pipe.check_all_workers()) for _ in range(3))
            leaving.addErrback(lambda _: None)
            leaving.cancel()
            self.assertEqual(self.sent(), b"all\n")
            self.receive(b"all " + verdict + b"\n")
            for one in (first, last):
                if verdict == b"works":
                    self.successResultOf(one)
                else:
                    self.failureResultOf(one, RuntimeError)

    def test_a_cancelled_request_is_forgotten(self) -> None:
        first = start(self.pipe.check_all_workers())
        first.cancel()
        self.failureResultOf(first, CancelledError)
        second = start(self.pipe.check_all_workers())
        self.assertEqual(self.sent(), b"all\nall\n")
        self.receive(b"all works\nall works\n")
        self.successResultOf(second)

    def test_certificates_are_renewed_on_request(self) -> None:
        self.receive(b"check 1\nrenew\n")
        self.assertEqual((self.renewed, self.sent()), (1, b""))

    def test_lines_of_the_log_are_asked_of_the_supervisor(self) -> None:
        first, second = (start(self.pipe.read_log(LogQuery(text=text))) for text in ("a", "b"))
        asked = self.sent().splitlines()
        self.assertEqual([line.split(b" ", 2)[:2] for line in asked], [[b"log", b"1"], [b"log", b"2"]])
        self.assertEqual(LogQuery.from_json(asked[1].split(b" ", 2)[2]), LogQuery(text="b"))
        self.receive(b'log 2 {"lines": []}\nlog 1 {}\nlog 7 {}\n')
        self.assertEqual(self.successResultOf(first), b"{}")
        self.assertEqual(self.successResultOf(second), b'{"lines": []}')

    def test_a_supervisor_that_does_not_answer_is_not_waited_for_for_ever(self) -> None:
        reading = start(self.pipe.read_log(LogQuery()))
        self.reactor.advance(LOG_SECONDS)
        self.failureResultOf(reading, TimeoutError)
        self.receive(b"log 1 {}\n")

    def test_the_end_of_the_pipe_means_that_the_supervisor_has_ended(self) -> None:
        os.close(self.to_worker)
        self.pipe.doRead()
        self.assertEqual((self.ended, self.reactor.readers), (1, []))

    def test_so_does_a_lost_pipe_that_the_reactor_reports(self) -> None:
        os.close(self.to_worker)
        self.pipe.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.ended, 1)

    def test_a_supervisor_that_does_not_read_does_not_block_a_worker(self) -> None:
        for _ in range(20_000):
            self.pipe.send(b"works 1")
        os.close(self.to_worker)
