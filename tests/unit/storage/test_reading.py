"""Reads from the store that are for the service itself and not for a client."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from project_service.storage import download
from project_service.storage.s3.errors import SAME_PAGE, StoreUnreachable
from project_service.storage.s3.xml import StoredObject, StoredPage
from tests.fakes.store import BUFFERED_BYTES, FakeStream, MemoryStore


class Reading(TestCase):
    async def test_whole_returns_all_bytes_of_an_opened_object(self) -> None:
        for payload in (b"", b"at hand", b"to be poured" * BUFFERED_BYTES):
            self.assertEqual(await download.read_all(FakeStream(payload)), payload)

    async def test_pages_returns_every_page_of_a_listing(self) -> None:
        store = MemoryStore()
        wanted = [f"in/{number:04}" for number in range(2001)]
        for key in ["before", *wanted, "out"]:
            await store.put(key, b"", "text/plain", {})
        found = [[entry.key for entry in page.objects] async for page in download.list_all(store, "in/")]
        self.assertEqual([len(page) for page in found], [1000, 1000, 1])
        self.assertEqual([key for page in found for key in page], wanted)
        self.assertEqual([len(page.objects) async for page in download.list_all(store, "none/")], [0])

    async def test_a_page_that_comes_twice_ends_the_listing(self) -> None:
        object_a, object_b = StoredObject("a", 1), StoredObject("b", 1)
        for repeating in (
            (StoredPage((object_a,), "on"), StoredPage((object_a,), "on")),
            (StoredPage((object_a,), "on"), StoredPage((object_a,), "another token")),
            (StoredPage((object_a,), "on"), StoredPage((object_b,), "on b"), StoredPage((object_b,), "on b")),
            (StoredPage((), "on"), StoredPage((), "on")),
        ):
            store = PagedStore(repeating)
            with self.assertRaises(StoreUnreachable) as raised:
                async for _ in download.list_all(store):
                    pass
            self.assertEqual(str(raised.exception), SAME_PAGE)

    async def test_pages_without_objects_may_lead_on(self) -> None:
        filtered = StoredPage((), "on"), StoredPage((), "further"), StoredPage((StoredObject("a", 1),), None)
        self.assertEqual(tuple([page async for page in download.list_all(PagedStore(filtered))]), filtered)


class PagedStore(MemoryStore):
    """Lists the given pages, whatever is asked for."""

    def __init__(self, listed: tuple[StoredPage, ...]) -> None:
        super().__init__()
        self._listed = iter(listed)

    async def list(self, prefix: str = "", token: str | None = None, limit: int = 1000) -> StoredPage:
        return next(self._listed)
