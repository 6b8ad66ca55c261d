"""Rounds of SIGKILL at random moments under a mixed load: a server, a worker, or the parent with everything.

The load has pictures in other sizes and upload links too; resumable uploads have a run of their own, ``uploads``. In
the end everything is deleted, and nothing may be left in the store.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic

from tests.chaos.leftovers import judge_emptiness
from tests.chaos.storage_clients import LinkClient, PictureClient
from tests.live.daemon import Daemon, answers, eventually, pid_of, workers_of
from tests.live.loaded_service import (
    credentials,
    gone_on,
    judge,
    load_on,
    make_ledger,
    started,
    warmed_up,
)
from tests.live.mixed_load import Load

CLIENTS = {"pictures": PictureClient, "links": LinkClient}
VICTIMS = ("postgres", "weed", "worker", "parent")


class Rounds:
    def __init__(self, directory: Path, random: Random) -> None:
        self._directory = directory
        self._random = random
        self._services = ExitStack()

    def run(self, rounds: int) -> None:
        """Raises ``AssertionError`` where something acknowledged is gone or an answer is wrong."""
        with self._services:
            daemon = self._services.enter_context(started(self._directory))
            make_ledger(self._directory)
            with load_on(self._directory, more=CLIENTS) as load:
                warmed_up(load)
                begun = monotonic()
                for number in range(1, rounds + 1):
                    daemon = self._round(number, daemon, load)
                load.stop()
                judge(load, f"{rounds} rounds of SIGKILL", begun)
            judge_emptiness(self._directory)

    def _round(self, number: int, daemon: Daemon, load: Load) -> Daemon:
        victim = self._random.choice(VICTIMS)
        load.pause(self._random.uniform(0.1, 1.5))
        since = monotonic()
        if victim == "parent":
            daemon.kill()
            daemon = self._services.enter_context(started(self._directory))
            load.base_url = credentials(self._directory)["base_url"]
        elif victim == "worker":
            before = workers_of(daemon)
            os.kill(self._random.choice(sorted(before)), signal.SIGKILL)
            eventually(lambda: len(workers_of(daemon) - before) == 1, "a new worker")
        else:
            old = pid_of(self._directory / "var", victim)
            os.kill(old, signal.SIGKILL)
            eventually(lambda: pid_of(self._directory / "var", victim) not in {0, old}, f"a new {victim}")
        eventually(lambda: answers(f"{load.base_url}/ready"), "readiness")
        gone_on(load)
        away = "  ".join(f"{part} {load.tallies[part].outage(since):5.2f} s" for part in load.tallies)
        print(f"round {number:2}: {victim:8} killed; longest time without an acknowledgement: {away}")
        return daemon
