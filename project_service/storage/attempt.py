"""A new version on its way to become an object: whether the store may still be working on it."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from project_service.deferreds import start
from project_service.errors import ApiError
from project_service.storage.s3.errors import StoreError
from project_service.storage.upload import PartStream

T = TypeVar("T")


@define(eq=False)
class Attempt:
    """What cleaning up after a failed upload or copy has to know.

    ``asked`` is True while the store has been asked to make the version's bytes and has not answered: they may still
    appear, so the version must stay announced. ``left`` is True once the client has left.
    """

    version: UUID
    bucket: str
    parts: PartStream | None = None
    asked: bool = field(default=False, init=False)
    left: bool = field(default=False, init=False)
    _going: Deferred[Any] | None = field(default=None, init=False)

    async def answered(self, asking: Awaitable[T]) -> T:
        """What ``asking`` returns. ``asked`` is True until it ends with a result or a refusal (ours or the store's).

        Any other failure leaves ``asked`` True, since the store may have got the request.
        """
        self.asked = True
        try:
            answer = await asking
        except (ApiError, StoreError):
            self.asked = False
            raise
        self.asked = False
        return answer

    async def seen_through(self, asking: Coroutine[Deferred[Any], Any, T]) -> T:
        """As ``answered``, but cancelling it only sets ``left``: ``asking`` goes on, and ``over`` waits for its
        end."""
        waiting: Deferred[T] = Deferred()

        def tell(result: T | Failure) -> None:
            # Before the callback, which may call ``over`` at once.
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
        """Returns when nothing begun by ``seen_through`` is going on any more."""
        if self._going is not None:
            await self._going
