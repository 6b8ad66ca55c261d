"""Processes left by a service that was killed: how they are recognised and stopped, and stale pid files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attrs import asdict, evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater
from twisted.trial.unittest import TestCase

from project_service import files
from project_service.embedded import leftovers
from project_service.embedded.leftovers import (
    Identity,
    alive,
    drop_stale_lock_files,
    identify,
    postmaster_of,
    remembered,
    stop_leftover,
    uses_directory,
)
from project_service.lifecycle import start
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
            self.assertTrue(uses_directory(7, here, proc))
            self.assertFalse(uses_directory(7, there, proc))
        inside = fake_proc(self, 7, line, b"editor\0" + os.fsencode(here / "notes.txt") + b"\0")
        self.assertFalse(uses_directory(7, here, inside))


class PidFiles(TestCase):
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
        drop_stale_lock_files((strangers, nobodys, data / "missing"), data)
        self.assertFalse(strangers.exists())
        self.assertTrue(nobodys.exists())

    def test_the_lock_file_of_a_killed_server_that_nobody_has_reaped_is_removed(self) -> None:
        data = temporary_directory(self).resolve()
        with subprocess.Popen([sys.executable, "-c", ""], cwd=data) as killed:
            os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
            (data / "postmaster.pid").write_text(f"{killed.pid}\n{data}\n")
            drop_stale_lock_files((data / "postmaster.pid",), data)
        self.assertFalse((data / "postmaster.pid").exists())

    def test_the_lock_file_of_our_own_server_is_kept(self) -> None:
        data = temporary_directory(self).resolve()
        ours = subprocess.Popen(["sleep", "60"], cwd=data)
        try:
            (data / "postmaster.pid").write_text(f"{ours.pid}\n")
            drop_stale_lock_files((data / "postmaster.pid",), data)
            self.assertTrue((data / "postmaster.pid").exists())
        finally:
            ours.kill()
            ours.wait()


class StoppingLeftovers(TestCase):
    """Servers that an earlier, killed service has left running."""

    def setUp(self) -> None:
        self.data = temporary_directory(self).resolve()
        self.process = subprocess.Popen(["sleep", "60"], cwd=self.data)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        (self.data / "postmaster.pid").write_text(f"{self.process.pid}\n/elsewhere\n")

    async def until_it_is_gone(self, seconds: float) -> None:
        # SIGTERM was sent before; that it ends is not a question of time here.
        self.process.wait()

    def test_a_server_known_only_by_its_own_pid_file_is_stopped(self) -> None:
        stopping = stop_leftover(
            postmaster_of(self.data), self.data, ((signal.SIGTERM, 1.0),), self.until_it_is_gone
        )
        self.successResultOf(start(stopping))
        self.assertEqual(self.process.wait(10), -signal.SIGTERM)

    def test_another_directorys_server_is_not_stopped(self) -> None:
        other = temporary_directory(self).resolve()
        (other / "postmaster.pid").write_text((self.data / "postmaster.pid").read_text())
        for data in (other, other / "none"):
            stopping = stop_leftover(
                postmaster_of(data), data, ((signal.SIGKILL, 1.0),), self.until_it_is_gone
            )
            self.successResultOf(start(stopping))
        self.assertIsNone(self.process.poll())

    def test_a_noted_process_is_stopped_only_if_it_is_still_the_same(self) -> None:
        noted = self.data / "run.pid"
        running = identify(self.process.pid)
        assert running is not None
        came_again = evolve(running, started=running.started + 1)
        for identity, directory in (
            (came_again, self.data),
            (running, self.data.parent),
            (running, self.data),
        ):
            self.assertIsNone(self.process.poll())
            files.write_json(noted, asdict(identity))
            kill = ((signal.SIGKILL, 1.0),)
            stopping = stop_leftover(remembered(noted), directory, kill, self.until_it_is_gone)
            self.successResultOf(start(stopping))
        self.assertEqual(self.process.wait(10), -signal.SIGKILL)

    def test_a_process_that_does_not_end_is_reported(self) -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        # Signal 0 does nothing.
        nothing: Any = ((0, 0.1), (0, 0.2))
        stopping = stop_leftover(postmaster_of(self.data), self.data, nothing, sleep)
        fault = self.failureResultOf(start(stopping), RuntimeError)
        self.assertIn(f"process {self.process.pid} does not end", str(fault.value))
        # Each signal had its time.
        self.assertAlmostEqual(sum(slept), 0.3)
        self.assertIsNotNone(identify(self.process.pid))


GRACE_SECONDS = 3.0
STOPS = ((signal.SIGQUIT, GRACE_SECONDS), (signal.SIGKILL, 5.0))


class Processes:
    """Processes that were stopped (SIGSTOP): only SIGKILL ends them, and those in ``stuck`` not even that."""

    def __init__(self, count: int, stuck: frozenset[int] = frozenset()) -> None:
        self.running = {pid: Identity(pid, 1, "boot") for pid in range(100, 100 + count)}
        self._stuck = stuck

    def processes_of(self, program: Path, directory: Path) -> list[Identity]:
        return list(self.running.values())

    def alive(self, identity: Identity) -> bool:
        return identity.pid in self.running

    def kill(self, pid: int, number: signal.Signals) -> None:
        if number == signal.SIGKILL and pid not in self._stuck:
            self.running.pop(pid, None)


class StopOrphans(TestCase):
    def stopping(self, processes: Processes) -> tuple[Clock, Deferred[None]]:
        for name, stand_in in (
            ("processes_of", processes.processes_of),
            ("alive", processes.alive),
            ("os.kill", processes.kill),
        ):
            patching = patch(f"{leftovers.__name__}.{name}", stand_in)
            patching.start()
            self.addCleanup(patching.stop)
        clock = Clock()

        async def sleep(seconds: float) -> None:
            await deferLater(clock, seconds)

        return clock, start(leftovers.stop_orphans(Path("/bin/postgres"), Path("/data"), STOPS, sleep))

    def pass_time(self, clock: Clock, seconds: float) -> None:
        clock.pump([leftovers.END_POLL_SECONDS] * (int(seconds / leftovers.END_POLL_SECONDS) + 2))

    def test_many_take_no_longer_than_one(self) -> None:
        processes = Processes(30)
        clock, stopped = self.stopping(processes)
        self.pass_time(clock, GRACE_SECONDS)
        self.successResultOf(stopped)
        self.assertEqual(processes.running, {})

    def test_one_that_does_not_end_keeps_no_other_alive(self) -> None:
        processes = Processes(3, stuck=frozenset({100}))
        clock, stopped = self.stopping(processes)
        self.pass_time(clock, sum(seconds for _, seconds in STOPS))
        self.assertIn("process 100 does not end", str(self.failureResultOf(stopped, RuntimeError).value))
        self.assertEqual(set(processes.running), {100})

    def test_nothing_left_behind_is_no_delay(self) -> None:
        _, stopped = self.stopping(Processes(0))
        self.successResultOf(stopped)
