"""Processes left by an earlier start: how they are recognised and stopped; how children are launched; the
directory lock."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from unittest import SkipTest
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.embedded.assemble import DirectoryLock, InUse
from project_service.embedded.supervised import (
    Account,
    Command,
    Identity,
    alive,
    drop_stale_pid_files,
    identify,
    remembered,
    works_on,
)
from tests.temporary import temporary_directory

BOOT = "8cd0c4a1-0000-4000-8000-000000000000"


def fake_proc(test: TestCase, pid: int, stat: str, cmdline: bytes = b"", cwd: Path | None = None) -> Path:
    proc = temporary_directory(test)
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
    home = proc / str(pid)
    home.mkdir()
    (home / "stat").write_text(stat)
    (home / "cmdline").write_bytes(cmdline)
    if cwd is not None:
        (home / "cwd").symlink_to(cwd)
    return proc


def stat_line(pid: int, name: str, state: str, started: int) -> str:
    return f"{pid} ({name}) {state} " + " ".join(["1"] * 18) + f" {started} 0 0\n"


class Identities(TestCase):
    def test_the_start_time_is_read_whatever_the_process_is_called(self) -> None:
        proc = fake_proc(self, 7, stat_line(7, "we) S 1 (rd", "S", 4711))
        self.assertEqual(identify(7, proc), Identity(7, 4711, BOOT))

    @given(st.text(min_size=0, max_size=30).filter(lambda text: "\r" not in text), st.integers(0, 2**63))
    def test_no_process_name_confuses_the_parser(self, name: str, started: int) -> None:
        proc = fake_proc(self, 7, stat_line(7, name, "S", started))
        self.assertEqual(identify(7, proc), Identity(7, started, BOOT))

    def test_zombies_and_missing_processes_have_no_identity(self) -> None:
        self.assertIsNone(identify(7, fake_proc(self, 7, stat_line(7, "x", "Z", 1))))
        self.assertIsNone(identify(8, fake_proc(self, 7, stat_line(7, "x", "S", 1))))
        self.assertIsNone(identify(7, fake_proc(self, 7, "rubbish")))

    def test_a_reused_pid_is_not_alive(self) -> None:
        proc = fake_proc(self, 7, stat_line(7, "x", "S", 2))
        self.assertTrue(alive(Identity(7, 2, BOOT), proc))
        self.assertFalse(alive(Identity(7, 1, BOOT), proc))
        self.assertFalse(alive(Identity(7, 2, "another boot"), proc))

    def test_this_process_is_alive(self) -> None:
        me = identify(os.getpid())
        assert me is not None
        self.assertTrue(alive(me))

    def test_a_process_works_on_a_directory_by_argument_or_working_directory(self) -> None:
        here, there = temporary_directory(self).resolve(), temporary_directory(self).resolve()
        line = stat_line(7, "x", "S", 1)
        by_argument = fake_proc(self, 7, line, b"postgres\0-D\0" + os.fsencode(here) + b"\0")
        by_option = fake_proc(self, 7, line, b"weed\0-dir=" + os.fsencode(here) + b"\0")
        by_directory = fake_proc(self, 7, line, b"anything\0", cwd=here)
        for proc in (by_argument, by_option, by_directory):
            self.assertTrue(works_on(7, here, proc))
            self.assertFalse(works_on(7, there, proc))
        inside = fake_proc(self, 7, line, b"editor\0" + os.fsencode(here / "notes.txt") + b"\0")
        self.assertFalse(works_on(7, here, inside))


class Leftovers(TestCase):
    def test_a_malformed_pid_file_names_no_process(self) -> None:
        directory = temporary_directory(self)
        for content in ("", "{}", "[]", '{"pid": "x"}', '{"pid": 1}'):
            (directory / "pid").write_text(content)
            self.assertIsNone(remembered(directory / "pid"))
        self.assertIsNone(remembered(directory / "none"))

    def test_a_lock_file_with_a_strangers_pid_is_removed(self) -> None:
        data = temporary_directory(self)
        strangers, nobodys = data / "postmaster.pid", data / "socket.lock"
        strangers.write_text(f"{os.getpid()}\n{data}\n")
        # A pid that no process has is left to PostgreSQL, which also looks at shared memory.
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        nobodys.write_text(f"{gone.pid}\n")
        drop_stale_pid_files((strangers, nobodys, data / "missing"), data)
        self.assertFalse(strangers.exists())
        self.assertTrue(nobodys.exists())

    def test_the_lock_file_of_a_killed_server_that_nobody_has_reaped_is_removed(self) -> None:
        data = temporary_directory(self).resolve()
        with subprocess.Popen([sys.executable, "-c", ""], cwd=data) as killed:
            os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
            (data / "postmaster.pid").write_text(f"{killed.pid}\n{data}\n")
            drop_stale_pid_files((data / "postmaster.pid",), data)
        self.assertFalse((data / "postmaster.pid").exists())

    def test_the_lock_file_of_our_own_server_is_kept(self) -> None:
        data = temporary_directory(self).resolve()
        ours = subprocess.Popen(["sleep", "60"], cwd=data)
        try:
            (data / "postmaster.pid").write_text(f"{ours.pid}\n")
            drop_stale_pid_files((data / "postmaster.pid",), data)
            self.assertTrue((data / "postmaster.pid").exists())
        finally:
            ours.kill()
            ours.wait()


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
        for most, shown in (0, resource.getrlimit(resource.RLIMIT_DATA)), (2**30, (2**30, 2**30)):
            command = Command((sys.executable, "-c", script), Path("/"), most_bytes=most)
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


class Stops(TestCase):
    def test_a_stop_signal_during_the_launch_ends_the_launcher(self) -> None:
        argv = Command(("/bin/true",), Path("/")).launched(os.getpid())
        child = subprocess.run([sys.executable, "-c", EARLY, *argv[argv.index("-S") + 1 :]], check=False)
        # It dies of the signal itself, which nobody can mistake for an ordinary end.
        self.assertEqual(child.returncode, -signal.SIGINT)


class Locks(TestCase):
    def test_a_second_service_in_the_data_directory_is_refused_with_advice(self) -> None:
        directory = temporary_directory(self)
        with patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))):
            # An error of a file system without locks does not mean that somebody holds one.
            fault = self.assertRaises(OSError, DirectoryLock(directory).take)
        self.assertEqual(fault.errno, errno.ENOLCK)
        first, second = DirectoryLock(directory), DirectoryLock(directory)
        (directory / "lock").write_text("123456789\n")  # of the one before
        first.take()
        refusal = self.assertRaises(InUse, second.take)
        self.assertIn(f"(pid {os.getpid()})", str(refusal))
        self.assertIn("--data-dir", str(refusal))
        first.release()
        second.take()
        self.assertTrue(second.held)
        second.release()
