"""The supervision of a child program, with a clock of the test's own and fake programs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.embedded.supervised import (
    FIRST_STARTS,
    LAST_WORDS_SECONDS,
    POLL_SECONDS,
    Child,
    ChildFailed,
    Command,
    Program,
    Supervised,
)
from project_service.lifecycle import start
from tests.live.logged import errors_logged
from tests.temporary import temporary_directory
from tests.unit.embedded.fake_process import FakeProcess


class NotYet(Exception):
    pass


class FakeReactor(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.spawned: list[FakeProcess] = []

    def spawnProcess(
        self, protocol: Child, executable: str, args: list[str], env: dict[str, str], path: str
    ) -> FakeProcess:
        process = FakeProcess(protocol)
        self.spawned.append(process)
        protocol.makeConnection(process)
        return process


class Lives(TestCase):
    def setUp(self) -> None:
        self.reactor = FakeReactor()
        self.is_ready = True
        self.cleaned = 0
        self.outrun = False
        self.preparing: Deferred[None] = succeed(None)
        self.preparing_fails: Exception | None = None
        self.errors = errors_logged(self)
        self.supervised = Supervised(
            self.reactor,
            Program(
                name="Fake",
                prepare=self._prepare,
                ready=self._ready,
                not_yet=(NotYet,),
                pid_file=temporary_directory(self) / "pid",
                stop_signal=signal.SIGINT,
                cleanup=self._cleanup,
                outrun=lambda: self.outrun,
                start_seconds=10,
                stop_seconds=5,
            ),
        )

    async def _prepare(self) -> Command:
        await self.preparing
        if self.preparing_fails is not None:
            raise self.preparing_fails
        return Command(("/bin/fake",), Path("/"))

    async def _ready(self) -> None:
        if not self.is_ready:
            raise NotYet("still sleepy")

    def _cleanup(self) -> None:
        self.cleaned += 1

    @property
    def last(self) -> FakeProcess:
        return self.reactor.spawned[-1]

    def _dies(self, after: float = 0.0) -> None:
        self.reactor.advance(after)
        self.last.end(ProcessTerminated(None, signal.SIGKILL, None))
        self.reactor.advance(LAST_WORDS_SECONDS)

    def _up(self) -> None:
        self.successResultOf(start(self.supervised.start()))

    def _pass_until(self, condition: Callable[[], bool], limit: float) -> None:
        passed = 0.0
        while not condition() and passed < limit:
            self.reactor.advance(POLL_SECONDS)
            passed += POLL_SECONDS
        self.assertTrue(condition())

    def test_start_waits_until_the_program_is_ready(self) -> None:
        self.is_ready = False
        starting = start(self.supervised.start())
        self.reactor.advance(1)
        self.assertNoResult(starting)
        self.assertFalse(self.supervised.is_ready)
        self.is_ready = True
        self._pass_until(lambda: bool(starting.called), 1)
        self.successResultOf(starting)
        self.assertTrue(self.supervised.is_ready)

    def test_a_program_that_ends_at_once_fails_the_start_with_its_last_words(self) -> None:
        self.is_ready = False
        starting = start(self.supervised.start())
        self.last.say("bad option\n")
        self.last.end(ProcessTerminated(3, None, None))
        self._pass_until(lambda: bool(starting.called), 1)
        fault = self.failureResultOf(starting, ChildFailed).value
        self.assertIn("exit code 3", str(fault))
        self.assertIn("bad option", str(fault))
        self.assertEqual(len(self.reactor.spawned), 1)

    def test_a_start_that_lost_its_port_to_another_is_repeated_a_few_times(self) -> None:
        self.outrun, self.is_ready = True, False
        starting = start(self.supervised.start())
        for starts in range(1, FIRST_STARTS + 1):
            self.reactor.pump([POLL_SECONDS] * 4)
            self.assertEqual(len(self.reactor.spawned), starts)
            self._dies()
        self._pass_until(lambda: bool(starting.called), 1)
        self.failureResultOf(starting, ChildFailed)

    def test_a_program_that_never_gets_ready_is_stopped(self) -> None:
        self.is_ready = False
        starting = start(self.supervised.start())
        self._pass_until(lambda: bool(self.last.signals), 11)
        self.assertEqual(self.last.signals, [signal.SIGINT])
        self.last.end(ProcessDone(None))
        self.reactor.advance(LAST_WORDS_SECONDS)
        fault = self.failureResultOf(starting, ChildFailed).value
        self.assertIn("still sleepy", str(fault))

    def test_an_unexpected_error_of_the_readiness_check_fails_the_start(self) -> None:
        async def broken() -> None:
            raise KeyError("a bug of ours")

        program = Program(
            "Fake", self._prepare, broken, (NotYet,), temporary_directory(self) / "pid", signal.SIGINT
        )
        self.supervised = Supervised(self.reactor, program)
        starting = start(self.supervised.start())
        self.last.end(ProcessDone(None))
        self.failureResultOf(starting, KeyError)

    def test_a_program_that_dies_is_restarted_after_growing_pauses(self) -> None:
        self._up()
        for pause in (1, 2, 4):
            before = len(self.reactor.spawned)
            self.last.say("my last words\n")
            self._dies()
            self.reactor.advance(pause - 0.5)
            self.assertEqual(len(self.reactor.spawned), before)
            self.reactor.advance(0.5)
            self.assertEqual(len(self.reactor.spawned), before + 1)
            self.assertTrue(self.supervised.is_ready)
        died = self.errors.flush("Fake died (signal SIGKILL)")
        self.assertEqual(len(died), 3)
        self.assertEqual(died[0]["tail"], "my last words")
        self.assertEqual(self.cleaned, 3)

    def test_after_a_long_life_the_pause_is_the_first_again(self) -> None:
        self._up()
        self._dies()
        self.reactor.advance(1)
        self._dies(after=60)
        self.reactor.advance(1)
        self.assertEqual(len(self.reactor.spawned), 3)
        self.errors.flush("Fake died")

    def test_a_failed_restart_is_tried_again(self) -> None:
        self._up()
        self._dies()
        self.is_ready = False
        self.reactor.advance(1)
        self.last.say("port is taken\n")
        self.last.end(ProcessTerminated(1, None, None))
        self.reactor.advance(POLL_SECONDS)
        failed = self.errors.flush("did not start again")
        self.assertEqual(len(failed), 1)
        self.assertIn("port is taken", failed[0]["why"])
        self.is_ready = True
        self.reactor.advance(2)
        self.assertTrue(self.supervised.is_ready)
        self.errors.flush("Fake died")

    def test_a_restart_that_cannot_be_launched_is_tried_again(self) -> None:
        self.supervised._program.pid_file.mkdir()  # nor can what it left be removed
        self._up()
        self._dies()
        self.assertEqual(self.cleaned, 1)
        self.preparing_fails = OSError(28, "No space left on device")
        self.reactor.advance(1)
        self.assertEqual(len(self.errors.flush("did not start again")), 1)
        self.preparing_fails = None
        self.reactor.advance(2)
        self.assertTrue(self.supervised.is_ready)
        self.errors.flush("Fake died")

    def test_a_restarted_program_whose_pid_cannot_be_noted_is_stopped(self) -> None:
        self._up()
        self._dies()

        def full(child: Child) -> None:
            raise OSError(28, "No space left on device")

        self.patch(self.supervised, "_remember", full)
        self.reactor.advance(1)
        self.assertEqual(self.last.signals, [signal.SIGINT])
        self._dies()
        self.assertEqual(len(self.errors.flush("did not start again")), 1)
        self.assertIsNone(self.supervised.pid)
        self.errors.flush("Fake died")

    def test_stop_sends_the_stop_signal_and_waits(self) -> None:
        self._up()
        stopping = start(self.supervised.stop())
        self.assertEqual(self.last.signals, [signal.SIGINT])
        self.assertNoResult(stopping)
        self.last.end(ProcessDone(None))
        self.successResultOf(stopping)
        self.reactor.advance(LAST_WORDS_SECONDS)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertEqual(len(self.reactor.spawned), 1)

    def test_stop_kills_after_its_time(self) -> None:
        self._up()
        stopping = start(self.supervised.stop())
        self.reactor.advance(5)
        self.assertEqual(self.last.signals, [signal.SIGINT, signal.SIGKILL])
        self._dies()
        self.successResultOf(stopping)

    def test_stop_between_death_and_restart(self) -> None:
        self._up()
        self._dies()
        self.successResultOf(start(self.supervised.stop()))
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.reactor.advance(60)
        self.assertEqual(len(self.reactor.spawned), 1)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.errors.flush("Fake died")

    def test_stop_waits_for_preparations(self) -> None:
        self.preparing = Deferred()
        starting = start(self.supervised.start())
        stopping = start(self.supervised.stop())
        self.assertNoResult(stopping)
        self.preparing.callback(None)
        self.successResultOf(stopping)
        self.failureResultOf(starting, ChildFailed)
        self.assertEqual(self.reactor.spawned, [])

    def test_stop_during_the_start(self) -> None:
        self.is_ready = False
        starting: Deferred[None] = start(self.supervised.start())
        stopping = start(self.supervised.stop())
        self.last.end(ProcessDone(None))
        self.reactor.advance(LAST_WORDS_SECONDS)
        self.successResultOf(stopping)
        self.failureResultOf(starting, ChildFailed)
