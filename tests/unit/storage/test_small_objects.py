"""The cache of small objects: it stays within its size, and keeps those read last."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.storage.download import ENTRY_BYTES, SHARE, SmallObjects

# An object of so many bytes is the largest that is kept in a room for ``SHARE`` of them.
LARGEST = 88
ROOM = SHARE * (ENTRY_BYTES + LARGEST)


def version(number: int) -> UUID:
    return UUID(int=number)


def body_of(number: int, size: int) -> bytes:
    return bytes([number % 256]) * size


class Small(SynchronousTestCase):
    def test_the_least_recently_read_object_is_dropped(self) -> None:
        small = SmallObjects(ROOM)
        for number in range(SHARE):
            small.add(version(number), body_of(number, LARGEST))
        self.assertIsNotNone(small.get(version(0)))
        small.add(version(SHARE), body_of(SHARE, LARGEST))
        missing = [number for number in range(SHARE + 1) if small.get(version(number)) is None]
        self.assertEqual(missing, [1])

    def test_the_whole_size_is_used_however_often_it_was_full(self) -> None:
        small = SmallObjects(ROOM)
        for number in range(20 * SHARE):
            for _ in range(2):
                small.add(version(number), body_of(number, LARGEST))
        there = [number for number in range(20 * SHARE) if small.get(version(number)) is not None]
        self.assertEqual(there, list(range(19 * SHARE, 20 * SHARE)))

    def test_an_object_that_is_too_large_is_not_kept(self) -> None:
        small = SmallObjects(ROOM)
        small.add(version(1), body_of(1, LARGEST))
        small.add(version(2), body_of(2, LARGEST + 1))
        self.assertEqual(small.get(version(1)), body_of(1, LARGEST))
        self.assertIsNone(small.get(version(2)))

    def test_a_size_of_zero_keeps_nothing(self) -> None:
        small = SmallObjects(0)
        small.add(version(1), b"")
        self.assertIsNone(small.get(version(1)))

    @given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, LARGEST + 9), st.booleans())))
    def test_the_size_is_never_exceeded_and_no_other_object_returned(
        self, uses: list[tuple[int, int, bool]]
    ) -> None:
        small = SmallObjects(ROOM)
        bodies: dict[int, bytes] = {}
        for number, size, kept in uses:
            if kept:
                small.add(version(number), bodies.setdefault(number, body_of(number, size)))
            else:
                self.assertIn(small.get(version(number)), (None, bodies.get(number)))
        there = [body for number in bodies if (body := small.get(version(number))) is not None]
        self.assertLessEqual(sum(len(body) + ENTRY_BYTES for body in there), ROOM)
