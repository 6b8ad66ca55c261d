"""What processes hold in real memory, measured from outside. Source: proc(5)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from attrs import frozen

MIB = 1024 * 1024
_LOOK_SECONDS = 0.02


@frozen
class Held:
    """MiB: before the work, and the most while it ran."""

    before: float
    peak: float

    @property
    def growth(self) -> float:
        return self.peak - self.before


def resident(*pids: int) -> float:
    """MiB of all of them together."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def held_during(work: Callable[[], None], *pids: int) -> Held:
    """What they hold all together while ``work`` runs."""
    before = resident(*pids)
    peak = before
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(_LOOK_SECONDS):
            peak = max(peak, resident(*pids))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return Held(before, peak)


def calm(measure: Callable[[], float], seconds: float) -> float:
    """The least of ``measure`` within ``seconds``."""
    until = time.monotonic() + seconds
    least = measure()
    while time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        least = min(least, measure())
    return least
