"""Reads from the store that are for the service itself, and the cache of small objects."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase, TestCase

from project_service.storage.s3.errors import SAME_PAGE, StoreUnreachable
from project_service.storage.s3.reading import ENTRY_BYTES, SHARE, SmallObjects, list_all, read_all
from project_service.storage.s3.xml import StoredObject, StoredPage
from tests.fakes.store import BUFFERED_BYTES, FakeStream, MemoryStore, in_place_of_s3


class Reading(TestCase):
    async def test_read_all_returns_all_bytes_of_an_object(self) -> None:
        for payload in (b"", b"at hand", b"to be poured" * BUFFERED_BYTES):
            self.assertEqual(await read_all(FakeStream(payload)), payload)

    async def test_list_all_returns_every_page_of_a_listing(self) -> None:
        store = MemoryStore()
        wanted = [f"in/{number:04}" for number in range(2001)]
        for key in ["before", *wanted, "out"]:
            await store.put(key, b"", "text/plain", {})
        pages = [
            [entry.key for entry in page.objects] async for page in list_all(in_place_of_s3(store), "in/")
        ]
        self.assertEqual([len(page) for page in pages], [1000, 1000, 1])
        self.assertEqual([key for page in pages for key in page], wanted)
        self.assertEqual([len(page.objects) async for page in list_all(in_place_of_s3(store), "none/")], [0])

    async def test_a_page_that_comes_twice_ends_the_listing(self) -> None:
        object_a, object_b = StoredObject("a", 1), StoredObject("b", 1)
        for repeating in (
            (StoredPage((object_a,), "on"), StoredPage((object_a,), "on")),
            (StoredPage((object_a,), "on"), StoredPage((object_a,), "another token")),
            (StoredPage((object_a,), "on"), StoredPage((object_b,), "on b"), StoredPage((object_b,), "on b")),
            (StoredPage((), "on"), StoredPage((), "on")),
        ):
            store = cast(Any, PagedStore(repeating))
            with self.assertRaises(StoreUnreachable) as raised:
                async for _ in list_all(store):
                    pass
            self.assertEqual(str(raised.exception), SAME_PAGE)

    async def test_pages_without_objects_may_lead_on(self) -> None:
        filtered = StoredPage((), "on"), StoredPage((), "further"), StoredPage((StoredObject("a", 1),), None)
        self.assertEqual(tuple([page async for page in list_all(cast(Any, PagedStore(filtered)))]), filtered)


class PagedStore(MemoryStore):
    """Lists the given pages, whatever is asked for."""

    def __init__(self, listed: tuple[StoredPage, ...]) -> None:
        super().__init__()
        self._listed = iter(listed)

    async def list(self, prefix: str = "", token: str | None = None, limit: int = 1000) -> StoredPage:
        return next(self._listed)


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

    def test_an_object_that_is_too_large_is_not_cached(self) -> None:
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
