"""An object that has been opened for reading at the store."""

from __future__ import annotations

from attrs import frozen
from twisted.internet.interfaces import IReactorTime

from project_service.storage.s3.body import ByteSink, Pour
from project_service.storage.s3.response import StoreResponse


@frozen(eq=False)
class OpenedObject:
    """An object whose head has arrived and whose bytes wait at the store until somebody takes or drops them."""

    length: int
    _response: StoreResponse
    _clock: IReactorTime
    _idle_seconds: float

    def at_hand(self) -> bytes | None:
        """All bytes, if they came together with the head, as those of small objects do; else None.

        There is nothing to pour then.
        """
        whole = self._response.whole()
        return whole if whole is not None and len(whole) == self.length else None

    async def pour(self, sink: ByteSink) -> None:
        """Write every byte into ``sink``, as fast as its reader takes them. Raises ``BrokenRead`` or
        ``ReaderLeft``."""
        pour = Pour(sink, self.length, self._clock, self._idle_seconds)
        self._response.deliverBody(pour)
        pour.watch()
        await pour.finished

    def drop(self) -> None:
        """Close without reading."""
        self._response.loseConnection()
