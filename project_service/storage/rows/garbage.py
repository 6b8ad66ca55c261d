"""Versions that are no object's, and what the sweeper asks of the others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from attrs import frozen

from project_service.database.pool import Pool
from project_service.storage.rows.columns import ALL_COLUMNS, object_row, uuid_array
from project_service.storage.values import ObjectRow


@frozen(eq=False)
class GarbageRows:
    """Versions that belong to no object and have to be deleted from the store, and what the sweeper asks of
    others."""

    database: Pool

    async def discard(self, versions: Sequence[UUID]) -> list[UUID]:
        """Turn reserved uploads into garbage and return them; a version that has become an object's is left out."""
        return await self._versions("select storage.discard_uploads(%s::uuid[])", uuid_array(versions))

    async def stale_uploads(self, silent_for: timedelta, limit: int) -> list[UUID]:
        """Reserved uploads of which nothing was heard for so long, that of the longest silence first."""
        sql = "select version from storage.uploads where seen_at <= now() - %s order by seen_at limit %s"
        return await self._versions(sql, silent_for, limit)

    async def garbage(
        self, limit: int, after: UUID | None = None, removed_for: timedelta = timedelta(0)
    ) -> list[tuple[UUID, str]]:
        """Up to ``limit`` versions, with their buckets, that have been garbage for at least ``removed_for``.

        In the order of versions, beginning after ``after``.
        """
        rows = await self.database.query(
            "select version, bucket from storage.garbage"
            " where (%(after)s::uuid is null or version > %(after)s::uuid) and added_at <= now() - %(removed_for)s"
            " order by version limit %(limit)s",
            {"after": None if after is None else str(after), "limit": limit, "removed_for": removed_for},
        )
        return [(UUID(version), bucket) for version, bucket in rows]

    async def forget(self, versions: Sequence[UUID]) -> list[UUID]:
        """Remove ``versions`` from the garbage, once their bytes are gone from the store. Returns the versions of
        their renditions, which are garbage too."""
        array = uuid_array(versions)
        rows = await self.database.prepared(
            "with gone as (delete from storage.garbage where version = any (%s::uuid[]))"
            " select version from storage.garbage where rendition_of = any (%s::uuid[])",
            (array, array),
        )
        return [UUID(version) for (version,) in rows]

    async def unknown(self, versions: Sequence[UUID]) -> set[UUID]:
        """Those of ``versions`` that belong to no object or rendition, are not reserved, and are not known as
        garbage."""
        sql = (
            "select v from unnest(%s::uuid[]) v where not exists (select from storage.objects where version = v)"
            " and not exists (select from storage.renditions where version = v)"
            " and not exists (select from storage.uploads where version = v)"
            " and not exists (select from storage.garbage where version = v)"
        )
        return set(await self._versions(sql, uuid_array(versions)))

    async def reserved(self, versions: Sequence[UUID]) -> set[UUID]:
        """Those of ``versions`` that are being uploaded."""
        sql = "select version from storage.uploads where version = any (%s::uuid[])"
        return set(await self._versions(sql, uuid_array(versions)))

    async def current(self, versions: Sequence[UUID]) -> set[UUID]:
        """Those of ``versions`` that are the current version of an object."""
        sql = "select version from storage.objects where version = any (%s::uuid[])"
        return set(await self._versions(sql, uuid_array(versions)))

    async def objects_from(
        self, after: tuple[str, str] | None, limit: int, *, without_sha256: bool = False
    ) -> list[ObjectRow]:
        """Every object, or every one that has no SHA-256, in the order of bucket and key."""
        rows = await self.database.query(
            f"select {ALL_COLUMNS} from storage.objects where (bucket, key) > (%s, %s)"
            f"{' and sha256 is null' if without_sha256 else ''} order by bucket, key limit %s",
            (*(after or ("", "")), limit),
        )
        return [object_row(row) for row in rows]

    async def set_sha256(self, version: UUID, sha256: str) -> bool:
        """Record the SHA-256 of an object, of which nothing else changes. False if ``version`` is no object's any
        more, or has one."""
        rows = await self.database.query(
            "update storage.objects set sha256 = %s where version = %s::uuid and sha256 is null returning 1",
            (sha256, str(version)),
        )
        return bool(rows)

    async def _versions(self, sql: str, *params: object) -> list[UUID]:
        return [UUID(version) for (version,) in await self.database.query(sql, params)]
