"""New versions on their way to become objects: announced, kept alive, and given up where they fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

from attrs import define, field, frozen
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.database.sqlstate import outage_of
from project_service.deferreds import shield, start
from project_service.errors import ApiError
from project_service.storage import errors
from project_service.storage.announcing import Announcer
from project_service.storage.model import store_path
from project_service.storage.ports import GarbageRows, ObjectRows
from project_service.storage.removal import Removal
from project_service.storage.s3.body import KeepAlive
from project_service.storage.s3.errors import StoreError
from project_service.storage.upload import PartStream

T = TypeVar("T")

_log = Logger()

# How often an upload tells the database that it goes on. The sweeper gives up one that was silent for much longer.
KEEP_ALIVE_SECONDS = 60.0


@define(eq=False)
class Attempt:
    """One version, announced for ``bucket``, and what cleaning up after it has to know.

    ``parts`` is set where the bytes come through here. ``asked`` is True while the store has been asked to make the
    version's bytes and has not answered: they may still appear, so the version must stay announced. ``left`` is True
    once the client has left.
    """

    version: UUID
    bucket: str
    parts: PartStream | None = field(default=None, init=False)
    asked: bool = field(default=False, init=False)
    left: bool = field(default=False, init=False)
    _going: Deferred[Any] | None = field(default=None, init=False)

    @property
    def path(self) -> str:
        return store_path(self.bucket, self.version)

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


@frozen(eq=False)
class Attempts:
    """Begins attempts, and cleans up after those that failed. ``steps`` is told when one has been announced."""

    rows: ObjectRows
    garbage: GarbageRows
    removal: Removal
    announcer: Announcer
    clock: IReactorTime
    steps: Callable[[str], None]

    async def begin(self, bucket: str) -> Attempt:
        """A version that has been announced, before its first byte."""
        while (version := self.announcer.take(bucket)) is None:
            # If the client leaves meanwhile, what is announced for it is there for others.
            await shield(self.announcer.announce(bucket))
        self.steps("announced")
        return Attempt(version, bucket)

    def keep_alive(self, version: UUID) -> KeepAlive:
        """To be called often: it renews the announcement from time to time.

        It raises ``upload_expired`` once the version has been given up. It must not know the attempt: the parts of an
        upload know it, and the attempt knows the parts, so their memory would wait for the garbage collector.
        """
        seen = self.clock.seconds()

        async def keep_alive() -> None:
            nonlocal seen
            if self.clock.seconds() - seen >= KEEP_ALIVE_SECONDS:
                seen = self.clock.seconds()
                if not await self.rows.touch_upload(version):
                    raise errors.upload_expired()

        return keep_alive

    async def clean_up(self, attempt: Attempt, failure: Exception) -> None:
        """Give up after ``failure``. Where the database or the store failed, that is done in the background: the
        client does not wait for the same part a second time."""
        giving_up = shield(self._give_up(attempt))
        if _passing(failure):
            giving_up.addErrback(_left_to_sweeper)
        else:
            await giving_up

    async def _give_up(self, attempt: Attempt) -> None:
        """Delete the version's bytes, if the database confirms that they are garbage: the switch may have
        happened."""
        if attempt.parts is not None:
            # First, because everything after it may take time or fail.
            attempt.parts.stop()
        await attempt.over()
        # Where the store has not answered, it may still make the bytes after the deletion below. The version then
        # stays announced, and the sweeper deletes it again later.
        claimed = [] if attempt.asked else await self.garbage.discard([attempt.version])
        if attempt.parts is not None:
            await attempt.parts.abandon()
        # After a long pause of this process the sweeper may have deleted nothing, because the bytes came later.
        if attempt.asked or (not claimed and await self.garbage.unknown([attempt.version])):
            await self.removal.tried(attempt.version, attempt.bucket)
        else:
            await self.removal.remove(claimed, attempt.bucket)


def _passing(failure: BaseException) -> bool:
    """Whether the database or the store failed, not we."""
    return isinstance(failure, errors.STORE_FAILURES) or outage_of(failure) is not None


def _left_to_sweeper(problem: Failure) -> None:
    if problem.value is not None and _passing(problem.value):
        _log.warn("An upload is left to the sweeper: {kind}", kind=type(problem.value).__name__)
    else:
        _log.failure("an upload is left to the sweeper", problem)
