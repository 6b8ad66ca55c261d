"""Changes of objects beside uploads (``upload``), in an order of steps that makes every crash harmless.

The rows change first, in one transaction, which also makes the versions that are replaced garbage; then the bytes go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from attrs import evolve, frozen

from project_service.audit import By
from project_service.errors import ApiError
from project_service.lifecycle import shield, to_its_end
from project_service.storage import access, errors, keys
from project_service.storage.buckets import Buckets
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.s3.errors import NoSuchObject, StoreUnreachable
from project_service.storage.s3.reading import MAX_READS, ObjectLost
from project_service.storage.upload import BUCKET_LIMIT, SizeLimit, State, Upload, Uploads
from project_service.storage.values import (
    SERVICE,
    UNCONDITIONAL,
    Bucket,
    Conditions,
    Entries,
    ObjectRow,
    Switched,
    Viewer,
    Writer,
)

# How often to empty a bucket that is to be deleted while others put objects into it.
EMPTYINGS = 10


@frozen(eq=False)
class Objects:
    """Every method raises the refusals of ``errors.refused`` and what the store raises."""

    rows: ObjectRows
    uploads: Uploads
    buckets: Buckets

    async def copy(
        self,
        bucket: Bucket,
        source: str,
        to: Bucket,
        target: str,
        writer: Writer,
        conditions: Conditions,
        changes: Mapping[str, Any] | None = None,
    ) -> Switched:
        """Copy the object at ``source`` to ``target`` in the bucket ``to``, which may be the same, inside the store.
        ``changes`` are the content type and members of ``Details`` in which the copy differs.

        Raises ``object_not_found`` where the caller may not see the source, and what an upload of the target
        raises."""
        viewer, changes = access.viewer_of(bucket.rules, writer), changes or {}
        row = await self._existing(bucket, source, viewer)
        await self._check_target(bucket, to, target, evolve(row, **changes), writer, conditions)
        async with await self.uploads.begin(to.name, SizeLimit(row.size)) as upload:
            row = evolve(await self._copied(upload, bucket, row, viewer, to), **changes)
            return await upload.commit(target, row.content_type, row.details, writer, conditions)

    async def move_to_bucket(
        self,
        bucket: Bucket,
        source: str,
        to: Bucket,
        target: str,
        writer: Writer,
        conditions: Conditions,
    ) -> Switched:
        """Move the object at ``source`` to ``target`` in another bucket. Its bytes are copied inside the store; one
        transaction makes the copy the object's and the old bytes garbage. Raises what a copy and a deletion raise,
        and ``object_changed``."""
        viewer = access.viewer_of(bucket.rules, writer)
        row = await self._existing(bucket, source, viewer)
        access.check_write(bucket.rules, row, writer, UNCONDITIONAL)
        await self._check_target(bucket, to, target, row, writer, conditions)
        async with await self.uploads.begin(to.name, SizeLimit(row.size)) as upload:
            row = await self._copied(upload, bucket, row, viewer, to)
            return await upload.commit_move(row, target, writer, conditions)

    async def move(
        self, bucket: Bucket, source: str, target: str, writer: Writer, conditions: Conditions
    ) -> Switched:
        """The same bytes under another key: a change of rows alone."""

        async def moved() -> Switched:
            viewer = access.viewer_of(bucket.rules, writer)
            tags = await self.uploads.without_date(bucket.name, target, conditions, viewer)
            switched = await self.rows.move(bucket.name, source, target, writer, tags)
            self.uploads.steps(State.COMMITTED.value)
            await self.uploads.removal.replaced([switched.replaced], bucket.name)
            return switched

        return await to_its_end(moved())

    async def delete(
        self,
        bucket: Bucket,
        keys: Sequence[str],
        writer: Writer,
        conditions: Conditions = UNCONDITIONAL,
    ) -> Mapping[str, UUID]:
        """The rows go first, all in one transaction; then the bytes. Returns the versions deleted, by key, also to a
        caller that is cancelled meanwhile."""

        async def deleted() -> Mapping[str, UUID]:
            viewer = access.viewer_of(bucket.rules, writer)
            tags = await self.uploads.without_date(bucket.name, keys[0], conditions, viewer)
            versions = await self.rows.delete(bucket.name, keys, writer, tags)
            self.uploads.steps(State.COMMITTED.value)
            await self.uploads.removal.replaced(versions.values(), bucket.name)
            return versions

        return await to_its_end(deleted())

    async def change(
        self, bucket: Bucket, key: str, changes: Mapping[str, Any], writer: Writer, conditions: Conditions
    ) -> ObjectRow:
        """Change what may be changed without new bytes, as ``ObjectRows.change``."""
        viewer = access.viewer_of(bucket.rules, writer)
        tags = await self.uploads.without_date(bucket.name, key, conditions, viewer)
        return await self.rows.change(bucket.name, key, changes, writer, tags)

    async def delete_bucket(self, name: str, by: By | None = None) -> None:
        """Delete a bucket with all that is in it. Raises ``bucket_not_found``, ``bucket_in_use``, and
        ``bucket_not_empty`` where others go on to put objects into it."""
        bucket = await self.buckets.fresh(name)
        for left in reversed(range(EMPTYINGS)):
            await self.delete_prefix(bucket, "", by)
            try:
                await self.buckets.delete(name, by=by)
            except ApiError as refusal:
                if refusal.code != "bucket_not_empty" or not left:
                    raise
            else:
                return

    async def delete_prefix(self, bucket: Bucket, prefix: str, by: By | None = None) -> int:
        """Delete everything under ``prefix`` with the service's rights; the number of objects deleted. That it begins
        is recorded, with ``by``: what comes after may end with the service."""
        count = 0
        while keys := await self.rows.keys(bucket.name, prefix, 1000):
            if by is not None:
                await self.buckets.rows.record(by("delete_objects", f"{bucket.name}/{prefix}"))
                by = None
            # Shielded, so that one that is cancelled ends here.
            count += len(await shield(self.delete(bucket, keys, SERVICE)))
        return count

    async def empty(self, bucket: Bucket, writer: Writer, by: By | None = None) -> None:
        """Delete everything that ``writer`` sees, a thousand at a time. Raises what ``delete`` raises of something
        that they may not delete; what was deleted before that is gone."""
        if writer.is_service:
            await self.delete_prefix(bucket, "", by)
            return
        viewer, everything = access.viewer_of(bucket.rules, writer), Entries("", recursive=True)
        while rows := await self.rows.entries(bucket.name, everything, 0, 1000, None, viewer):
            keys = [row.key for row in rows if isinstance(row, ObjectRow)]
            if not await shield(self.delete(bucket, keys, writer)):
                return  # somebody else has deleted them, or they are not seen any more

    async def _check_target(
        self, bucket: Bucket, to: Bucket, target: str, row: ObjectRow, writer: Writer, conditions: Conditions
    ) -> None:
        _check_rules(to, row)
        await self.uploads.check(to, target, writer, conditions, row.size, row.content_type, row.details)

    async def _copied(
        self, upload: Upload, bucket: Bucket, row: ObjectRow, viewer: Viewer | None, to: Bucket
    ) -> ObjectRow:
        """As ``_copy``. It may take long, so there may be other buckets of these names at its end, or other rules."""
        row = await self._copy(upload, bucket, row, viewer)
        await self.buckets.same(bucket)
        _check_rules(await self.buckets.same(to), row)
        return row

    async def _existing(self, bucket: Bucket, key: str, viewer: Viewer | None) -> ObjectRow:
        row = await self.rows.find(bucket.name, key, viewer)
        if row is None:
            raise errors.object_not_found()
        return row

    async def _copy(self, upload: Upload, bucket: Bucket, row: ObjectRow, viewer: Viewer | None) -> ObjectRow:
        """Copy the bytes of ``row``, or of its successor where it was replaced; the row copied."""
        for _ in range(MAX_READS):
            try:
                await upload.copy(row)
                return row
            except NoSuchObject:
                # The object was replaced or deleted after its row was read.
                missing, row = row.version, await self._existing(bucket, row.key, viewer)
                if row.version == missing:
                    raise ObjectLost(f"the store has no {row.path}") from None
        raise StoreUnreachable("every version that a row named was gone")


def _check_rules(bucket: Bucket, row: ObjectRow) -> None:
    """Whether ``bucket`` takes a copy of ``row``. Raises ``payload_too_large``, ``unsupported_media_type``."""
    rules = bucket.rules
    if rules.max_object_bytes is not None:
        SizeLimit(rules.max_object_bytes, setting=BUCKET_LIMIT).check(row.size)
    if not keys.is_allowed_type(row.content_type, rules.allowed_content_types):
        raise errors.unsupported_media_type_of_object(keys.essence(row.content_type))
