"""Versions leave the store: after they were replaced or deleted, or when nobody finished them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from attrs import frozen
from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from project_service.storage.model import store_path
from project_service.storage.ports import GarbageRows, Store

_log = Logger()

BATCH = 1000


@frozen(eq=False)
class Removal:
    """A version is garbage in the database before its bytes are deleted, so that nothing is forgotten.

    ``keep`` is for how long an object's bytes stay nevertheless: a copy of the store that is made meanwhile has
    everything that a dump of the database speaks of.
    """

    store: Store
    rows: GarbageRows
    keep: Callable[[], timedelta]

    async def replaced(self, versions: Sequence[UUID], bucket: str) -> None:
        """What was an object's a moment ago: deleted now, or by the sweeper when it has been kept for long enough."""
        if not self.keep():
            await self.remove(versions, bucket)

    async def remove(self, versions: Sequence[UUID], bucket: str) -> int:
        """Delete the bytes of versions that are garbage, at most ``BATCH``; how many are gone.

        The sweeper retries what fails.
        """
        if not versions:
            return 0
        try:
            done = await self._deleted(versions, bucket)
            await self.rows.forget(done)
        except CancelledError:
            # Whoever is interrupted has not failed at these: what comes next is not for him either.
            raise
        except Exception as problem:
            _left(len(versions), type(problem).__name__)
            return 0
        if len(done) < len(versions):
            _left(len(versions) - len(done), "the store refused")
        return len(done)

    async def tried(self, version: UUID, bucket: str) -> None:
        """Delete the bytes of a version that is not garbage yet: the sweeper will again, whatever comes of this."""
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
