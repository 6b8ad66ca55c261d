"""Changes of objects, in an order of steps that makes every crash harmless.

An upload announces its version in the database, sends the bytes to the store, and then switches the object's row to
the new version in one transaction, which also marks the version replaced as garbage. A crash in between leaves either
the old object or the new one, whole, and garbage that the sweeper knows of or finds. ``docs/storage.rst`` has the
state diagram.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from attrs import evolve, frozen

from project_service.deferreds import shield
from project_service.storage import errors
from project_service.storage.attempt import Attempt, Attempts
from project_service.storage.conditions import refusal, without_date
from project_service.storage.download import MOST_READINGS, ObjectLost
from project_service.storage.model import UNCONDITIONAL, Bucket, Conditions, ObjectRow, Writer
from project_service.storage.ports import NewObject, ObjectRows, Store, Switched
from project_service.storage.removal import Removal
from project_service.storage.s3.errors import NoSuchObject, StoreUnreachable
from project_service.storage.upload import PartSizes, PartStream, SizeLimit


@frozen
class Received:
    """What may be known of an upload only after its last byte. ``owner`` None: the writer."""

    key: str
    content_type: str
    max_age_seconds: int | None = None
    owner: UUID | None = None


Fill = Callable[[PartStream], Awaitable[Received]]
# Is told what is to become an object, and its size; raises where that must not be any more.
Recheck = Callable[[Received, int], Awaitable[object]]


def unobserved(step: str) -> None:
    """The ``steps`` of production: nobody watches."""


@frozen(eq=False)
class Objects:
    """Every method raises the refusals of ``errors.refused`` and what the store raises."""

    rows: ObjectRows
    store: Store
    attempts: Attempts
    removal: Removal
    part_bytes: int
    steps: Callable[[str], None]

    async def upload(
        self,
        bucket: Bucket,
        writer: Writer,
        conditions: Conditions,
        limit: SizeLimit,
        length: int | None,
        fill: Fill,
        recheck: Recheck,
    ) -> Switched:
        """Store what ``fill`` writes as a new version, then switch. An upload that fails leaves nothing behind.

        ``length`` is the greatest size to be prepared for, that of ``limit`` if None; the sizes of the parts follow
        from it.
        """
        attempt = await self.attempts.begin(bucket.name)
        sizes = PartSizes.up_to(limit.most if length is None else length, self.part_bytes)
        keep_alive = self.attempts.keep_alive(attempt.version)
        parts = attempt.parts = PartStream(self.store, attempt.path, sizes, limit, keep_alive)
        try:
            received = await fill(parts)
            await recheck(received, parts.size)
            etag = await attempt.answered(parts.finish())
            self.steps("stored")
            new = NewObject(
                bucket.name,
                received.key,
                attempt.version,
                parts.size,
                received.content_type,
                etag,
                received.max_age_seconds,
            )
            if received.owner is not None:
                writer = evolve(writer, user_id=received.owner)
            return await shield(self._switch(new, writer, conditions))
        except Exception as failure:
            await self.attempts.clean_up(attempt, failure)
            raise

    async def copy(
        self,
        bucket: Bucket,
        source: str,
        target: str,
        writer: Writer,
        conditions: Conditions,
        recheck: Recheck,
    ) -> Switched:
        """Make a second object of the same bytes, copied inside the store."""
        await self.check_write(bucket, target, writer, conditions)
        row = await self._existing(bucket, source)
        await self.check_room(bucket, target, row.size)
        attempt = await self.attempts.begin(bucket.name)
        try:
            row, etag = await self._copied(attempt, bucket, row)
            self.steps("stored")
            await recheck(Received(target, row.content_type), row.size)
            new = NewObject(
                bucket.name, target, attempt.version, row.size, row.content_type, etag, row.max_age_seconds
            )
            return await shield(self._switch(new, writer, conditions))
        except Exception as failure:
            await self.attempts.clean_up(attempt, failure)
            raise

    async def move(
        self, bucket: Bucket, source: str, target: str, writer: Writer, conditions: Conditions
    ) -> Switched:
        """The same bytes under another key: a change of rows alone."""

        async def moved() -> Switched:
            stated = await self._without_date(bucket.name, target, conditions)
            switched = await self.rows.move(bucket.name, source, target, writer, stated)
            self.steps("switched")
            await self._removed([switched.replaced], bucket.name)
            return switched

        return await shield(moved())

    async def delete(
        self,
        bucket: Bucket,
        keys: Sequence[str],
        writer: Writer,
        conditions: Conditions = UNCONDITIONAL,
    ) -> Mapping[str, UUID]:
        """The rows go first, all in one transaction; then the bytes. Returns the versions deleted, by key."""

        async def deleted() -> Mapping[str, UUID]:
            stated = await self._without_date(bucket.name, keys[0], conditions)
            versions = await self.rows.delete(bucket.name, keys, writer, stated)
            self.steps("switched")
            await self._removed(versions.values(), bucket.name)
            return versions

        return await shield(deleted())

    async def change(
        self, bucket: Bucket, key: str, changes: Mapping[str, Any], conditions: Conditions
    ) -> ObjectRow:
        """Change metadata of an object, as ``ObjectRows.change``."""
        stated = await self._without_date(bucket.name, key, conditions)
        return await self.rows.change(bucket.name, key, changes, stated)

    async def delete_prefix(self, bucket: Bucket, prefix: str) -> int:
        """Delete everything under ``prefix`` with the service's rights; the number of objects deleted."""
        service = Writer(None, is_service=True)
        count = 0
        while keys := await self.rows.keys(bucket.name, prefix, 1000):
            count += len(await self.delete(bucket, keys, service))
        return count

    async def check_write(self, bucket: Bucket, key: str, writer: Writer, conditions: Conditions) -> None:
        """Refuse early what the switch would refuse, before any byte moves."""
        guarded = bucket.rules.owner_only_writes and not writer.is_service
        if not guarded and conditions == UNCONDITIONAL:
            return
        row = await self.rows.find(bucket.name, key)
        outcome = refusal(row, guarded, writer, conditions)
        if outcome is not None:
            raise errors.refused(outcome)

    async def check_room(self, bucket: Bucket, key: str, size: int) -> None:
        """Raise ``bucket_full`` early where ``size`` more bytes cannot fit into the bucket's quota now.

        Without it an upload would be streamed whole before it is refused, and a small request could make the store
        copy any number of bytes. The counters in ``bucket`` may be old, so they are read again before anything is
        refused.
        """
        quota = bucket.rules.max_bucket_bytes
        if quota is None or bucket.total_bytes + size <= quota:
            return
        room = await self.rows.room(bucket.name, key)
        if room is not None and size > room:
            raise errors.bucket_full()

    async def _existing(self, bucket: Bucket, key: str) -> ObjectRow:
        row = await self.rows.find(bucket.name, key)
        if row is None:
            raise errors.object_not_found()
        return row

    async def _copied(self, attempt: Attempt, bucket: Bucket, row: ObjectRow) -> tuple[ObjectRow, str]:
        """Copy the bytes of ``row``, or of its successor where it was replaced; the row copied, and the copy's
        ETag."""
        renew = self.attempts.keep_alive(attempt.version)

        async def keep_alive() -> None:
            if attempt.left:
                raise errors.upload_expired()
            await renew()

        for _ in range(MOST_READINGS):
            copying = self.store.copy(row.path, attempt.path, row.size, row.content_type, keep_alive)
            try:
                # The store goes on copying when the client hangs up, which costs the client nothing. So the request
                # keeps its place until the store has answered, and there are never more copies than places.
                return row, await attempt.seen_through(copying)
            except NoSuchObject:
                # The object was replaced or deleted after its row was read.
                missing, row = row.version, await self._existing(bucket, row.key)
                if row.version == missing:
                    raise ObjectLost(f"the store has no {row.path}") from None
        raise StoreUnreachable("every version that a row named was gone")

    async def _switch(self, new: NewObject, writer: Writer, conditions: Conditions) -> Switched:
        stated = await self._without_date(new.bucket, new.key, conditions)
        switched = await self.rows.put(new, writer, stated)
        self.steps("switched")
        await self._removed([switched.replaced], new.bucket)
        return switched

    async def _without_date(self, bucket: str, key: str, conditions: Conditions) -> Conditions:
        if conditions.unmodified_since is None:
            return conditions
        return without_date(await self.rows.find(bucket, key), conditions)

    async def _removed(self, versions: Iterable[UUID | None], bucket: str) -> None:
        garbage = [version for version in versions if version is not None]
        if garbage:
            await self.removal.replaced(garbage, bucket)
            self.steps("removed")
