"""Samples of the last hour: what they say, of which processes, and what quantiles are of them."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.database.pool import Pool
from project_service.errors import not_found
from project_service.http.metrics import BUCKETS, MAX_CODES, MULTIPROCESS, Metrics
from project_service.lifecycle import start
from project_service.operators.history import HOUR, KEPT, MAX_ENDED, SECONDS, History, Hour, quantile
from tests.fakes.pools import StillPool
from tests.temporary import temporary_directory

T = TypeVar("T")
# The beginning of ten seconds.
BEGIN = 1_795_230_240
# Above what the kernel gives (proc(5), pid_max).
NO_PROCESS = 2**22 + 1


class Hours(TestCase):
    def setUp(self) -> None:
        self.clock, self.metrics = Clock(), Metrics()
        self.patch(os, "environ", {})
        self.history = self.begun()

    def begun(self) -> History:
        pools = {"system": cast(Pool, StillPool(size=5, open=3, busy=2, waiting=1))}
        history = History(self.metrics, pools, 100, self.clock, self.at_once, self.now)
        history.start()
        self.addCleanup(history.stop)
        return history

    async def at_once(self, function: Callable[[], T]) -> T:
        return function()

    def share(self) -> Path:
        """From now on there are neighbours."""
        folder = temporary_directory(self)
        os.environ[MULTIPROCESS] = str(folder)
        return folder

    def now(self) -> float:
        return BEGIN + self.clock.seconds()

    def requests(self, *seconds: float, status: int = 200) -> None:
        for each in seconds:
            self.metrics.observe("GET", "/x", status, each, 0)

    def hour(self) -> Hour:
        async def turn() -> None:
            await succeed(None)

        return self.successResultOf(start(self.history.hour(turn)))

    def figures(self) -> list[tuple[int, int, int, int]]:
        return [
            (time - BEGIN, one.requests, one.refused, one.failed) for time, one in self.hour().totals.items()
        ]

    def test_each_sample_says_what_happened_in_its_ten_seconds(self) -> None:
        self.requests(0.1, 0.2)
        self.clock.advance(SECONDS)
        self.requests(0.1, status=404)
        self.requests(0.1, status=503)
        self.clock.pump([SECONDS, 5])
        self.assertEqual(self.figures(), [(10, 2, 0, 0), (20, 2, 1, 1)])

    def test_a_sample_has_what_is_open_at_its_end(self) -> None:
        self.clock.pump([SECONDS, 5])
        hour = self.hour()
        (total,) = hour.totals.values()
        self.assertEqual((total.busy, total.clients), (2, 0))
        self.assertGreater(total.memory, 1_000_000)
        (process,) = hour.processes
        self.assertEqual(
            (process.pid, process.pools, process.max_clients), (os.getpid(), {"system": (5, 3, 2, 1)}, 100)
        )

    def test_errors_are_counted_by_code_and_their_number_has_a_limit(self) -> None:
        for _ in range(3):
            self.metrics.failed(not_found())
        self.clock.pump([SECONDS, 5])
        (total,) = self.hour().totals.values()
        self.assertEqual(total.codes, {"404 not_found": 3})
        for n in range(MAX_CODES * 2):
            error = not_found()
            error.code = f"PT{n}"
            self.metrics.failed(error)
        codes = self.metrics.tally().codes
        self.assertEqual((len(codes), codes["404 other"]), (MAX_CODES + 1, MAX_CODES + 1))

    def test_an_hour_is_kept(self) -> None:
        for _ in range(KEPT + 10):
            self.requests(0.1)
            self.clock.advance(SECONDS)
        self.clock.advance(5)
        self.assertEqual(len(self.figures()), KEPT)

    def test_a_timer_that_is_early_makes_no_second_sample_for_the_same_time(self) -> None:
        self.clock.advance(SECONDS - 0.01)
        self.history._take()
        self.clock.pump([0.02, SECONDS, 5])
        self.assertEqual([time for time, *_ in self.figures()], [10, 20])

    def test_what_neighbours_counted_is_added_and_stays_when_they_have_died(self) -> None:
        folder = self.share()
        self.requests(0.1)
        self.clock.pump([SECONDS, 5])
        (own,) = folder.iterdir()
        about, sample = own.read_bytes().split(b"\n")
        pid = b'"pid":%d' % os.getpid()
        for neighbour in (os.getppid(), NO_PROCESS):
            text = about.replace(pid, b'"pid":%d' % neighbour)
            (folder / f"history-{neighbour}.jsonl").write_bytes(text + b"\n" + sample)
        self.assertEqual(self.figures(), [(10, 3, 0, 0)])
        self.assertEqual({one.pid for one in self.hour().processes}, {os.getpid(), os.getppid()})

    def test_a_file_that_cannot_be_read_is_passed_over(self) -> None:
        folder = self.share()
        (folder / "history-1.jsonl").write_bytes(b"{")
        (folder / "history-2.jsonl").write_bytes(b"")
        (folder / "history-3.jsonl").mkdir()
        self.clock.pump([SECONDS, 5])
        self.assertEqual(len(self.hour().processes), 1)

    def test_a_folder_that_is_gone_is_no_failure(self) -> None:
        folder = self.share()
        folder.rmdir()
        self.clock.pump([SECONDS, 5])
        self.assertEqual(len(self.figures()), 1)
        folder.mkdir()  # for the clean-up

    def test_what_processes_left_that_ended_long_ago_is_removed(self) -> None:
        folder = self.share()
        for n in range(2 * MAX_ENDED):
            path = folder / f"history-{NO_PROCESS + n}.jsonl"
            path.touch()
            written = BEGIN - (2 * HOUR if n == 0 else n)
            os.utime(path, (written, written))
        self.begun()
        (folder / f"history-{os.getpid()}.jsonl").unlink()
        left = {int(path.name[8:-6]) - NO_PROCESS for path in folder.iterdir()}
        self.assertEqual(left, set(range(1, MAX_ENDED + 1)))


class Quantiles(TestCase):
    @given(st.lists(st.floats(0, 60), min_size=1), st.sampled_from((0.5, 0.99)))
    def test_a_quantile_is_in_the_bucket_of_the_request_that_is_there(
        self, seconds: list[float], share: float
    ) -> None:
        buckets = [0] * (len(BUCKETS) + 1)
        for each in seconds:
            buckets[bisect_left(BUCKETS, each)] += 1
        found: Any = quantile(buckets, share)
        # The first of which at least that share took no longer.
        there = next(
            each for each in sorted(seconds) if sum(one <= each for one in seconds) >= share * len(seconds)
        )
        n = bisect_left(BUCKETS, there)
        if n == len(BUCKETS):
            self.assertEqual(found, BUCKETS[-1])
        else:
            self.assertLessEqual(found, BUCKETS[n] + 1e-9)
            self.assertGreaterEqual(found, (0, *BUCKETS)[n] - 1e-9)

    def test_without_requests_there_is_none(self) -> None:
        self.assertIsNone(quantile([0] * (len(BUCKETS) + 1), 0.5))
