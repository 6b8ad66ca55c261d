"""An object of the store that is being read."""

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
        """All of it, where it came together with its head, as small objects do: then there is nothing to pour."""
        whole = self._response.whole()
        return whole if whole is not None and len(whole) == self.length else None

    async def pour(self, sink: ByteSink) -> None:
        """Every byte into ``sink``, as fast as it reads; raises ``BrokenRead``."""
        pour = Pour(sink, self.length, self._clock, self._idle_seconds)
        self._response.deliverBody(pour)
        pour.watch()
        await pour.finished

    def drop(self) -> None:
        """Nobody wants it."""
        self._response.loseConnection()
