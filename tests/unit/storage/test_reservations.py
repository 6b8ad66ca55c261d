"""Reserving versions in advance: each upload has a reserved version of its own, and none is left behind."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from project_service.errors import ApiError, database_unavailable
from project_service.lifecycle import start
from project_service.storage.durations import RELEASE_TIMEOUT_SECONDS, STALE_AFTER, UNUSED_SECONDS
from project_service.storage.reservations import MAX_AHEAD
from tests.captured_log import captured_logs
from tests.fakes.reservations import Reserving

# The sizes of the reservations of a burst, and how many uploads they are for.
GROWING = [1, 2, 4, 8, 16, 32]


class InAdvance(SynchronousTestCase):
    def setUp(self) -> None:
        self.uploads = Reserving()
        self.rows, self.clock = self.uploads.rows, self.uploads.clock
        self.reservations = self.uploads.reservations

    def begin(self, count: int = 1, bucket: str = "b") -> None:
        for _ in range(count):
            self.successResultOf(self.uploads.begin(bucket))

    def release(self) -> None:
        self.successResultOf(start(self.reservations.release_unused()))

    def test_an_upload_now_and_then_reserves_only_itself(self) -> None:
        for _ in range(3):
            self.begin()
            self.clock.advance(UNUSED_SECONDS)
            self.release()
        self.assertEqual((self.rows.sizes, self.uploads.unused), ([1, 1, 1], set()))

    def test_the_longer_a_burst_the_fewer_uploads_wait_for_the_database(self) -> None:
        self.begin(sum(GROWING) + 10 * MAX_AHEAD)
        self.assertEqual(self.rows.sizes[: len(GROWING)], GROWING)
        self.assertEqual(set(self.rows.sizes[len(GROWING) :]), {MAX_AHEAD + 1})
        self.assertLess(len(self.rows.sizes), len(GROWING) + 12)

    def test_the_next_are_reserved_before_the_last_is_taken(self) -> None:
        self.begin(sum(GROWING))
        self.rows.hold = True
        self.begin(MAX_AHEAD)
        self.assertEqual(len(self.rows.held), 1)
        self.rows.held.pop().callback(None)
        self.rows.hold = False
        self.begin(MAX_AHEAD)

    def test_what_is_reserved_for_others_is_not_in_the_trace_of_an_upload(self) -> None:
        upload, seen = ContextVar("upload", default=""), list[str]()
        reserve = self.rows.reserve_uploads

        async def seeing(versions: Sequence[UUID], bucket: str) -> None:
            seen.append(upload.get())
            await reserve(versions, bucket)

        self.rows.reserve_uploads = seeing  # type: ignore[method-assign]
        self.begin(sum(GROWING))
        seen.clear()
        upload.set("a")
        self.begin(MAX_AHEAD)
        self.assertEqual(seen, [""])

    def test_of_uploads_that_begin_at_once_one_provides_for_others(self) -> None:
        self.begin()
        self.rows.hold = True
        beginning = [self.uploads.begin() for _ in range(4)]
        self.assertEqual(self.rows.sizes, [1, 2, 1, 1, 1])
        for held in self.rows.held:
            held.callback(None)
        for one in beginning:
            self.successResultOf(one)
        self.assertEqual(len(self.uploads.unused), 1)
        # The burst goes on where it was.
        self.rows.hold = False
        self.begin(2)
        self.assertEqual(self.rows.sizes[5:], [4])

    def test_each_bucket_has_its_own(self) -> None:
        self.begin(3, "a")
        self.begin(1, "b")
        self.assertEqual(self.rows.sizes, [1, 2, 1])

    def test_what_nobody_takes_is_released_and_the_burst_is_over(self) -> None:
        self.begin(10)
        self.assertNotEqual(self.uploads.unused, set())
        self.clock.advance(UNUSED_SECONDS - 0.1)
        self.release()
        self.assertNotEqual(self.uploads.unused, set())
        self.clock.advance(0.1)
        self.release()
        self.assertEqual(self.uploads.unused, set())
        self.begin()
        self.assertEqual(self.rows.sizes[-1], 1)

    def test_what_the_sweeper_may_have_given_up_is_not_taken(self) -> None:
        """Nobody has released it while the process was stopped, or in an import, which does not do so."""
        self.begin(sum(GROWING))
        self.clock.advance(STALE_AFTER.total_seconds())
        self.rows.sweep()
        self.begin(2 * MAX_AHEAD)

    def test_nor_if_its_reservation_was_answered_late(self) -> None:
        self.begin(sum(GROWING))
        self.rows.hold = True
        self.begin(len(self.uploads.unused))
        self.clock.advance(STALE_AFTER.total_seconds())
        self.rows.sweep()
        self.rows.hold = False
        self.rows.held.pop().callback(None)
        self.begin(2 * MAX_AHEAD)

    def test_none_grows_old_in_a_burst_that_lasts(self) -> None:
        """After a quarter of an hour the sweeper would give it up."""
        for _ in range(500):
            self.begin(MAX_AHEAD)
            self.clock.advance(0.9 * UNUSED_SECONDS)
        ages = [self.clock.seconds() - self.rows.times[version] for version in self.uploads.unused]
        self.assertLess(max(ages), 2 * UNUSED_SECONDS)

    def test_a_slow_database_does_not_make_them_old(self) -> None:
        self.rows.hold = True
        slow = self.uploads.begin()
        self.clock.advance(2 * UNUSED_SECONDS)
        self.rows.held.pop().callback(None)
        self.successResultOf(slow)
        self.assertEqual(self.rows.sizes, [1])

    def test_a_client_that_leaves_early_leaves_its_version_to_others(self) -> None:
        self.rows.hold = True
        leaving = self.uploads.begin()
        leaving.addErrback(lambda _: None)
        leaving.cancel()
        self.successResultOf(leaving)
        self.rows.held.pop().callback(None)
        self.begin()
        self.assertEqual(self.rows.sizes, [1])

    def test_nothing_is_released_while_more_is_being_reserved(self) -> None:
        self.rows.hold = True
        slow = self.uploads.begin()
        self.clock.advance(UNUSED_SECONDS)
        self.release()
        self.rows.held.pop().callback(None)
        self.successResultOf(slow)
        self.assertEqual((self.rows.sizes, self.uploads.unused), ([1], set()))

    def test_an_outage_is_reported_to_those_who_need_the_database(self) -> None:
        self.begin(sum(GROWING))
        self.rows.fault = database_unavailable()
        with captured_logs() as events:
            self.begin(len(self.uploads.unused))
        self.assertEqual(list(events), [])
        for _ in range(10):
            self.failureResultOf(self.uploads.begin(), ApiError)
        self.rows.fault = None
        self.begin()

    def test_a_failure_is_no_reason_to_reserve_more(self) -> None:
        self.rows.fault = database_unavailable()
        for _ in range(10):
            self.failureResultOf(self.uploads.begin(), ApiError)
        self.rows.fault = None
        self.begin()
        self.assertEqual(self.rows.sizes[-1], 2)

    def test_a_fault_in_the_background_is_logged(self) -> None:
        self.begin(sum(GROWING))
        self.rows.fault = TypeError("ours")
        self.begin(len(self.uploads.unused))
        self.assertNotEqual(self.flushLoggedErrors(TypeError), [])

    def test_at_the_end_everything_is_released_or_left_to_the_sweeper(self) -> None:
        for fault, left in ((None, 0), (database_unavailable(), 1)):
            self.begin(2)
            self.rows.fault = fault
            with captured_logs() as events:
                self.end()
            self.assertEqual(len(self.uploads.unused), left)
            self.assertEqual([event["log_level"].name for event in events], ["warn"] * left)

    def test_what_is_being_reserved_at_the_end_is_released_too(self) -> None:
        """In the background, or for a client that has left."""
        self.begin(sum(GROWING))
        self.rows.hold = True
        self.begin(len(self.uploads.unused))
        leaving = self.uploads.begin("other")
        leaving.addErrback(lambda _: None)
        leaving.cancel()
        ending = start(self.reservations.release_all())
        self.rows.hold = False
        for held in self.rows.held:
            self.assertNoResult(ending)
            held.callback(None)
        self.successResultOf(ending)
        self.assertEqual(self.uploads.unused, set())
        # A request that still comes is served.
        self.begin()

    def test_the_end_does_not_wait_for_a_database_that_says_nothing(self) -> None:
        self.begin(2)
        self.rows.hold = True
        for work in (self.reservations.release_unused, self.reservations.release_all):
            self.clock.advance(UNUSED_SECONDS)
            with captured_logs() as events:
                waiting = start(work())
                self.clock.advance(RELEASE_TIMEOUT_SECONDS)
                self.successResultOf(waiting)
            self.assertEqual([event["log_level"].name for event in events], ["warn"])
            self.rows.hold = False
            self.begin(2)
            self.rows.hold = True

    def test_being_cancelled_is_no_failure(self) -> None:
        self.begin(2)
        self.rows.hold = True
        ending = start(self.reservations.release_all())
        ending.cancel()
        self.failureResultOf(ending, CancelledError)

    def end(self) -> None:
        self.successResultOf(start(self.reservations.release_all()))


class AnyOrder(SynchronousTestCase):
    @given(st.lists(st.sampled_from(["begin", "wait", "stop", "release", "hold", "answer"]), max_size=200))
    def test_each_upload_has_an_reserved_version_and_in_the_end_none_is_left(self, steps: list[str]) -> None:
        uploads = Reserving()
        rows, beginning = uploads.rows, []

        def release() -> None:
            held, rows.hold = rows.hold, False
            self.successResultOf(start(uploads.reservations.release_unused()))
            rows.hold = held

        for step in steps:
            if step == "begin":
                beginning.append(uploads.begin())
            elif step == "wait":
                uploads.clock.advance(UNUSED_SECONDS / 2)
            elif step == "stop":
                # A process that stands still sends nothing and hears nothing, nor do its timers run.
                uploads.clock.rightNow += STALE_AFTER.total_seconds()
                rows.sweep()
            elif step == "release":
                release()
            elif step == "hold":
                rows.hold = True
            elif rows.held:
                rows.held.pop(0).callback(None)
        rows.hold = False
        while rows.held:
            rows.held.pop().callback(None)
        for one in beginning:
            self.successResultOf(one)
        uploads.clock.advance(UNUSED_SECONDS)
        release()
        release()
        self.assertEqual(uploads.unused, set())
        self.assertEqual(len(rows.released), uploads.count - len(uploads.taken))
