"""Large CSV is read in a thread, so that others are answered meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.response import Reply, StreamReply
from project_service.lifecycle import start
from project_service.tables.access import Identity
from project_service.tables.api import TableService
from project_service.tables.assemble import one_at_a_time
from project_service.tables.errors import TableError
from project_service.tables.outcome import Outcome
from project_service.tables.planner import Planned, Planner
from project_service.tables.request.body import INLINE_CSV_BYTES
from project_service.tables.request.request import RawRequest, RequestHeaders
from project_service.tables.transaction_settings import Preamble
from tests.unit.tables.planning import CACHE, CONFIG

T = TypeVar("T")


class Large(SynchronousTestCase):
    def setUp(self) -> None:
        self.threads: list[Deferred[None]] = []
        self.written: list[int] = []
        parts: Any = SimpleNamespace(
            cache=CACHE, identify=lambda *_: Identity("anon", "{}", False), expected=lambda planned: False
        )
        executor, unused = cast(Any, self), cast(Any, None)
        self.service = TableService(
            CONFIG, parts, parts, Planner(CONFIG), unused, executor, unused, parts, self.in_thread
        )

    async def in_thread(self, work: Callable[[], T]) -> T:
        self.threads.append(Deferred())
        await self.threads[-1]
        return work()

    async def execute(self, planned: Planned, preamble: Preamble, path: str, place: object) -> Outcome:
        self.written.append(len(planned.body))
        return Outcome(rows=0)

    def post(self, body: bytes, media: str = "text/csv") -> Deferred[Reply | StreamReply]:
        headers = RequestHeaders.of((("content-type", media),))
        return start(self.service.answer(RawRequest("POST", ("works",), headers=headers, body=body)))

    def test_large_csv_is_read_in_a_thread_and_a_small_one_at_once(self) -> None:
        large = self.post(b"id\n" + b"1\n" * (INLINE_CSV_BYTES // 2))
        self.assertEqual(self.successResultOf(self.post(b"id\n1\n")).status, 201)
        self.assertNoResult(large)
        self.threads.pop().callback(None)
        self.assertEqual(self.successResultOf(large).status, 201)
        self.assertEqual((len(self.written), self.threads), (2, []))

    def test_its_faults_are_refused_as_those_of_any_other(self) -> None:
        refused = self.post(b"id\n" + b"1,2\n" * INLINE_CSV_BYTES)
        self.threads.pop().callback(None)
        self.assertEqual(self.failureResultOf(refused, TableError).value.code, "PGRST102")

    def test_json_of_any_size_is_read_at_once(self) -> None:
        """Its parser lets no other thread run."""
        rows = b",".join([b'{"id":1}'] * INLINE_CSV_BYTES)
        self.assertEqual(self.successResultOf(self.post(b"[" + rows + b"]", "application/json")).status, 201)

    def test_a_client_that_leaves_meanwhile_writes_nothing(self) -> None:
        left = self.post(b"id\n" + b"1\n" * INLINE_CSV_BYTES)
        left.cancel()
        self.failureResultOf(left, CancelledError)
        self.assertEqual(self.written, [])


class Threads:
    """A reactor with a pool of threads in which nothing ends by itself. ``begun`` is what was handed to it."""

    def __init__(self) -> None:
        self.begun: list[tuple[Callable[[bool, Any], None], Callable[[], Any]]] = []

    def getThreadPool(self) -> Threads:
        return self

    def callFromThread(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)

    def callInThreadWithCallback(
        self, told: Callable[[bool, Any], None], work: Callable[[], Any], *_: Any
    ) -> None:
        self.begun.append((told, work))

    def end(self) -> None:
        told, work = self.begun.pop()
        try:
            result = work()
        except Exception:
            told(False, Failure())
        else:
            told(True, result)


class OneAtATime(SynchronousTestCase):
    def setUp(self) -> None:
        self.threads = Threads()
        self.in_thread = one_at_a_time(self.threads)

    def run_in_thread(self, work: Callable[[], T]) -> Deferred[T]:
        async def ran() -> T:
            return await self.in_thread(work)

        return start(ran())

    def test_the_next_begins_when_the_first_has_ended_well_or_not(self) -> None:
        first, second, third = (self.run_in_thread(partial(divmod, 1, number)) for number in (0, 1, 1))
        for one in (first, second, third):
            self.assertEqual(len(self.threads.begun), 1)
            self.assertNoResult(one)
            self.threads.end()
        self.failureResultOf(first, ZeroDivisionError)
        self.assertEqual((self.successResultOf(second), self.successResultOf(third)), ((1, 0), (1, 0)))

    def test_who_leaves_makes_no_room_while_the_work_goes_on(self) -> None:
        first, second = self.run_in_thread(int), self.run_in_thread(int)
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.assertEqual(len(self.threads.begun), 1)
        self.threads.end()
        self.threads.end()
        self.assertEqual(self.successResultOf(second), 0)

    def test_what_nobody_waits_for_any_more_never_begins(self) -> None:
        first, second, third = (self.run_in_thread(int) for _ in range(3))
        second.cancel()
        self.failureResultOf(second, CancelledError)
        self.threads.end()
        self.threads.end()
        self.assertEqual((self.successResultOf(first), self.successResultOf(third)), (0, 0))
        self.assertEqual(self.threads.begun, [])
