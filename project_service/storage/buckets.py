"""Buckets: what operators decide about them, and how requests see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field
from twisted.internet.interfaces import IReactorTime

from project_service.errors import ApiError
from project_service.http.json_body import read_members
from project_service.storage import errors, keys
from project_service.storage.durations import BUCKET_FRESH_SECONDS, BUCKET_REREAD_SECONDS
from project_service.storage.repository import BucketRows
from project_service.storage.values import Bucket, BucketRules, read_bucket_name

if TYPE_CHECKING:
    from project_service.storage.objects import Objects

MAX_REMEMBERED = 10_000
NOT_A_RULE = "is not a rule of a bucket"
# How often to empty a bucket that is to be deleted, where others put objects into it at the same time.
EMPTYINGS = 10


@define(eq=False)
class Buckets:
    """Buckets as they are in the database. Their rules are remembered for half a second, or for a little longer while
    they are read again; that a bucket does not exist is not remembered."""

    rows: BucketRows
    clock: IReactorTime
    _seen: dict[str, tuple[float, Bucket]] = field(factory=dict, init=False)
    _asking: set[str] = field(factory=set, init=False)

    async def get(self, name: str) -> Bucket:
        """The bucket; raises ``bucket_not_found``. Its rules and counters may be nearly a second old."""
        seen = self._seen.get(name)
        if seen is not None:
            age = self.clock.seconds() - seen[0]
            if age < (BUCKET_REREAD_SECONDS if name in self._asking else BUCKET_FRESH_SECONDS):
                return seen[1]
        return await self.fresh(name)

    async def same(self, bucket: Bucket) -> Bucket:
        """``bucket`` with its present rules; raises ``bucket_not_found`` where it has been deleted, even if there is
        another bucket of its name by now."""
        current = await self.get(bucket.name)
        if current.created_at != bucket.created_at:
            raise errors.bucket_not_found()
        return current

    async def fresh(self, name: str) -> Bucket:
        """The bucket as it is now; raises ``bucket_not_found``."""
        # Its age counts from the question, because the answer may have been long on its way.
        asked = self.clock.seconds()
        bucket = await self._found(name) if keys.is_bucket_name(name) else None
        if bucket is None:
            self._seen.pop(name, None)
            raise errors.bucket_not_found()
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen[name] = (asked, bucket)
        return bucket

    async def _found(self, name: str) -> Bucket | None:
        self._asking.add(name)
        try:
            return await self.rows.find(name)
        finally:
            self._asking.discard(name)

    async def all(self) -> list[Bucket]:
        return await self.rows.all()

    async def create(self, name: str, rules: BucketRules) -> Bucket:
        """Raises ``bucket_exists``, and ``validation_failed`` for a name that is not allowed."""
        return await self.rows.create(read_bucket_name("name", name), rules)

    async def change(self, name: str, changes: Mapping[str, Any]) -> Bucket:
        """Raises ``bucket_not_found``."""
        if not keys.is_bucket_name(name):
            raise errors.bucket_not_found()
        bucket = await self.rows.change(name, changes)
        self._seen.pop(name, None)
        return bucket

    async def delete(self, name: str, objects: Objects | None = None) -> None:
        """Raises ``bucket_not_found``, ``bucket_not_empty`` or ``bucket_in_use``; with ``objects`` it is emptied
        first."""
        bucket = await self.fresh(name)
        if objects is None:
            await self.rows.delete(name)
        else:
            await self._delete_emptied(bucket, objects)
        self._seen.pop(name, None)

    async def _delete_emptied(self, bucket: Bucket, objects: Objects) -> None:
        for left in reversed(range(EMPTYINGS)):
            await objects.delete_prefix(bucket, "")
            try:
                await self.rows.delete(bucket.name)
            except ApiError as refusal:
                if refusal.code != "bucket_not_empty" or not left:
                    raise
            else:
                return


def parse_rules(given: Mapping[str, Any]) -> dict[str, Any]:
    """The rules in a JSON object, checked; raises ``validation_failed`` naming every member that is invalid."""
    return read_members(BucketRules, given, NOT_A_RULE)
