"""The SHA-256 of whole objects, where no single request has all bytes: of uploads in several requests, and of objects
that are in the store without one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any
from uuid import UUID

import psycopg2
from attrs import define, field
from cachetools import FIFOCache
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from project_service.database.errors import describe, outage_of
from project_service.storage.rows.garbage import GarbageRows
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import NoSuchObject
from project_service.storage.s3.reading import read_all
from project_service.storage.values import Live, ObjectRow

_log = Logger()

# How much of an object is read at a time.
READ_BYTES = 1024 * 1024
# How many objects are looked up at a time.
BATCH = 100
# When so many objects cannot be read, something is wrong that a person has to look at.
MAX_UNREADABLE = 1000
# Of so many unfinished uploads each process has the hash of what was received.
MAX_UNFINISHED = 1000


@define(eq=False)
class Reader:
    """Reads objects to compute their SHA-256: at most ``bytes_per_second`` of all together, or with 0 as fast as it
    can. It has ``READ_BYTES`` in memory for each object."""

    store: S3Store
    clock: IReactorTime
    bytes_per_second: int = 0
    _free_at: float = field(default=0.0, init=False)

    async def sha256(self, path: str, size: int) -> str:
        """The SHA-256 of the object of ``size`` bytes at ``path``, in hexadecimal. Raises ``NoSuchObject``, and
        ``BrokenRead`` where the store has fewer bytes."""
        digest = sha256()
        for first in range(0, size, READ_BYTES):
            length = min(READ_BYTES, size - first)
            await self._turn(length)
            digest.update(await read_all(await self.store.open(path, first, length, size)))
        return digest.hexdigest()

    async def _turn(self, length: int) -> None:
        if not self.bytes_per_second:
            return
        now = self.clock.seconds()
        begins = max(now, self._free_at)
        self._free_at = begins + length / self.bytes_per_second
        if begins > now:
            await deferLater(self.clock, begins - now)


@define(eq=False)
class UnfinishedDigests:
    """The hashes of what unfinished uploads have received, as far as this process has received all of it: a hash
    cannot be handed to another process. What an upload has received does not change, so a hash of that many bytes is
    right."""

    _digests: FIFOCache[UUID, tuple[int, Any]] = field(factory=lambda: FIFOCache(MAX_UNFINISHED), init=False)

    def take(self, version: UUID, received: int) -> Any:
        """The hash of the first ``received`` bytes, to be updated by the caller alone; None if it is not here."""
        known, digest = self._digests.pop(version, (0, sha256()))
        return digest if known == received else None

    def put(self, version: UUID, received: int, digest: Any) -> None:
        """Keep ``digest`` for the request that comes next. The one that was put first makes room."""
        self._digests[version] = (received, digest)


@define(eq=False)
class MissingDigests:
    """Reads the objects that have no SHA-256 from the store, one after the other, and records it: those that came in
    several requests by several processes, or before it was computed.

    An object whose bytes the store does not have is logged and not read again until the service restarts. After any
    other failure the next run goes on behind the object with which it came, and the one after that begins anew.
    """

    rows: GarbageRows
    reader: Reader
    live: Live
    _unreadable: set[UUID] = field(factory=set, init=False)
    _begin_after: tuple[str, str] | None = field(default=None, init=False)

    @property
    def wanted(self) -> bool:
        """Whether the settings want them, and they are not given up."""
        return bool(self.live.settings.digest_bytes_per_second) and len(self._unreadable) < MAX_UNREADABLE

    async def compute(self) -> int:
        """Returns how many objects have got their SHA-256. Raises what the database and the store raise."""
        count = 0
        async for row in self._without():
            if not self.wanted:
                break
            self.reader.bytes_per_second = self.live.settings.digest_bytes_per_second
            try:
                count += await self._compute(row)
            except Exception:
                self._begin_after = (row.bucket, row.key)
                raise
        return count

    async def _without(self) -> AsyncIterator[ObjectRow]:
        after, self._begin_after = self._begin_after, None
        while self.wanted:
            rows = await self.rows.objects_from(after, BATCH, without_sha256=True)
            for row in rows:
                if row.version not in self._unreadable:
                    yield row
            if len(rows) < BATCH:
                return
            after = (rows[-1].bucket, rows[-1].key)

    async def _compute(self, row: ObjectRow) -> bool:
        """Compute and store the SHA-256 of ``row``. False if it cannot be computed, or if the object has been
        replaced or deleted meanwhile."""
        store, why = self.reader.store, "the store has no such bytes"
        try:
            if (await store.stat(row.path)).size == row.size:
                digest = await self.reader.sha256(row.path, row.size)
                return await self.rows.set_sha256(row.version, digest)
        except NoSuchObject:
            pass
        except psycopg2.Error as refusal:
            if outage_of(refusal) is not None:
                raise
            why = describe(refusal)  # a trigger of the project's own
        if await self.rows.current([row.version]):
            self._skip(row, why)
        return False

    def _skip(self, row: ObjectRow, why: str) -> None:
        self._unreadable.add(row.version)
        _log.warn(
            "The SHA-256 of {bucket}/{key} cannot be computed: {why}."
            " `project-service storage verify` checks all objects",
            bucket=row.bucket,
            key=row.key,
            why=why,
        )
        if len(self._unreadable) == MAX_UNREADABLE:
            _log.warn(
                "The SHA-256 of {count} objects cannot be computed; no more are read until the service restarts",
                count=MAX_UNREADABLE,
            )
