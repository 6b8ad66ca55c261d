"""Reads from the store that are for the service itself and not for a client."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from project_service.storage import reading
from tests.store_fake import AT_HAND_BYTES, FakeOpened, MemoryStore


class Reading(TestCase):
    async def test_whole_returns_all_bytes_of_an_opened_object(self) -> None:
        for payload in (b"", b"at hand", b"to be poured" * AT_HAND_BYTES):
            self.assertEqual(await reading.whole(FakeOpened(payload)), payload)

    async def test_pages_returns_every_page_of_a_listing(self) -> None:
        store = MemoryStore()
        wanted = [f"in/{number:04}" for number in range(2001)]
        for key in ["before", *wanted, "out"]:
            await store.put(key, b"", "text/plain", {})
        found = [[entry.key for entry in page.objects] async for page in reading.pages(store, "in/")]
        self.assertEqual([len(page) for page in found], [1000, 1000, 1])
        self.assertEqual([key for page in found for key in page], wanted)
        self.assertEqual([len(page.objects) async for page in reading.pages(store, "none/")], [0])
