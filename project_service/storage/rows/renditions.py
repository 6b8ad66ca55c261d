"""The rows of what was made of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from attrs import frozen

from project_service.database.connection import Row
from project_service.database.pool import Pool
from project_service.storage.rows.columns import uuid_array
from project_service.storage.values import StoredRendition


@frozen(eq=False)
class RenditionRows:
    """What was made of the pictures among the objects. It belongs to a version of an object, and becomes garbage
    together with it."""

    database: Pool

    async def find(self, of: UUID, name: str) -> StoredRendition | None:
        rows = await self.database.read(
            "select version, size, etag from storage.renditions where rendition_of = %s::uuid and name = %s",
            (str(of), name),
        )
        return _rendition(rows[0]) if rows else None

    async def keep(
        self,
        bucket: str,
        of: UUID,
        name: str,
        new: StoredRendition,
        max_per_object: int,
        used: Mapping[UUID, float],
    ) -> tuple[StoredRendition | None, list[UUID]]:
        """Store a rendition of version ``of``. The store must have all its bytes, under its own version, which has
        been reserved as for an upload. Returns the one that is stored now: another if somebody was faster, and None
        if ``of`` is no object's version any more. Where ``of`` has ``max_per_object`` already, those that were not
        used for the longest time make room; their versions are returned too. Those and what is not stored become
        garbage.

        ``used`` are renditions of ``of`` that this process has sent lately, with the seconds since then.
        """
        rows = await self.database.query(
            "select version, size, etag, evicted::text[] from storage.store_rendition("
            "%s, %s::uuid, %s, %s::uuid, %s, %s, %s, %s::uuid[], %s::double precision[])",
            (
                bucket,
                str(of),
                name,
                str(new.version),
                new.size,
                new.etag,
                max_per_object,
                uuid_array(used),
                list(used.values()),
            ),
        )
        *stored, evicted = rows[0]
        return None if stored[0] is None else _rendition(tuple(stored)), [UUID(one) for one in evicted]

    async def forget(self, version: UUID) -> None:
        """Forget a rendition whose bytes are not in the store."""
        await self.database.query("delete from storage.renditions where version = %s::uuid", (str(version),))


def _rendition(row: Row) -> StoredRendition:
    version, size, etag = row
    return StoredRendition(UUID(version), size, etag)
