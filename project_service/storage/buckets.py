"""Buckets and their rules, as operators change them and requests see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field
from cachetools import FIFOCache
from twisted.internet.interfaces import IReactorTime

from project_service.audit import By
from project_service.errors import ApiError
from project_service.http.json_body import read_members
from project_service.storage import errors, keys
from project_service.storage.durations import BUCKET_FRESH_SECONDS, BUCKET_REREAD_SECONDS
from project_service.storage.rows.buckets import BucketRows
from project_service.storage.values import (
    SERVICE,
    Bucket,
    BucketRules,
    Writer,
    read_bucket_id,
    read_bucket_name,
)

MAX_CACHED = 10_000
NOT_A_RULE = "is not a rule of a bucket"


@define(eq=False)
class Buckets:
    """Buckets as they are in the database. They are cached for half a second, or for a little longer while they are
    read again; that a bucket does not exist is not cached.

    These are all of them; ``named`` are those that our own paths know. A ``writer`` is the service, or a caller for
    whom policies on ``storage.buckets`` decide.
    """

    rows: BucketRows
    clock: IReactorTime
    # With the time of the query.
    _cache: FIFOCache[str, tuple[float, Bucket]] = field(factory=lambda: FIFOCache(MAX_CACHED))
    _rereading: set[str] = field(factory=set)
    _knows: Callable[[str], bool] = keys.is_bucket_id

    def named(self) -> Buckets:
        """The same without those whose ids are no bucket names, as if there were none such."""
        return Buckets(self.rows, self.clock, self._cache, self._rereading, keys.is_bucket_name)

    async def get(self, name: str) -> Bucket:
        """The bucket; raises ``bucket_not_found``. Its rules and counters may be nearly a second old."""
        if not self._knows(name):
            raise errors.bucket_not_found()
        try:
            queried_at, bucket = self._cache[name]
        except KeyError:
            return await self.fresh(name)
        limit = BUCKET_REREAD_SECONDS if name in self._rereading else BUCKET_FRESH_SECONDS
        if self.clock.seconds() - queried_at < limit:
            return bucket
        return await self.fresh(name)

    async def of_object(self, name: str) -> Bucket:
        """As ``get``, for what opens an object and does not say which buckets there are: raises
        ``object_not_found``."""
        try:
            return await self.get(name)
        except ApiError as refusal:
            if refusal.code != "bucket_not_found":
                raise
            raise errors.object_not_found() from None

    async def same(self, bucket: Bucket) -> Bucket:
        """``bucket`` with its present rules; raises ``bucket_not_found`` where it has been deleted, even if there is
        another bucket of its name by now."""
        current = await self.get(bucket.name)
        if current.created_at != bucket.created_at:
            raise errors.bucket_not_found()
        return current

    async def fresh(self, name: str) -> Bucket:
        """The bucket as it is now; raises ``bucket_not_found``."""
        # Its age counts from the query, because the result may take long to arrive.
        queried_at = self.clock.seconds()
        bucket = await self._read(name) if self._knows(name) else None
        if bucket is None:
            self._cache.pop(name, None)
            raise errors.bucket_not_found()
        self._cache[name] = (queried_at, bucket)
        return bucket

    async def _read(self, name: str) -> Bucket | None:
        self._rereading.add(name)
        try:
            return await self.rows.find(name)
        finally:
            self._rereading.discard(name)

    async def all(self) -> list[Bucket]:
        return [bucket for bucket in await self.rows.all() if self._knows(bucket.name)]

    async def seen_by(self, writer: Writer) -> list[Bucket]:
        """Those that ``writer`` sees, by name. Raises ``not_allowed`` if a policy fails."""
        return await (self.all() if writer.is_service else self.rows.seen(writer))

    async def shown_to(self, writer: Writer, name: str) -> Bucket:
        """The bucket as it is now; raises ``bucket_not_found`` also where ``writer`` does not see it."""
        bucket = await self.fresh(name)
        if not writer.is_service and not await self.rows.is_seen(writer, name):
            raise errors.bucket_not_found()
        return bucket

    async def create(self, name: str, rules: BucketRules, by: By | None = None) -> Bucket:
        """Raises ``bucket_exists``, and ``validation_failed`` for a name that is not allowed."""
        return await self.rows.create(read_bucket_name("name", name), rules, by=by)

    async def create_by_id(
        self, name: str, rules: BucketRules, is_open: bool, writer: Writer, by: By | None = None
    ) -> Bucket:
        """As ``create``, with any id for a name, and ``writer`` as its owner. Raises ``not_allowed`` too."""
        return await self.rows.create(read_bucket_id("name", name), rules, is_open, writer, by)

    async def change(
        self,
        name: str,
        changes: Mapping[str, Any],
        is_open: bool | None = None,
        writer: Writer = SERVICE,
        by: By | None = None,
    ) -> Bucket:
        """``changes`` are rules; None for ``is_open`` leaves that. Raises ``bucket_not_found``, ``not_allowed``."""
        if not self._knows(name):
            raise errors.bucket_not_found()
        bucket = await self.rows.change(name, changes, is_open, writer, by)
        self._cache.pop(name, None)
        return bucket

    async def delete(self, name: str, writer: Writer = SERVICE, by: By | None = None) -> None:
        """Raises ``bucket_not_found``, ``bucket_not_empty`` or ``bucket_in_use``."""
        await self.fresh(name)
        await self.rows.delete(name, writer, by)
        self._cache.pop(name, None)


def parse_rules(given: Mapping[str, Any]) -> dict[str, Any]:
    """The rules in a JSON object, checked; raises ``validation_failed`` naming every member that is invalid."""
    return read_members(BucketRules, given, NOT_A_RULE)
