"""Rules of buckets, access, part sizes, upload buffers and other values of storage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import accumulate
from mmap import mmap
from pathlib import Path
from resource import getpagesize
from types import SimpleNamespace
from typing import Any
from unittest import SkipTest
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.errors import ApiError
from project_service.http.caller import Caller, Claims
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.lifecycle import start, timestamp
from project_service.storage import access, durations
from project_service.storage.buckets import parse_rules
from project_service.storage.routes.common import translated
from project_service.storage.s3 import parts
from project_service.storage.s3.errors import BrokenRead, CorruptTransfer, StoreError, StoreUnreachable
from project_service.storage.s3.parts import GROWING_BYTES, PartBuffer, PartSizes
from project_service.storage.sweeper import version_at
from project_service.storage.values import Bucket, BucketRules, store_path


class Durations(SynchronousTestCase):
    def test_the_sweeper_gives_up_only_what_is_dead(self) -> None:
        stale = durations.STALE_AFTER.total_seconds()
        # A renewal may fail to come in time now and then: by a slow database, or a request to the store.
        self.assertLessEqual(10 * durations.RENEWAL_SECONDS, stale)
        self.assertLessEqual(durations.MAX_RESPONSE_SECONDS, stale)
        # What is taken must live for as long as an upload waits before its first renewal.
        self.assertLessEqual(durations.USABLE_SECONDS + durations.RENEWAL_SECONDS, stale / 5)

    def test_who_waits_for_a_resumable_upload_outlasts_a_holder_that_was_killed(self) -> None:
        self.assertGreater(
            durations.HOLD_TIMEOUT_SECONDS, durations.HOLD_SECONDS + durations.HOLD_CHECK_SECONDS
        )
        # A renewal may be late, or a check.
        self.assertGreaterEqual(durations.HOLD_SECONDS, 4 * durations.HOLD_RENEWAL_SECONDS)
        self.assertGreater(
            durations.WAITING_SECONDS, durations.HOLD_RENEWAL_SECONDS + durations.HOLD_CHECK_SECONDS
        )

    def test_unused_reservations_are_released_while_they_could_still_be_taken(self) -> None:
        self.assertLess(2 * durations.UNUSED_SECONDS, durations.USABLE_SECONDS)

    def test_a_changed_rule_holds_within_a_second(self) -> None:
        self.assertLess(durations.BUCKET_FRESH_SECONDS, durations.BUCKET_REREAD_SECONDS)
        self.assertLess(durations.BUCKET_REREAD_SECONDS, 1)


class Rules(SynchronousTestCase):
    @given(
        st.dictionaries(
            st.text(max_size=20), st.one_of(st.none(), st.integers(), st.text(max_size=5), st.booleans())
        )
    )
    def test_any_rules_are_accepted_or_refused(self, sent: dict[str, object]) -> None:
        try:
            BucketRules(**parse_rules(sent))
        except ApiError as error:
            self.assertEqual(error.code, "validation_failed")

    def test_every_fault_of_rules_is_named(self) -> None:
        with self.assertRaises(ApiError) as caught:
            parse_rules({"visibility": "x", "max_object_bytes": 0, "what": 0, "owner_only_writes": True})
        details = caught.exception.details or {}
        self.assertEqual(sorted(details), ["max_object_bytes", "visibility", "what"])
        self.assertEqual(details["what"], "is not a rule of a bucket")

    def test_who_may_read_and_write(self) -> None:
        user = Claims("11111111-1111-4111-8111-111111111111", "a@b.test", "authenticated", "s", 1)
        private = Bucket("b", BucketRules(), 0, 0, datetime(2026, 1, 1, tzinfo=UTC))
        self.assertRaises(ApiError, access.check_read, Caller("anon"), private)
        access.check_read(Caller("anon", user), private)
        access.check_read(Caller("service"), private)
        self.assertRaises(ApiError, access.writer_of, Caller("anon"))
        self.assertEqual(access.writer_of(Caller("service", user)).user_id, UUID(user.sub))
        self.assertFalse(access.writer_of(Caller("anon", user)).is_service)


class Small(SynchronousTestCase):
    def test_timestamps(self) -> None:
        east = timezone(timedelta(hours=2))
        self.assertEqual(
            timestamp(datetime(2026, 11, 21, 5, 4, 5, 678901, tzinfo=east)), "2026-11-21T03:04:05.678Z"
        )
        self.assertEqual(timestamp(datetime(2026, 11, 21, tzinfo=UTC)), "2026-11-21T00:00:00.000Z")

    @given(st.integers(0, 5 * 1024**4), st.integers(5 * 1024**2, 5 * 1024**3))
    @example(10_000 * 5 * 1024**2, 5 * 1024**2)
    @example(10_000 * 5 * 1024**2 + 1, 5 * 1024**2)
    @settings(max_examples=20, deadline=None)
    def test_part_sizes_suffice_for_the_largest_object_and_grow_late(
        self, expected: int, part_bytes: int
    ) -> None:
        sizes, count = PartSizes.up_to(expected, part_bytes), 10_000  # as S3 has it
        each = [sizes.of(number) for number in range(1, count + 1)]
        self.assertGreaterEqual(sum(each), expected)
        self.assertEqual(set(each[:1000]), {part_bytes})
        self.assertEqual(each, sorted(each))
        self.assertLessEqual(each[-1], max(part_bytes, expected // count * 2))
        for some in (0, 1, 999, 1000, 1001, 2000, 5432, count):
            self.assertEqual(sizes.total(some), sum(each[:some]))
        if expected <= count * part_bytes:
            self.assertEqual(each[-1], part_bytes)

    @given(st.uuids())
    def test_only_paths_made_by_the_service_name_versions(self, version: UUID) -> None:
        for bucket in ("b", "B", "Old & new", "a?b"):
            path = store_path(bucket, version)
            self.assertEqual((version_at(path), path.count("/")), (version, 1))
        for path in (
            f"~Yg/{version}",
            f"~Qg=/{version}",
            f"~/{version}",
            f"~_w/{version}",
            str(version),
            f"B/{version}",
            f"b/{version}/x",
            f"b/{version.hex}",
            f"b/{{{version}}}",
            "b/x",
            "",
        ):
            self.assertIsNone(version_at(path), path)

    def test_failures_of_the_store_reveal_nothing_to_clients(self) -> None:
        async def failing(failure: Exception) -> None:
            async def handler(request: Request) -> Reply:
                raise failure

            request: Any = SimpleNamespace(request_id="one")
            await translated(handler)(request)

        for failure in (
            StoreUnreachable("http://10.0.0.1 secret"),
            StoreError(403, "AccessDenied"),
            BrokenRead("x"),
            CorruptTransfer("secret"),
        ):
            error = self.failureResultOf(start(failing(failure)), ApiError).value
            self.assertEqual((error.status, error.code), (503, "store_unavailable"))
            self.assertNotIn(b"secret", error.body())
        self.failureResultOf(start(failing(ValueError())), ValueError)


def _resident() -> int:
    """Bytes of memory that this process has now (proc(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


class Buffers(SynchronousTestCase):
    def test_a_part_buffer_returns_what_was_put_in(self) -> None:
        for pieces in ((3, GROWING_BYTES, 5), (GROWING_BYTES - 1, 1, 1), (GROWING_BYTES + 7,)):
            buffer, sent = PartBuffer(2 * GROWING_BYTES), b""
            for turn in range(2):
                buffer.clear()
                sent = b"".join(bytes([65 + turn + n]) * size for n, size in enumerate(pieces))
                for first, size in zip(accumulate((0, *pieces)), pieces, strict=False):
                    self.assertEqual(buffer.take(memoryview(sent)[first : first + size]), size)
                self.assertEqual(buffer.view(), sent)
            left = 2 * GROWING_BYTES - len(sent)
            self.assertEqual(buffer.take(memoryview(b"z" * (left + 1))), left)
            self.assertTrue(buffer.full)

    def test_a_growing_part_is_moved_once(self) -> None:
        made: list[mmap] = []

        def noted(fileno: int, size: int, flags: int) -> mmap:
            made.append(mmap(fileno, size, flags=flags))
            return made[-1]

        self.patch(parts, "mmap", noted)
        buffer = PartBuffer(4 * GROWING_BYTES)
        for turn in range(1, 30):
            buffer.take(memoryview(b"x" * (GROWING_BYTES // 10)))
            self.assertEqual(len(made), int(turn > 10))

    def test_a_part_buffer_takes_no_more_memory_than_was_written(self) -> None:
        """A client that begins many uploads and stalls must not make the service hold eight times what it sent."""
        if not Path("/proc/self/statm").exists():
            raise SkipTest("there is no /proc")
        before, some = _resident(), memoryview(b"x" * (GROWING_BYTES + 1))
        buffers = [PartBuffer(16 * GROWING_BYTES) for _ in range(8)]
        for buffer in buffers:
            self.assertEqual(buffer.take(some), len(some))
        self.assertLess(_resident() - before, 40 * GROWING_BYTES)
