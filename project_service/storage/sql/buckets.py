"""``BucketRows`` on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from psycopg2.errors import ForeignKeyViolation, RestrictViolation

from project_service.database.pool import Pool
from project_service.database.session import Row
from project_service.storage import errors
from project_service.storage.model import RULES, Bucket, BucketRules

_COLUMNS = """
    b.name, b.visibility, b.max_object_bytes, b.max_bucket_bytes, b.allowed_content_types, b.owner_only_writes,
    u.object_count, u.total_bytes, b.created_at
"""
_FROM = """
    storage.buckets b cross join lateral (
        select sum(object_count)::bigint as object_count, sum(total_bytes)::bigint as total_bytes
        from storage.usage where bucket = b.name
    ) u
"""


def _bucket(row: Row) -> Bucket:
    name, visibility, max_object, max_bucket, types, owner_only, count, size, created_at = row
    allowed = None if types is None else tuple(types)
    rules = BucketRules(visibility, max_object, max_bucket, allowed, owner_only)
    return Bucket(name, rules, count, size, created_at)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@frozen(eq=False)
class SqlBuckets:
    database: Pool

    async def find(self, name: str) -> Bucket | None:
        rows = await self.database.read(f"select {_COLUMNS} from {_FROM} where b.name = %s", (name,))
        return _bucket(rows[0]) if rows else None

    async def all(self) -> list[Bucket]:
        return [
            _bucket(row)
            for row in await self.database.query(f"select {_COLUMNS} from {_FROM} order by b.name")
        ]

    async def create(self, name: str, rules: BucketRules) -> Bucket:
        made = await self.database.query(
            "select storage.create_bucket(%s, %s, %s, %s, %s::text[], %s)",
            (
                name,
                rules.visibility,
                rules.max_object_bytes,
                rules.max_bucket_bytes,
                _plain(rules.allowed_content_types),
                rules.owner_only_writes,
            ),
        )
        if not made[0][0]:
            raise errors.bucket_exists()
        return await self._existing(name)

    async def change(self, name: str, changes: Mapping[str, Any]) -> Bucket:
        if not changes.keys() <= RULES:
            raise ValueError("not a rule of a bucket")
        if changes:
            settings = ", ".join(f"{rule} = %({rule})s" for rule in sorted(changes))
            values = {rule: _plain(value) for rule, value in changes.items()}
            await self.database.query(
                f"update storage.buckets set {settings} where name = %(name)s", {**values, "name": name}
            )
        return await self._existing(name)

    async def delete(self, name: str) -> None:
        try:
            outcome = (await self.database.query("select storage.delete_bucket(%s)", (name,)))[0][0]
        except (ForeignKeyViolation, RestrictViolation):
            raise errors.bucket_in_use() from None
        if outcome != "deleted":
            raise errors.refused(outcome)

    async def _existing(self, name: str) -> Bucket:
        bucket = await self.find(name)
        if bucket is None:
            raise errors.bucket_not_found()
        return bucket
