"""Removes the bytes of versions that have just been replaced or deleted. What stays is left to ``sweeper``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from attrs import frozen
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.lifecycle import start, with_timeout
from project_service.storage.durations import REMOVAL_TIMEOUT_SECONDS
from project_service.storage.rows.garbage import GarbageRows
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import kind_of
from project_service.storage.values import Live, store_path

_log = Logger()

BATCH = 1000


@frozen(eq=False)
class Removal:
    """Deletes the bytes of versions that are garbage in the database, so that none is forgotten if deleting fails.

    Bytes may stay for a while after their object was replaced or deleted. A backup of the store that is made within
    that time after a dump of the database has everything that the dump refers to.
    """

    store: S3Store
    rows: GarbageRows
    live: Live
    clock: IReactorTime
    steps: Callable[[str], None]

    async def replaced(self, versions: Iterable[UUID | None], bucket: str) -> None:
        """Delete versions that a change has just replaced or deleted; None stands for none. They are left to the
        sweeper if they are to be kept for a while, and if the store is slow."""
        garbage = [*filter(None, versions)]
        if not garbage:
            return
        if not self.live.settings.keep_removed_seconds:
            await self.discard(garbage, bucket)
        self.steps("removed")

    async def discard(self, versions: Sequence[UUID], bucket: str) -> None:
        """As ``remove``, while a request waits: they are left to the sweeper if the store is slow."""
        removing = start(self.remove(versions, bucket))
        try:
            await with_timeout(self.clock, REMOVAL_TIMEOUT_SECONDS, removing, TimeoutError)
        except TimeoutError:
            _left(len(versions), "the store is slow")

    async def remove(self, versions: Sequence[UUID], bucket: str) -> int:
        """Delete the bytes of at most ``BATCH`` versions that are garbage; returns how many are gone.

        Failures are logged and left to the sweeper.
        """
        if not versions:
            return 0
        try:
            done = await self._deleted(versions, bucket)
            renditions = await self.rows.forget(done)
            if renditions:
                await self.rows.forget(await self._deleted(renditions, bucket))
        except CancelledError:
            # Cancelled, not failed: the caller has to stop as well.
            raise
        except Exception as problem:
            _left(len(versions), kind_of(problem))
            return 0
        if len(done) < len(versions):
            _left(len(versions) - len(done), "the store refused")
        return len(done)

    async def try_to_delete(self, version: UUID, bucket: str) -> None:
        """Try to delete the bytes of a version that stays reserved. The sweeper deletes it again in any case."""
        try:
            await self._deleted([version], bucket)
        except Exception as problem:
            _left(1, kind_of(problem))

    async def _deleted(self, versions: Sequence[UUID], bucket: str) -> list[UUID]:
        if len(versions) == 1:
            await self.store.delete(store_path(bucket, versions[0]))
            return list(versions)
        paths = {store_path(bucket, version): version for version in versions}
        failed = set(await self.store.delete_many(list(paths)))
        return [version for path, version in paths.items() if path not in failed]


def _left(count: int, kind: str) -> None:
    _log.warn("Versions that are left to the sweeper: {count} ({kind})", count=count, kind=kind)
