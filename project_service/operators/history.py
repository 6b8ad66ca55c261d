"""What the last hour was like: a sample every ten seconds, kept in memory, of all processes of this service.

Each process keeps its own samples (``History``). With several workers it also writes them to a file in the folder
that ``PROMETHEUS_MULTIPROC_DIR`` names, where whichever worker is asked finds those of the others. A sample says what
happened in its ten seconds, so that those of a worker that has died stay true; what a process holds now, such as
memory, is only read of those that are alive.
"""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import orjson
from attrs import define, field, frozen
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from project_service.database.pool import Pool
from project_service.http.metrics import BUCKETS, MULTIPROCESS, Metrics, Tally
from project_service.lifecycle import InThread, background, cancel

SECONDS = 10
KEPT = 360
# A process that has written nothing for so long is not shown any more, and its samples are too old.
HOUR = SECONDS * KEPT
# Files of so many processes that have ended are kept: one that ends again and again must not fill the folder.
MAX_ENDED = 8
# A sample of the last ten seconds is there this long after their end, also that of a busy neighbour.
LATE_SECONDS = 2

# So many samples are added up in one turn of the reactor: less than a millisecond.
TURN_SAMPLES = 120

Turn = Callable[[], Awaitable[None]]

_FILE = "history-{}.jsonl"
_PAGE_BYTES = resource.getpagesize()


@frozen
class Sample:
    """What happened in the ``SECONDS`` before ``time`` (seconds since the epoch), and what there was at their end.

    ``buckets`` are how many requests took how long, as in ``Tally``; ``busy`` are connections to databases in use,
    ``waiting`` requests that wait for their turn, ``memory`` is in bytes.
    """

    time: int
    requests: int = 0
    refused: int = 0
    failed: int = 0
    buckets: Sequence[int] = ()
    codes: Mapping[str, int] = field(factory=dict)
    clients: int = 0
    busy: int = 0
    waiting: int = 0
    memory: int = 0

    def line(self) -> bytes:
        values = [self.time, self.requests, self.refused, self.failed, list(self.buckets), dict(self.codes)]
        return orjson.dumps([*values, self.clients, self.busy, self.waiting, self.memory])


@frozen
class Process:
    """One process as it was a moment ago. ``pools`` are its connections to databases by name: those that there may
    be, those that are open, those in use, and the callers that wait for one."""

    pid: int
    started: float
    memory: int
    clients: int
    max_clients: int
    requests: int
    pools: Mapping[str, Sequence[int]]


