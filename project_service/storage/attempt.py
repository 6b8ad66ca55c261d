"""A version on its way to be an object, and what the store was asked for on its behalf."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

from attrs import define
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from project_service.deferreds import start
from project_service.errors import ApiError
from project_service.storage.s3.errors import StoreError
from project_service.storage.upload import PartStream

T = TypeVar("T")


@define(eq=False)
class Attempt:
    """``asked``: the store was asked to make it, and has not answered. ``left``: nobody wants it any more."""

    version: UUID
    bucket: str
    parts: PartStream | None = None
    asked: bool = False
    left: bool = False
    _going: Deferred[Any] | None = None

    async def answered(self, asking: Awaitable[T]) -> T:
        """What ``asking`` returns. A refusal, ours or the store's, is an answer too."""
        self.asked = True
        try:
            answer = await asking
        except (ApiError, StoreError):
            self.asked = False
            raise
        self.asked = False
        return answer

    async def seen_through(self, asking: Coroutine[Deferred[Any], Any, T]) -> T:
        """As ``answered``, but who leaves meanwhile does not interrupt it: ``over`` waits for its end."""
        waiting: Deferred[T] = Deferred()

        def tell(result: T | Failure) -> None:
            # Whoever is told may ask for what is over at once, from in here.
            self._going = None
            # A Failure handed to callback() runs the errbacks; nobody waits where this was cancelled.
            waiting.callback(result)

        self._going = start(self.answered(asking))
        self._going.addBoth(tell)
        try:
            return await waiting
        except CancelledError:
            self.left = True
            raise

    async def over(self) -> None:
        """Nothing is going on any more that is to be seen through."""
        if self._going is not None:
            await self._going
