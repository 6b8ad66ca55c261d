"""Children of the service: how they are launched, their output, and their supervision with a fake clock and fake
programs."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import SkipTest

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service.embedded.supervised import (
    FIRST_STARTS,
    MAX_LINE,
    OUTPUT_SECONDS,
    READY_POLL_SECONDS,
    Account,
    Child,
    ChildFailed,
    Command,
    Program,
    Supervised,
)
from project_service.lifecycle import start
from tests.live.logged import errors_logged
from tests.temporary import temporary_directory

NOBODYS_PID = 2**22 + 1


class FakeProcess:
    """A fake process that records signals and ends when a test says so."""

    def __init__(self, protocol: Child) -> None:
        self.pid = NOBODYS_PID
        self.protocol = protocol
        self.signals: list[int] = []
        self.ended = False

    def closeStdin(self) -> None:
        pass

    def loseConnection(self) -> None:
        pass

    def signalProcess(self, number: int) -> None:
        if self.ended:
            raise ProcessExitedAlready
        self.signals.append(number)

    def write(self, text: str) -> None:
        self.protocol.childDataReceived(2, text.encode())

    def end(self, reason: Exception) -> None:
        self.ended = True
        self.protocol.processExited(Failure(reason))
        self.protocol.processEnded(Failure(reason))


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


class FakeProgram(Program):
    name = "Fake"
    stop_signal = signal.SIGINT
    not_yet = (NotYet,)
    start_seconds = 10
    stop_seconds = 5

    def __init__(self, pid_file: Path) -> None:
        self.pid_file = pid_file
        self.not_ready: Exception | None = None
        self.cleaned = 0
        self.port_is_taken = False
        self.preparing: Deferred[None] = succeed(None)
        self.preparing_fails: Exception | None = None

    async def prepare(self) -> Command:
        await self.preparing
        if self.preparing_fails is not None:
            raise self.preparing_fails
        return Command(("/bin/fake",), Path("/"))

    async def ready(self) -> None:
        if self.not_ready is not None:
            raise self.not_ready

    def cleanup(self) -> None:
        self.cleaned += 1

    def retry(self) -> bool:
        return self.port_is_taken


class Supervision(TestCase):
    def setUp(self) -> None:
        self.reactor = FakeReactor()
        self.errors = errors_logged(self)
        self.program = FakeProgram(temporary_directory(self) / "pid")
        self.supervised = Supervised(self.reactor, self.program)

    @property
    def last(self) -> FakeProcess:
        return self.reactor.spawned[-1]

    def _dies(self, after: float = 0.0) -> None:
        self.reactor.advance(after)
        self.last.end(ProcessTerminated(None, signal.SIGKILL, None))
        self.reactor.advance(OUTPUT_SECONDS)

    def _up(self) -> None:
        self.successResultOf(start(self.supervised.start()))

    def _pass_until(self, condition: Callable[[], bool], limit: float) -> None:
        passed = 0.0
        while not condition() and passed < limit:
            self.reactor.advance(READY_POLL_SECONDS)
            passed += READY_POLL_SECONDS
        self.assertTrue(condition())

    def test_start_waits_until_the_program_is_ready(self) -> None:
        self.program.not_ready = NotYet("still sleepy")
        starting = start(self.supervised.start())
        self.reactor.advance(1)
        self.assertNoResult(starting)
        self.assertFalse(self.supervised.is_ready)
        self.program.not_ready = None
        self._pass_until(lambda: bool(starting.called), 1)
        self.successResultOf(starting)
        self.assertTrue(self.supervised.is_ready)

    def test_a_program_that_ends_at_once_fails_the_start_with_its_last_words(self) -> None:
        self.program.not_ready = NotYet("still sleepy")
        starting = start(self.supervised.start())
        self.last.write("bad option\n")
        self.last.end(ProcessTerminated(3, None, None))
        self._pass_until(lambda: bool(starting.called), 1)
        fault = self.failureResultOf(starting, ChildFailed).value
        self.assertIn("exit code 3", str(fault))
        self.assertIn("bad option", str(fault))
        self.assertEqual(len(self.reactor.spawned), 1)

    def test_a_start_that_lost_its_port_to_another_is_repeated_a_few_times(self) -> None:
        self.program.port_is_taken, self.program.not_ready = True, NotYet("still sleepy")
        starting = start(self.supervised.start())
        for starts in range(1, FIRST_STARTS + 1):
            self.reactor.pump([READY_POLL_SECONDS] * 4)
            self.assertEqual(len(self.reactor.spawned), starts)
            self._dies()
        self._pass_until(lambda: bool(starting.called), 1)
        self.failureResultOf(starting, ChildFailed)

    def test_a_program_that_never_gets_ready_is_stopped(self) -> None:
        self.program.not_ready = NotYet("still sleepy")
        starting = start(self.supervised.start())
        self._pass_until(lambda: bool(self.last.signals), 11)
        self.assertEqual(self.last.signals, [signal.SIGINT])
        self.last.end(ProcessDone(None))
        self.reactor.advance(OUTPUT_SECONDS)
        fault = self.failureResultOf(starting, ChildFailed).value
        self.assertIn("still sleepy", str(fault))

    def test_an_unexpected_error_of_the_readiness_check_fails_the_start(self) -> None:
        self.program.not_ready = KeyError("a bug of ours")
        starting = start(self.supervised.start())
        self.last.end(ProcessDone(None))
        self.failureResultOf(starting, KeyError)

    def test_a_program_that_dies_is_restarted_after_growing_pauses(self) -> None:
        self._up()
        for pause in (1, 2, 4):
            before = len(self.reactor.spawned)
            self.last.write("my last words\n")
            self._dies()
            self.reactor.advance(pause - 0.5)
            self.assertEqual(len(self.reactor.spawned), before)
            self.reactor.advance(0.5)
            self.assertEqual(len(self.reactor.spawned), before + 1)
            self.assertTrue(self.supervised.is_ready)
        died = self.errors.flush("Fake died (signal SIGKILL)")
        self.assertEqual(len(died), 3)
        self.assertEqual(died[0]["tail"], "my last words")
        self.assertEqual(self.program.cleaned, 3)

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
        self.program.not_ready = NotYet("still sleepy")
        self.reactor.advance(1)
        self.last.write("port is taken\n")
        self.last.end(ProcessTerminated(1, None, None))
        self.reactor.advance(READY_POLL_SECONDS)
        failed = self.errors.flush("did not start again")
        self.assertEqual(len(failed), 1)
        self.assertIn("port is taken", failed[0]["why"])
        self.program.not_ready = None
        self.reactor.advance(2)
        self.assertTrue(self.supervised.is_ready)
        self.errors.flush("Fake died")

    def test_a_restart_that_cannot_be_launched_is_tried_again(self) -> None:
        self.program.pid_file.mkdir()  # nor can what it left be removed
        self._up()
        self._dies()
        self.assertEqual(self.program.cleaned, 1)
        self.program.preparing_fails = OSError(28, "No space left on device")
        self.reactor.advance(1)
        self.assertEqual(len(self.errors.flush("did not start again")), 1)
        self.program.preparing_fails = None
        self.reactor.advance(2)
        self.assertTrue(self.supervised.is_ready)
        self.errors.flush("Fake died")

    def test_a_restarted_program_whose_pid_cannot_be_noted_is_stopped(self) -> None:
        self._up()
        self._dies()

        def full(child: Child) -> None:
            raise OSError(28, "No space left on device")

        self.patch(self.supervised, "_write_pid_file", full)
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
        self.reactor.advance(OUTPUT_SECONDS)
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
        self.program.preparing = Deferred()
        starting = start(self.supervised.start())
        stopping = start(self.supervised.stop())
        self.assertNoResult(stopping)
        self.program.preparing.callback(None)
        self.successResultOf(stopping)
        self.failureResultOf(starting, ChildFailed)
        self.assertEqual(self.reactor.spawned, [])

    def test_stop_during_the_start(self) -> None:
        self.program.not_ready = NotYet("still sleepy")
        starting: Deferred[None] = start(self.supervised.start())
        stopping = start(self.supervised.stop())
        self.last.end(ProcessDone(None))
        self.reactor.advance(OUTPUT_SECONDS)
        self.successResultOf(stopping)
        self.failureResultOf(starting, ChildFailed)


class Output(TestCase):
    """The last lines of a child are kept for error messages, in whatever pieces they arrive."""

    def _child(self) -> Child:
        child = Child("Fake", Clock(), lambda line: "debug")
        child.makeConnection(FakeProcess(child))
        return child

    def test_lines_are_joined_across_pieces_and_two_pipes(self) -> None:
        child = self._child()
        child.childDataReceived(1, b"one\ntw")
        child.childDataReceived(2, b"err")
        child.childDataReceived(1, b"o\n\n")
        child.childDataReceived(2, b"or\n")
        self.assertEqual(child.tail, "one\ntwo\nerror")

    def test_the_last_line_needs_no_line_end(self) -> None:
        child = self._child()
        child.childDataReceived(2, b"panic")
        child.processEnded(Failure(ProcessDone(None)))
        self.assertEqual(child.tail, "panic")
        self.assertEqual(child.end, "exit code 0")

    def test_kept_output_is_bounded(self) -> None:
        child = self._child()
        for _ in range(1000):
            child.childDataReceived(2, b"x" * 100)
        child.childDataReceived(2, b"\n" + b"line\n" * 1000)
        self.assertLess(len(child.tail), 21 * (MAX_LINE + 1))
        self.assertEqual(child.tail.splitlines()[-1], "line")

    def test_bytes_that_are_not_utf_8_are_replaced(self) -> None:
        child = self._child()
        child.childDataReceived(2, b"\xff\xfe\n")
        self.assertEqual(child.tail, "��")


class Launching(TestCase):
    def test_the_launchers_arguments_name_user_and_stop_signal(self) -> None:
        command = Command(("/bin/true", "x"), Path("/"), {}, Account("somebody", 1001, 1002), signal.SIGINT)
        argv = command.launched(4)
        self.assertEqual(argv[0], sys.executable)
        self.assertEqual(argv[-7:], ["4", "2", "1001", "1002", "0", "/bin/true", "x"])

    def test_repr_of_a_command_does_not_show_its_environment(self) -> None:
        self.assertNotIn("hush", repr(Command(("/bin/true",), Path("/"), {"SECRET": "hush"})))

    def test_the_launcher_becomes_the_program_in_a_session_of_its_own(self) -> None:
        script = "import os,sys; print(os.getpid(), os.getsid(0), *sys.argv[1:])"
        argv = Command((sys.executable, "-c", script, "a b"), Path("/")).launched(os.getpid())
        child = subprocess.run(argv, capture_output=True, text=True, check=True)
        pid, session, argument = child.stdout.split(maxsplit=2)
        self.assertEqual(pid, session)
        self.assertEqual(argument.strip(), "a b")

    def test_the_program_runs_with_batch_scheduling(self) -> None:
        script = "import os; print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
        argv = Command((sys.executable, "-c", script), Path("/")).launched(os.getpid())
        self.assertEqual(subprocess.run(argv, capture_output=True, text=True, check=True).stdout, "True\n")
        self.assertEqual(os.sched_getscheduler(0), os.SCHED_OTHER)

    def test_the_programs_memory_may_be_limited(self) -> None:
        script = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA))"
        for limit, shown in (0, resource.getrlimit(resource.RLIMIT_DATA)), (2**30, (2**30, 2**30)):
            command = Command((sys.executable, "-c", script), Path("/"), max_bytes=limit)
            argv = command.launched(os.getpid())
            child = subprocess.run(argv, capture_output=True, text=True, check=True)
            self.assertEqual(child.stdout, f"{shown}\n")

    def test_a_scheduling_policy_chosen_for_the_service_is_inherited(self) -> None:
        chosen = (
            "import os, subprocess, sys; from pathlib import Path; "
            "from project_service.embedded.supervised import Command; "
            "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
            "script = 'import os; print(os.sched_getscheduler(0) == os.SCHED_IDLE)'; "
            "command = Command((sys.executable, '-c', script), Path('/')); "
            "subprocess.run(command.launched(os.getpid()), check=True)"
        )
        child = subprocess.run([sys.executable, "-c", chosen], capture_output=True, text=True, check=True)
        self.assertEqual(child.stdout, "True\n")

    def test_the_program_has_none_of_the_groups_of_root(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("only root may become another user")
        account = Account("somebody", 54321, 54322)
        argv = Command(("/usr/bin/id", "-G"), Path("/"), {}, account).launched(os.getpid())
        child = subprocess.run(argv, capture_output=True, text=True, check=True, extra_groups=[0, 4])
        self.assertEqual(child.stdout, "54322\n")

    def test_the_launcher_ends_if_the_service_has_ended(self) -> None:
        argv = Command(("/bin/true",), Path("/")).launched(1)
        child = subprocess.run(argv, capture_output=True, text=True, check=False)
        self.assertEqual(child.returncode, 1)
        self.assertIn("the service ended", child.stderr)


EARLY = """
import builtins, runpy, signal, sys
real = builtins.__import__
def imported(name, *arguments, **options):
    if name == "ctypes":
        signal.raise_signal(signal.SIGINT)
    return real(name, *arguments, **options)
builtins.__import__ = imported
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except KeyboardInterrupt:
    pass
"""


class EarlySignals(TestCase):
    def test_a_stop_signal_during_the_launch_ends_the_launcher(self) -> None:
        argv = Command(("/bin/true",), Path("/")).launched(os.getpid())
        child = subprocess.run([sys.executable, "-c", EARLY, *argv[argv.index("-S") + 1 :]], check=False)
        # It dies of the signal itself, which nobody can mistake for an ordinary end.
        self.assertEqual(child.returncode, -signal.SIGINT)