@define
class Total:
    """The samples of all processes for the same time, added up."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    clients: int = 0
    busy: int = 0
    waiting: int = 0
    memory: int = 0
    buckets: list[int] = field(factory=lambda: [0] * (len(BUCKETS) + 1))
    codes: dict[str, int] = field(factory=dict)

    def add(self, one: Sample | Total) -> None:
        self.requests += one.requests
        self.refused += one.refused
        self.failed += one.failed
        self.clients += one.clients
        self.busy += one.busy
        self.waiting += one.waiting
        self.memory += one.memory
        if one.requests:
            self.buckets = list(map(add, self.buckets, one.buckets))
        for code, count in one.codes.items():
            self.codes[code] = self.codes.get(code, 0) + count


@frozen
class Hour:
    """``processes`` are those that are alive; ``totals`` are by the time at the end of their ten seconds, the oldest
    first."""

    processes: Sequence[Process]
    totals: Mapping[int, Total]


class History:
    """The samples of this process and of its neighbours. ``start`` begins to take them."""

    def __init__(
        self,
        metrics: Metrics,
        pools: Mapping[str, Pool],
        max_clients: int,
        clock: IReactorTime,
        in_thread: InThread,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        self._pools = pools
        self._max_clients = max_clients
        self._clock = clock
        self._in_thread = in_thread
        self._now = now
        self._started = now()
        self._lines: deque[bytes] = deque(maxlen=KEPT)
        self._before = Tally()
        self._requests = 0
        self._next: IDelayedCall | None = None

    def start(self) -> None:
        _remove_old(self._now())
        self._leave()
        self._schedule()

    def stop(self) -> None:
        cancel(self._next)

    def _schedule(self) -> None:
        # All processes take them at the same times, so that they can be added up; none takes two for the same time,
        # even if its timer is early.
        left = SECONDS - self._now() % SECONDS
        self._next = self._clock.callLater(left if left > SECONDS / 2 else left + SECONDS, self._take)

    def _take(self) -> None:
        self._schedule()
        sample = self._sample()
        self._requests = sample.requests
        self._lines.append(sample.line())
        self._leave()

    def _leave(self) -> None:
        """Leave what neighbours ask for where they find it."""
        folder = _folder()
        if folder is None:
            return
        content = b"\n".join([orjson.dumps(self._about()), *self._lines])
        # In a thread: a file that replaces another may have to reach the disk first.
        write = partial(_write, folder / _FILE.format(os.getpid()), content)
        background(self._in_thread(write), "leaving the history for other processes")

    def _sample(self) -> Sample:
        """What happened since the sample before."""
        tally, before = self._metrics.tally(), self._before
        self._before = Tally(
            tally.requests, tally.refused, tally.failed, list(tally.buckets), dict(tally.codes)
        )
        codes = {code: count - before.codes.get(code, 0) for code, count in tally.codes.items()}
        return Sample(
            round(self._now() / SECONDS) * SECONDS,
            tally.requests - before.requests,
            tally.refused - before.refused,
            tally.failed - before.failed,
            [now - then for now, then in zip(tally.buckets, before.buckets, strict=True)],
            {code: count for code, count in codes.items() if count},
            self._metrics.clients,
            sum(pool.busy for pool in self._pools.values()),
            self._metrics.waiting,
            resident_bytes(),
        )

    def _about(self) -> dict[str, Any]:
        pools = {name: (pool.size, pool.open, pool.busy, pool.waiting) for name, pool in self._pools.items()}
        return {
            "pid": os.getpid(),
            "started": self._started,
            "memory": resident_bytes(),
            "clients": self._metrics.clients,
            "max_clients": self._max_clients,
            "requests": self._requests,
            "pools": pools,
        }

    async def hour(self, turn: Turn) -> Hour:
        """The last hour. ``turn`` lets the reactor do something else."""
        processes = [Process(**self._about())]
        totals: dict[int, Total] = {}
        await self._add(totals, list(self._lines), turn)
        for about, lines in _neighbours():
            if _is_alive(about["pid"]):
                processes.append(Process(**about))
            await self._add(totals, lines, turn)
        processes.sort(key=lambda one: one.started)
        return Hour(processes, dict(sorted(totals.items())))

    async def _add(self, totals: dict[int, Total], lines: Sequence[bytes], turn: Turn) -> None:
        for n in range(0, len(lines), TURN_SAMPLES):
            await turn()
            now = self._now()
            for values in orjson.loads(b"[" + b",".join(lines[n : n + TURN_SAMPLES]) + b"]"):
                sample = Sample(*values)
                if now - HOUR < sample.time <= now - LATE_SECONDS:
                    total = totals.get(sample.time)
                    if total is None:
                        total = totals[sample.time] = Total()
                    total.add(sample)


def _write(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".new")
    # The folder is gone, or the disk is full: neighbours do without.
    with suppress(OSError):
        draft.write_bytes(content)
        draft.replace(path)


def _folder() -> Path | None:
    """Where neighbours leave their samples; None for a process without any."""
    folder = os.environ.get(MULTIPROCESS)
    return None if folder is None else Path(folder)


def _neighbours() -> Iterator[tuple[dict[str, Any], list[bytes]]]:
    """What each other process has written about itself, and its samples."""
    folder = _folder()
    own = _FILE.format(os.getpid())
    for path in sorted(folder.glob(_FILE.format("*"))) if folder is not None else ():
        if path.name != own:
            try:
                about, *lines = path.read_bytes().split(b"\n")
                yield orjson.loads(about), lines
            except (OSError, ValueError):  # it was removed meanwhile, or is not ours
                continue


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's by now
        return False
    return True


def _remove_old(now: float) -> None:
    """Remove what processes have left that ended more than an hour ago, and of others all but the last ones."""
    folder = _folder()
    if folder is None:
        return
    ended: list[tuple[float, Path]] = []
    for path in folder.glob(_FILE.format("*")):
        pid = path.name.removeprefix("history-").partition(".")[0]
        if not pid.isdigit() or not _is_alive(int(pid)):
            ended.append((path.stat().st_mtime, path))
    for n, (written, path) in enumerate(sorted(ended, reverse=True)):
        if n >= MAX_ENDED or written < now - HOUR:
            path.unlink(missing_ok=True)


def resident_bytes() -> int:
    """The memory that this process uses (``/proc/self/statm``, proc(5)); 0 where that cannot be read."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """The time in seconds within which ``share`` of the requests were answered, as far as their ``buckets`` tell:
    between the bounds of a bucket they are taken as evenly spread. None without requests; what took longer than the
    last bound counts as that."""
    left = sum(buckets) * share
    if left == 0:
        return None
    lower = 0.0
    for bound, count in zip(BUCKETS, buckets[:-1], strict=True):
        if left <= count:
            return lower + (bound - lower) * left / count
        left -= count
        lower = bound
    return lower
