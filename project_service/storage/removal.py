"""Removes versions from the store: those that were replaced or deleted, and those that were never finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from attrs import frozen
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.deferreds import start, with_timeout
from project_service.storage.model import store_path
from project_service.storage.ports import GarbageRows, Store

_log = Logger()

BATCH = 1000
# How long a caller waits for the deletion of bytes that are no object's any more. What was asked for is done by then.
PATIENCE_SECONDS = 5.0


@frozen(eq=False)
class Removal:
    """Deletes bytes of versions that the database knows as garbage, so that none is forgotten when deleting fails.

    ``keep`` returns for how long bytes stay after their object was replaced or deleted. A backup of the store that is
    made within that time after a dump of the database has everything that the dump refers to.
    """

    store: Store
    rows: GarbageRows
    keep: Callable[[], timedelta]
    clock: IReactorTime

    async def replaced(self, versions: Sequence[UUID], bucket: str) -> None:
        """Delete versions that were an object's a moment ago. They are left to the sweeper with ``keep``, and if the
        store is slow."""
        if self.keep():
            return
        removing = start(self.remove(versions, bucket))
        try:
            await with_timeout(self.clock, PATIENCE_SECONDS, removing, TimeoutError)
        except TimeoutError:
            _left(len(versions), "the store is slow")

    async def remove(self, versions: Sequence[UUID], bucket: str) -> int:
        """Delete the bytes of versions that are garbage, at most ``BATCH`` of them; how many are gone.

        Failures are logged and left to the sweeper.
        """
        if not versions:
            return 0
        try:
            done = await self._deleted(versions, bucket)
            await self.rows.forget(done)
        except CancelledError:
            # Cancelled, not failed: the caller has to stop as well.
            raise
        except Exception as problem:
            _left(len(versions), type(problem).__name__)
            return 0
        if len(done) < len(versions):
            _left(len(versions) - len(done), "the store refused")
        return len(done)

    async def tried(self, version: UUID, bucket: str) -> None:
        """Try to delete the bytes of a version that stays announced. The sweeper deletes it again in any case."""
        try:
            await self._deleted([version], bucket)
        except Exception as problem:
            _left(1, type(problem).__name__)

    async def _deleted(self, versions: Sequence[UUID], bucket: str) -> list[UUID]:
        paths = {store_path(bucket, version): version for version in versions}
        if len(paths) == 1:
            await self.store.delete(next(iter(paths)))
            return list(versions)
        failed = set(await self.store.delete_many(list(paths)))
        return [version for path, version in paths.items() if path not in failed]


def _left(count: int, kind: str) -> None:
    _log.warn("{count} versions are left to the sweeper: {kind}", count=count, kind=kind)
