"""Removes what crashes, broken connections and slow stores leave behind, and checks rows against bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from itertools import groupby
from uuid import UUID

from attrs import asdict, define, field, frozen
from twisted.logger import Logger

from project_service import base64url
from project_service.lifecycle import all_of
from project_service.storage.durations import KEEP_EXPIRED_LINKS, KEEP_EXPIRED_UPLOADS, STALE_AFTER
from project_service.storage.keys import is_bucket_id
from project_service.storage.removal import BATCH, Removal
from project_service.storage.rows.garbage import GarbageRows
from project_service.storage.rows.links import LinkRows
from project_service.storage.rows.resumables import ResumableRows
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import NoSuchObject, StoreError
from project_service.storage.s3.reading import list_all
from project_service.storage.sha256 import Reader
from project_service.storage.values import ENCODED, ObjectRow, store_path

_log = Logger()

_PARALLEL = 16


@frozen
class Swept:
    """How many of each kind were removed (of uploads: given up)."""

    uploads: int
    versions: int
    multiparts: int
    links: int
    orphans: int

    def __str__(self) -> str:
        """What was removed of anything, for the log; "" if nothing was."""
        return ", ".join(f"{name} {count}" for name, count in asdict(self).items() if count)


@define
class Verified:
    """The result of a check. Objects are named as bucket/key.

    The bytes of ``missing`` objects are absent, those of ``torn`` ones differ from the row in size or ETag.
    ``unproven`` objects have the right size, but an ETag of other parts than the row's, as a copy made in parts has;
    no ETag can tell whether their bytes are right. ``orphans`` are keys in the store that no row knows.

    Where the bytes were read, those of ``damaged`` ones do not have the SHA-256 of the row, and ``without_sha256`` is
    how many rows have none. ``last`` is the last object that was checked; None before.
    """

    objects: int = 0
    missing: list[str] = field(factory=list)
    torn: list[str] = field(factory=list)
    unproven: list[str] = field(factory=list)
    orphans: list[str] = field(factory=list)
    damaged: list[str] = field(factory=list)
    without_sha256: int = 0
    last: str | None = field(default=None, eq=False)

    @property
    def sound(self) -> bool:
        return not self.missing and not self.torn and not self.damaged


@frozen(eq=False)
class Sweeper:
    """Removes garbage. It may run on several hosts at the same time, and during uploads, whose reserved versions it
    does not touch."""

    store: S3Store
    rows: GarbageRows
    links: LinkRows
    resumables: ResumableRows
    removal: Removal
    now: Callable[[], datetime]

    async def sweep(self, stale_after: timedelta = STALE_AFTER, orphans: bool = False) -> Swept:
        """Remove garbage. ``orphans`` also looks through the whole store for versions that no row knows."""
        # First what needs only the database, so that it is done even if the store refuses or is away.
        stale = await self._give_up_stale(stale_after)
        links = await self.links.sweep(self.now() - KEEP_EXPIRED_LINKS)
        await self.resumables.sweep(self.now() - KEEP_EXPIRED_UPLOADS)
        versions = await self._remove_garbage()
        multiparts = await self._abort_multiparts()
        removed = 0
        if orphans:
            async for paths in self._orphans():
                removed += len(paths) - len(await self.store.delete_many(paths))
        return Swept(stale, versions, multiparts, links, removed)

    async def verify(self) -> Verified:
        """Check that every object's bytes are in the store, with the size and ETag of its row. Safe beside
        writers."""
        report = Verified()
        async for _ in self.verifying(report):
            pass
        return report

    async def verifying(
        self, report: Verified, after: tuple[str, str] | None = None, reader: Reader | None = None
    ) -> AsyncIterator[None]:
        """As ``verify``, of the objects after the bucket and key ``after``; yields whenever some were checked.

        With ``reader`` the bytes of objects that have a SHA-256 are read and compared with it. The report says how
        far that has come, so that it can go on there after it broke off.
        """
        limit = BATCH if reader is None else _PARALLEL
        while rows := await self.rows.objects_from(after, limit):
            for first in range(0, len(rows), _PARALLEL):
                await all_of(self._compare(row, report, reader) for row in rows[first : first + _PARALLEL])
            report.objects += len(rows)
            after = (rows[-1].bucket, rows[-1].key)
            report.last = "/".join(after)
            yield
        async for paths in self._orphans():
            report.orphans.extend(paths)

    async def _compare(self, row: ObjectRow, report: Verified, reader: Reader | None) -> None:
        name = f"{row.bucket}/{row.key}"
        try:
            stat = await self.store.stat(row.path)
            if reader is not None and stat.size == row.size:
                if row.sha256 is None:
                    report.without_sha256 += 1
                else:
                    if await reader.sha256(row.path, row.size) != row.sha256:
                        report.damaged.append(name)
                    return
        except NoSuchObject:
            # No fault if the object was overwritten or deleted after its row was read.
            if await self.rows.current([row.version]):
                report.missing.append(name)
            return
        if stat.size == row.size and stat.etag == row.etag:
            return
        is_multipart = "-" in row.etag or "-" in stat.etag
        (report.unproven if stat.size == row.size and is_multipart else report.torn).append(name)

    async def _give_up_stale(self, stale_after: timedelta) -> int:
        count = 0
        while stale := await self.rows.stale_uploads(stale_after, BATCH):
            count += len(await self.rows.discard(stale))
        return count

    async def _remove_garbage(self) -> int:
        count = 0
        after: UUID | None = None
        removed_for = timedelta(seconds=self.removal.live.settings.keep_removed_seconds)
        while garbage := await self.rows.garbage(BATCH, after, removed_for):
            after = garbage[-1][0]
            for bucket, group in groupby(sorted(garbage, key=_bucket_of), key=_bucket_of):
                count += await self.removal.remove([version for version, _ in group], bucket)
        return count

    async def _abort_multiparts(self) -> int:
        """Abort multipart uploads whose version is not reserved.

        They are listed first and looked up afterwards. Since an upload is reserved before it begins, one that is
        listed and not reserved is dead.
        """
        versions = {upload: version_at(upload.key) for upload in await self.store.list_multiparts()}
        ours = {upload: version for upload, version in versions.items() if version is not None}
        alive = await self.rows.reserved(list(ours.values()))
        dead = [upload for upload, version in ours.items() if version not in alive]
        refusals: list[StoreError] = []
        for upload in dead:
            try:
                await self.store.abort_multipart(upload.key, upload.upload_id)
            except StoreError as refusal:
                # One that the store does not abort must not keep the others from being aborted.
                refusals.append(refusal)
        if refusals:
            count, why = len(refusals), str(refusals[-1])
            _log.warn("{count} multipart uploads are left to the next sweep: {why}", count=count, why=why)
        return len(dead) - len(refusals)

    async def _orphans(self) -> AsyncIterator[list[str]]:
        async for page in list_all(self.store):
            versions = [(version_at(entry.key), entry.key) for entry in page.objects]
            ours = {version: path for version, path in versions if version is not None}
            unknown = await self.rows.unknown(list(ours))
            if unknown:
                yield [ours[version] for version in sorted(unknown)]


def version_at(path: str) -> UUID | None:
    """The version whose bytes are at ``path``, or None for what is not the service's."""
    folder, _, name = path.partition("/")
    try:
        version = UUID(name)
        bucket = base64url.decode(folder[1:]).decode() if folder.startswith(ENCODED) else folder
    except ValueError:
        return None
    return version if is_bucket_id(bucket) and store_path(bucket, version) == path else None


def _bucket_of(item: tuple[UUID, str]) -> str:
    return item[1]
