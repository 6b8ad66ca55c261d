"""The rows of buckets, and how full they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import astuple, frozen
from psycopg2.errors import CheckViolation, ForeignKeyViolation, RestrictViolation

from project_service.database.connection import Row
from project_service.database.pool import Pool
from project_service.storage import errors
from project_service.storage.values import (
    RULE_SCHEMAS,
    Bucket,
    BucketRules,
    validation_failed_anonymous_reads,
    validation_failed_owner_only_reads,
)

_RULE_COLUMNS = ", ".join(f"b.{rule}" for rule in RULE_SCHEMAS)
_BUCKET_COLUMNS = (
    f"b.name, {_RULE_COLUMNS}, u.object_count, u.total_bytes, b.created_at, b.public,"
    " coalesce(b.updated_at, b.created_at)"
)
_BUCKETS_AND_USAGE = """
    storage.buckets b cross join lateral (
        select sum(object_count)::bigint as object_count, sum(total_bytes)::bigint as total_bytes
        from storage.usage where bucket = b.name
    ) u
"""


def _bucket(row: Row) -> Bucket:
    name, *rules, count, size, created_at, is_open, updated_at = row
    values: Iterator[Any] = (tuple(value) if isinstance(value, list) else value for value in rules)
    return Bucket(name, BucketRules(*values), count, size, created_at, is_open, updated_at)


# Rules that do not go with the visibility, by the constraint that says so.
_RULES_APART = {
    "buckets_owner_only_reads": validation_failed_owner_only_reads,
    "buckets_anonymous_reads": validation_failed_anonymous_reads,
}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@frozen(eq=False)
class BucketRows:
    """Buckets in the database. Methods that need an existing bucket raise ``bucket_not_found``."""

    database: Pool

    async def find(self, name: str) -> Bucket | None:
        rows = await self.database.read(
            f"select {_BUCKET_COLUMNS} from {_BUCKETS_AND_USAGE} where b.name = %s", (name,)
        )
        return _bucket(rows[0]) if rows else None

    async def all(self) -> list[Bucket]:
        return [
            _bucket(row)
            for row in await self.database.query(
                f"select {_BUCKET_COLUMNS} from {_BUCKETS_AND_USAGE} order by b.name"
            )
        ]

    async def create(self, name: str, rules: BucketRules, is_open: bool = False) -> Bucket:
        """Raises ``bucket_exists``."""
        made = await self.database.query(
            "select storage.create_bucket(%s, %s, %s, %s, %s::text[], %s, %s, %s, %s, %s, %s)",
            (name, *map(_plain, astuple(rules, recurse=False)), is_open),
        )
        if not made[0][0]:
            raise errors.bucket_exists()
        return await self._existing(name)

    async def change(self, name: str, changes: Mapping[str, Any], is_open: bool | None = None) -> Bucket:
        """``changes`` are names of ``BucketRules`` with their new values; None for ``is_open`` leaves that."""
        if not changes.keys() <= RULE_SCHEMAS.keys():
            raise ValueError("not a rule of a bucket")
        values = {rule: _plain(value) for rule, value in changes.items()}
        if is_open is not None:
            values["public"] = is_open
        if values:
            settings = ", ".join(f"{rule} = %({rule})s" for rule in sorted(values))
            try:
                await self.database.query(
                    f"update storage.buckets set {settings}, updated_at = date_trunc('milliseconds', now())"
                    " where name = %(name)s",
                    {**values, "name": name},
                )
            except CheckViolation as violated:
                # The other values have been checked. What the visibility is by now only the database knows.
                apart = _RULES_APART.get(str(violated.diag.constraint_name))
                if apart is None:
                    # A constraint of the project's own.
                    raise
                raise apart() from None
        return await self._existing(name)

    async def delete(self, name: str) -> None:
        """Raises ``bucket_not_empty``, and ``bucket_in_use`` if rows of the project's own tables refer to it."""
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
