"""``LinkRows`` on PostgreSQL."""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from project_service.database.pool import Pool
from project_service.storage import errors
from project_service.storage.model import Link


@frozen(eq=False)
class SqlLinks:
    database: Pool

    async def add(self, token_hash: bytes, link: Link) -> None:
        rows = await self.database.prepared(
            "insert into storage.links (token_hash, bucket, key, expires_at, uses_left)"
            " select %s::bytea, name, %s, %s::timestamptz, %s::integer"
            " from storage.buckets where name = %s for key share returning 1",
            (token_hash, link.key, link.expires_at, link.uses_left, link.bucket),
        )
        if not rows:
            raise errors.bucket_not_found()

    async def find(self, token_hash: bytes) -> Link | None:
        rows = await self.database.read(
            "select bucket, key, expires_at, uses_left, used_at from storage.links where token_hash = %s",
            (token_hash,),
        )
        return Link(*rows[0]) if rows else None

    async def use(self, token_hash: bytes, now: datetime) -> bool:
        rows = await self.database.prepared(
            "update storage.links set uses_left = uses_left - 1, used_at = %s::timestamptz"
            " where token_hash = %s and expires_at > %s and (uses_left is null or uses_left > 0) returning 1",
            (now, token_hash, now),
        )
        return bool(rows)

    async def sweep(self, expired_before: datetime) -> int:
        rows = await self.database.query(
            "with gone as (delete from storage.links where expires_at < %s returning 1) select count(*) from gone",
            (expired_before,),
        )
        return int(rows[0][0])
