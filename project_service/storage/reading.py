"""How the service itself reads from the store: small objects into memory, and the list of everything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from attrs import field, frozen

from project_service.storage.ports import Opened, Store
from project_service.storage.s3.errors import SAME_PAGE, StoreUnreachable
from project_service.storage.s3.listing import StoredPage


async def whole(opened: Opened) -> bytes:
    """All bytes of ``opened``. Raises ``BrokenRead`` where the store stops before the end."""
    at_hand = opened.at_hand()
    if at_hand is not None:
        return at_hand
    gathered = _Gathered()
    await opened.pour(gathered)
    return bytes(gathered.data)


async def pages(store: Store, prefix: str = "") -> AsyncIterator[StoredPage]:
    """Everything that the store has under ``prefix``, page by page.

    Raises ``StoreUnreachable`` where a page comes twice, as from a store that ignores where to go on: there would be
    no end.
    """
    page = await store.list(prefix, None)
    yield page
    while page.next_token is not None:
        following = await store.list(prefix, page.next_token)
        # Pages without objects may follow each other, as long as they lead somewhere.
        if following.objects == page.objects and (page.objects or following.next_token == page.next_token):
            raise StoreUnreachable(SAME_PAGE)
        page = following
        yield page


@frozen(eq=False)
class _Gathered:
    """A ``ByteSink`` that keeps everything. It needs no back-pressure, as only small objects are read with it."""

    data: bytearray = field(factory=bytearray, init=False)

    def write(self, data: bytes) -> None:
        self.data.extend(data)

    def take(self, source: int, most: int) -> int:
        return 0

    def register_producer(self, producer: Any) -> None:
        return

    def unregister_producer(self) -> None:
        return
