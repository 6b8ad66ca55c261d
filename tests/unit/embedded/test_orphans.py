"""What a killed PostgreSQL server left behind is stopped at the next start, all of it at once."""

from __future__ import annotations

import signal
from pathlib import Path
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater
from twisted.trial.unittest import TestCase

from project_service.embedded import supervised
from project_service.embedded.supervised import Identity
from project_service.lifecycle import start

GRACE_SECONDS = 3.0
STOPS = ((signal.SIGQUIT, GRACE_SECONDS), (signal.SIGKILL, 5.0))


class Processes:
    """Processes that were stopped (SIGSTOP): only SIGKILL ends them, and those in ``stuck`` not even that."""

    def __init__(self, count: int, stuck: frozenset[int] = frozenset()) -> None:
        self.running = {pid: Identity(pid, 1, "boot") for pid in range(100, 100 + count)}
        self._stuck = stuck

    def found(self, program: Path, directory: Path) -> list[Identity]:
        return list(self.running.values())

    def alive(self, identity: Identity) -> bool:
        return identity.pid in self.running

    def kill(self, pid: int, number: signal.Signals) -> None:
        if number == signal.SIGKILL and pid not in self._stuck:
            self.running.pop(pid, None)


class StopOrphans(TestCase):
    def stopping(self, processes: Processes) -> tuple[Clock, Deferred[None]]:
        for name, stand_in in (
            ("processes_of", processes.found),
            ("alive", processes.alive),
            ("os.kill", processes.kill),
        ):
            patching = patch(f"{supervised.__name__}.{name}", stand_in)
            patching.start()
            self.addCleanup(patching.stop)
        clock = Clock()

        async def sleep(seconds: float) -> None:
            await deferLater(clock, seconds)

        return clock, start(supervised.stop_orphans(Path("/bin/postgres"), Path("/data"), STOPS, sleep))

    def pass_time(self, clock: Clock, seconds: float) -> None:
        clock.pump([supervised.END_POLL_SECONDS] * (int(seconds / supervised.END_POLL_SECONDS) + 2))

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
